"""Agents: programs of users, and the endpoint that they ask for replies."""

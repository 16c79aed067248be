"""OpenAI-compatible endpoint, through which agents (users' programs) talk to the policy."""

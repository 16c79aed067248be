"""Isolation: code of users in processes of its own, which are limited, killed and understood."""

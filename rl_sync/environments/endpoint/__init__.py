"""OpenAI-compatible endpoint: agents that are somebody else's programs talk to the policy by it."""

"""The replay buffer between explorers and trainer: a Reverb server, its client, and a backend
that needs no server."""

"""The replay buffer between explorers and trainer: a Reverb server, or an embedded one."""

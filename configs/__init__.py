"""Configs of the package. In the clone, `configs` is a second name of `rl_sync.configs`."""

if __name__ == "configs":
    from rl_sync.aliases import alias

    alias(__name__, "rl_sync.configs")

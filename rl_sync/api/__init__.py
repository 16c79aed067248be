"""The public interface from Python, which `import rl_sync` offers."""

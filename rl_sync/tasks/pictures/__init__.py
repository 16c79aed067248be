"""Images in prompts: their tiles of pixels, their tokens, and their places in texts."""

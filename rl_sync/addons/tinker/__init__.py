"""Server of Tinker's API: its clients train and sample with our model, losses and engine."""

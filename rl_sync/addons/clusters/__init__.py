"""Writes files that start a run on several machines: by Slurm, Kubernetes, SkyPilot or ssh."""

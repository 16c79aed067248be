"""The machines of a run beside the launcher's: how they join it, and what they are sent."""

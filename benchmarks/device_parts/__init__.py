"""Parts of `benchmarks/device.py`: each measures one thing on this machine's accelerator."""

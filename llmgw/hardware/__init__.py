"""GPUs, InfiniBand and RoCE ports, interfaces: read and parse, below roots that are parameters."""

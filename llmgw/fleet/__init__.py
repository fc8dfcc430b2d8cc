"""The core: nodes, replicas, shards, placement, reconcile, drain, liveness. No I/O, no clock, no randomness."""

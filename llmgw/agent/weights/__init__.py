"""Weights on a node: fetched before a launch, once for all shards that want them, and listed for operators."""

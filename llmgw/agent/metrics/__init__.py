"""`/metrics` of an agent, where agent.yaml asks for it: its hardware, its shards, and its link to the server."""

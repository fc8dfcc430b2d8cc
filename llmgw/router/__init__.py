"""The data plane: its own process and HTTP path. It knows a route table and nothing else of the fleet."""

"""The node process: poll loop, supervisor, weights. It tells the truth about its node."""

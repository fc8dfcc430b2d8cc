"""The gateway's speed beside that of nginx and other routers: its targets, its suites and its goals."""

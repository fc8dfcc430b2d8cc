"""`/metrics` of the server: the hub's state as it is at the moment of the scrape. A module is a corner of it."""

"""The node process: it talks to the server, keeps engines running, and tells the truth about the node."""

"""Replacing the agent's own program by another release, and going back when that does not come up."""

"""Simulated hardware, the simulated engine, the demo and its scenarios."""

"""Simulated fabrics: switches, cables and subnet managers around simulated nodes, and the tools that ask them."""

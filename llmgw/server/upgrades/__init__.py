"""Upgrades of agents: one node after the other, each watched until it is back with its engines."""

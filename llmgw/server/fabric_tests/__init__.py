"""Bandwidth tests between nodes, as the control plane runs them: who may be tested, in which order, with what
result.
"""

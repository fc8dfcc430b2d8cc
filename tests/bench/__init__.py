"""Benches: what the documents promise in figures, measured. `scripts/bench NAME` runs one."""

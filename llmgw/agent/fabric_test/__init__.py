"""The agent's part of a bandwidth test: the two ends of `ib_write_bw`, each run here for another agent's."""

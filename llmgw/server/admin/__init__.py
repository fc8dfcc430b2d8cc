"""The admin API: JSON under /api/v1 behind named tokens, answered from an `AdminBackend`."""

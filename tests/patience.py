"""How long tests wait for what must come."""

from __future__ import annotations

PATIENCE = 3.0
"""Times a wait's own limit. A wait ends when what it waits for has come, so a long one costs only where it fails.
On a machine whose cores others use for seconds, a short one would tell of those, and not of llmgw."""

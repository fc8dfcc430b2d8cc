"""An index for the history of a model narrowed to a kind.

Revision: 0008
Follows: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A million entries of one model, hardly one of them of the kind: 0.7 s without it.
    op.create_index("ix_history_model_kind_id", "history", ["model", "kind", "id"])

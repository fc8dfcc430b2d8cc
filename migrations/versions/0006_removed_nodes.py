"""Nodes that operators have removed, and when.

Revision: 0006
Follows: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "removed_nodes",
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("removed_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_removed_nodes"),
    )

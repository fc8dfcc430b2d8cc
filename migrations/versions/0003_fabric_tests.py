"""Results of bandwidth tests between nodes.

Revision: 0003
Follows: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fabric_tests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        sa.Column("test_id", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("fabric", sa.String(256), nullable=False),
        sa.Column("rail", sa.Integer, nullable=False),
        sa.Column("sender", sa.String(63), nullable=False),
        sa.Column("sender_port", sa.String(128), nullable=False),
        sa.Column("receiver", sa.String(63), nullable=False),
        sa.Column("receiver_port", sa.String(128), nullable=False),
        sa.Column("gbps", sa.Float),
        sa.Column("limit_gbps", sa.Float),
        sa.Column("limited_by", sa.Text, nullable=False),
        sa.Column("grade", sa.String(16), nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fabric_tests"),
        sqlite_autoincrement=True,
    )

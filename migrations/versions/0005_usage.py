"""What requests took, by key, model and hour.

Revision: 0005
Follows: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("hour", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("errors", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("estimated", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hour", "key", "model", name="pk_usage"),
    )
    op.create_table(
        "usage_ledgers",
        sa.Column("ledger", sa.String(64), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("ledger", name="pk_usage_ledgers"),
    )

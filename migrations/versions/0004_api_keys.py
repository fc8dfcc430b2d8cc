"""API keys: who may use the model API, and how much of it.

Revision: 0004
Follows: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("created_by", sa.String(64), nullable=False),
        sa.Column("models", sa.JSON),
        sa.Column("requests_per_minute", sa.BigInteger),
        sa.Column("tokens_per_minute", sa.BigInteger),
        sa.Column("concurrency", sa.BigInteger),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("last_used_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("secret_hash", name="uq_api_keys_secret_hash"),
    )
    op.create_index("ix_api_keys_name", "api_keys", ["name"])

"""The first tables: nodes and their flags, fabrics, history, catalog, tokens, revocations, facts.

Revision: 0001
Follows: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("address", sa.String(255)),
        sa.Column("first_seen", sa.Float, nullable=False),
        sa.Column("last_registered", sa.Float, nullable=False),
        sa.Column("cordoned_at", sa.Float),
        sa.Column("draining_at", sa.Float),
        sa.Column("drain_forced", sa.Boolean, nullable=False),
        sa.Column("boot_id", sa.String(64)),
        sa.Column("instance", sa.String(64)),
        sa.Column("instance_started_at", sa.Float),
        sa.Column("counter", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    op.create_table(
        "node_fabrics",
        sa.Column("node_id", sa.String(63), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("adapters", sa.JSON, nullable=False),
        sa.Column("usable", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("rate_gbps", sa.Float),
        sa.Column("changed_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("node_id", "name", name="pk_node_fabrics"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_node_fabrics_node_id", ondelete="CASCADE"),
    )
    op.create_table(
        "history",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(512), nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("model", sa.String(256)),
        sa.Column("nodes", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_history"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_history_subject_id", "history", ["subject", "id"])
    op.create_index("ix_history_model_id", "history", ["model", "id"])
    op.create_index("ix_history_kind_id", "history", ["kind", "id"])
    op.create_table(
        "catalog_revisions",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("by", sa.String(256), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_catalog_revisions"),
    )
    op.create_table(
        "admin_tokens",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("last_used_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.PrimaryKeyConstraint("name", name="pk_admin_tokens"),
        sa.UniqueConstraint("secret_hash", name="uq_admin_tokens_secret_hash"),
    )
    op.create_table(
        "revocations",
        sa.Column("serial", sa.String(64), nullable=False),
        sa.Column("revoked_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("serial", name="pk_revocations"),
    )
    op.create_table(
        "facts",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_facts"),
    )


def downgrade() -> None:
    raise NotImplementedError("a store goes back by restoring the backup made before its migration")

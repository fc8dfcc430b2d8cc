"""What is known of physical fabrics, and what changed on them.

Revision: 0002
Follows: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "physical_fabrics",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("names", sa.JSON, nullable=False),
        sa.Column("managers", sa.JSON, nullable=False),
        sa.Column("switches", sa.JSON, nullable=False),
        sa.Column("said", sa.Text),
        sa.Column("said_at", sa.Float),
        sa.Column("master_changed_at", sa.Float),
        sa.Column("cabling", sa.Text),
        sa.Column("cabling_at", sa.Float),
        sa.Column("accepted", sa.Text),
        sa.Column("accepted_at", sa.Float),
        sa.Column("accepted_by", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_physical_fabrics"),
    )
    op.create_table(
        "fabric_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("fabric", sa.String(64)),
        sa.Column("name", sa.String(256)),
        sa.Column("area", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("node", sa.String(256)),
        sa.Column("port", sa.Integer),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_fabric_changes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_fabric_changes_fabric_id", "fabric_changes", ["fabric", "id"])
    op.create_index("ix_fabric_changes_name_id", "fabric_changes", ["name", "id"])
    op.create_index("ix_fabric_changes_area_id", "fabric_changes", ["area", "id"])


def downgrade() -> None:
    raise NotImplementedError("a store goes back by restoring the backup made before its migration")

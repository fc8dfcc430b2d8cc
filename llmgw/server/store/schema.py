"""The tables of the store. A change here needs a migration; a test compares the two."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

# Constraints have names, since a migration can only change what it can name.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Times are seconds since the epoch (UTC). A flag is the time at which it was set; NULL is not set.
nodes = Table(
    "nodes",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("address", String(255)),
    Column("first_seen", Float, nullable=False),
    Column("last_registered", Float, nullable=False),
    Column("cordoned_at", Float),
    Column("draining_at", Float),
    Column("drain_forced", Boolean, nullable=False),
    # The life that registered last (DESIGN.md, invariant 10).
    Column("boot_id", String(64)),
    Column("instance", String(64)),
    Column("instance_started_at", Float),
    Column("counter", BigInteger),
)

node_fabrics = Table(
    "node_fabrics",
    metadata,
    Column("node_id", String(63), ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(256), primary_key=True),
    Column("adapters", JSON, nullable=False),
    Column("usable", Boolean, nullable=False),
    Column("reason", Text),
    Column("rate_gbps", Float),
    Column("changed_at", Float, nullable=False),
)

history = Table(
    "history",
    metadata,
    # SQLite makes a table's own counter only for INTEGER; ids are never given twice.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("subject", String(512), nullable=False),
    Column("event", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("model", String(256)),
    Column("nodes", JSON, nullable=False),
    Index("ix_history_subject_id", "subject", "id"),
    Index("ix_history_model_id", "model", "id"),
    Index("ix_history_kind_id", "kind", "id"),
    # The replicas of a model fill its history; what else happened to it would be looked for among all of that.
    Index("ix_history_model_kind_id", "model", "kind", "id"),
    sqlite_autoincrement=True,
)

# Who asked for what. Ids are given in memory (`audit.py`), so that a row that grows is known by its id at once.
audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("by", String(64), nullable=False),
    Column("address", String(64), nullable=False),
    Column("method", String(16), nullable=False),
    Column("route", String(256), nullable=False),
    Column("subject", String(512), nullable=False),
    Column("summary", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("message", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("last_at", Float),
    Index("ix_audit_by_id", "by", "id"),
    Index("ix_audit_subject_id", "subject", "id"),
    Index("ix_audit_at", "at"),
)

catalog_revisions = Table(
    "catalog_revisions",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("by", String(256), nullable=False),
    Column("note", Text, nullable=False),
    Column("body", Text, nullable=False),
)

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("secret_hash", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("last_used_at", Float),
    Column("revoked_at", Float),
)

api_keys = Table(
    "api_keys",
    metadata,
    # Never given again; a name is, once its key is revoked.
    Column("id", String(16), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("secret_hash", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(64), nullable=False),
    # Only these; null: all.
    Column("models", JSON),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("concurrency", BigInteger),
    Column("priority", Integer, nullable=False),
    Column("expires_at", Float),
    Column("last_used_at", Float),
    Column("revoked_at", Float),
    Index("ix_api_keys_name", "name"),
)

revocations = Table(
    "revocations",
    metadata,
    Column("serial", String(64), primary_key=True),
    Column("revoked_at", Float, nullable=False),
)

# Nodes that operators have removed: certificates that were issued before are refused (pki/revocation.py).
removed_nodes = Table(
    "removed_nodes",
    metadata,
    Column("id", String(63), primary_key=True),
    Column("removed_at", Float, nullable=False),
)

facts = Table(
    "facts",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    Column("at", Float, nullable=False),
)

fabric_tests = Table(
    "fabric_tests",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("test_id", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("fabric", String(256), nullable=False),
    Column("rail", Integer, nullable=False),
    Column("sender", String(63), nullable=False),
    Column("sender_port", String(128), nullable=False),
    Column("receiver", String(63), nullable=False),
    Column("receiver_port", String(128), nullable=False),
    Column("gbps", Float),
    Column("limit_gbps", Float),
    Column("limited_by", Text, nullable=False),
    Column("grade", String(16), nullable=False),
    Column("words", Text, nullable=False),
    sqlite_autoincrement=True,
)

# What requests took; `key` is empty where none was asked for. `hour` is its start in seconds since the epoch.
usage = Table(
    "usage",
    metadata,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("key", String(64), primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("errors", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("estimated", BigInteger, nullable=False),
)

# The last batch that each router's ledger has in `usage`: what is sent again is not counted again.
usage_ledgers = Table(
    "usage_ledgers",
    metadata,
    Column("ledger", String(64), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
)

physical_fabrics = Table(
    "physical_fabrics",
    metadata,
    # The lowest GUID among the managers that named it: 0x and 16 digits, kept for ever.
    Column("id", String(64), primary_key=True),
    Column("names", JSON, nullable=False),
    Column("managers", JSON, nullable=False),
    Column("switches", JSON, nullable=False),
    # What the managers last said (JSON).
    Column("said", Text),
    Column("said_at", Float),
    Column("master_changed_at", Float),
    # How it was last seen to be cabled, and how it should be (JSON).
    Column("cabling", Text),
    Column("cabling_at", Float),
    Column("accepted", Text),
    Column("accepted_at", Float),
    Column("accepted_by", String(64)),
)

fabric_changes = Table(
    "fabric_changes",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    # The physical fabric and the operator's name of it; a port may be on none that is known.
    Column("fabric", String(64)),
    Column("name", String(256)),
    Column("area", String(16), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("what", Text, nullable=False),
    Column("node", String(256)),
    Column("port", Integer),
    Column("before", Text),
    Column("after", Text),
    Index("ix_fabric_changes_fabric_id", "fabric", "id"),
    Index("ix_fabric_changes_name_id", "name", "id"),
    Index("ix_fabric_changes_area_id", "area", "id"),
    sqlite_autoincrement=True,
)

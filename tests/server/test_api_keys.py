"""Which keys the routers are told of, and when: the store's, in every table, at once when they change."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from llmgw.config.server import KeyRule, ServerConfig
from llmgw.messages.routes import KeyRoute, Outcome, RouteTable, TableVersion, Telemetry
from llmgw.server.api_keys import ApiKeys
from llmgw.server.hub import Hub
from llmgw.server.key_tally import WITHOUT
from llmgw.server.own_key import PLAYGROUND, OwnKey
from llmgw.server.store.key_records import KeyRecord
from llmgw.server.store.secrets import name_problem
from tests.server.test_metrics import NOW, World

HASH = "ab" * 32


def record(key_id: str = "k1", name: str = "alice", **more: object) -> KeyRecord:
    return KeyRecord(id=key_id, name=name, secret_hash=HASH, created_at=1.0, created_by="ops", **more)  # type: ignore[arg-type]


def hub_with(keys: ApiKeys) -> tuple[Hub, list[RouteTable]]:
    world = World("m")
    published: list[RouteTable] = []
    hub = world.hub
    hub.keys = keys
    hub._tables._publish = published.append
    return hub, published


@pytest.mark.parametrize(
    ("listen", "auth", "rule"),
    [
        ("127.0.0.1:8080", None, KeyRule.ONCE_MADE),
        ("[::1]:8080", None, KeyRule.ONCE_MADE),
        ("0.0.0.0:8080", None, KeyRule.ALWAYS),
        ("gateway.internal:8080", None, KeyRule.ALWAYS),
        ("127.0.0.1:8080", "keys", KeyRule.ALWAYS),
        ("127.0.0.1:8080", "none", KeyRule.NEVER),
        ("0.0.0.0:8080", "none", KeyRule.NEVER),
    ],
)
def test_who_needs_a_key_follows_from_auth_and_listen(listen: str, auth: str | None, rule: KeyRule) -> None:
    assert ServerConfig(listen=listen, auth=auth).key_rule is rule


def test_the_first_table_that_is_published_has_the_keys_and_a_change_makes_the_next_at_once() -> None:
    keys = ApiKeys()
    keys.take([record()], any_made=True)
    hub, published = hub_with(keys)
    hub.turn()
    hub.keys_changed()
    assert published == [], "routers are asked for their table first"
    hub.release_routes()
    hub.turn()
    (table,) = published
    assert table.keys_required
    assert [(key.id, key.hash) for key in table.keys] == [("k1", bytes.fromhex(HASH))]

    keys.take([record(concurrency=5)], any_made=True)
    hub.keys_changed()
    assert published[-1].keys[0].concurrency == 5
    assert published[-1].version.number == table.version.number + 1
    assert published[-1].models == table.models
    hub.turn()
    hub.keys_changed()
    assert len(published) == 2, "nothing has changed since"
    keys.take([], any_made=True)
    hub.keys_changed()
    assert (published[-1].keys, published[-1].keys_required) == ([], True)


def test_keys_of_an_imported_table_are_not_taken_over_but_never_open_the_gateway() -> None:
    keys = ApiKeys()
    hub, published = hub_with(keys)
    old = RouteTable(
        version=TableVersion("before", 9), keys=[KeyRoute(id="old", hash=b"x" * 32)], keys_required=True
    )
    hub.import_table(old)
    hub.release_routes()
    hub.turn()
    assert (published[-1].keys, published[-1].keys_required) == ([], True)
    (finding,) = keys.findings("127.0.0.1:8080", NOW)
    assert finding.check == "no-api-keys"
    assert "the store was lost" in finding.what


def test_where_nobody_is_asked_routers_are_told_of_no_key() -> None:
    keys = ApiKeys(KeyRule.NEVER)
    keys.take([record()], any_made=True)
    assert (keys.routes, keys.required) == ([], False)
    assert [finding.check for finding in keys.findings("0.0.0.0:8080", NOW)] == ["api-keys-not-asked-for"]
    keys.take([], any_made=True)
    assert keys.findings("0.0.0.0:8080", NOW) == []


def test_a_gateway_whose_keys_have_all_expired_is_told_as_one_that_refuses_everybody() -> None:
    keys = ApiKeys(KeyRule.ALWAYS)
    keys.take([record(expires_at=NOW - 1)], any_made=True)
    (finding,) = keys.findings("0.0.0.0:8080", NOW)
    assert "all keys have expired" in finding.what
    keys.take([record(expires_at=NOW + 1)], any_made=True)
    assert keys.findings("0.0.0.0:8080", NOW) == []


def test_used_keys_are_counted_by_key_and_no_others() -> None:
    keys = ApiKeys()
    keys.take([record(), record("k2", "bob")], any_made=True)
    outcomes = [
        Outcome(model="m", endpoint="e", status=200, key="k1"),
        Outcome(model="", endpoint=None, status=429, key="k1"),
        Outcome(model="", endpoint=None, status=401),
        Outcome(model="m", endpoint="e", status=200, key="revoked-meanwhile"),
    ]
    keys.told("r0", Telemetry(outcomes=outcomes))
    assert keys.take_used() == {"k1"}
    assert keys.take_used() == set()
    assert keys.tally.counts == {"k1": {"2xx": 1, "4xx": 1}, WITHOUT: {"4xx": 1, "2xx": 1}}
    keys.take([record("k2", "bob")], any_made=True)
    assert set(keys.tally.counts) == {WITHOUT}


def test_metrics_have_every_keys_series_from_the_start_and_are_bounded() -> None:
    from llmgw.server.metrics import keys as metrics
    from tests.server.exposition import families, value

    world = World("m")
    many = [record(f"k{number}", f"name{number:04d}") for number in range(metrics.KEYS_MAX + 10)]
    world.hub.keys.take(many, any_made=True)
    text = world.text()
    assert value(text, "llmgw_key_requests_total", key="name0000", status_class="2xx") == 0
    assert value(text, "llmgw_key_requests_total", key="(none)", status_class="4xx") == 0
    assert value(text, "llmgw_key_requests_total", key="(other)", status_class="2xx") == 0
    outcomes = [Outcome(model="m", endpoint="e", status=200, key=key.id) for key in many]
    world.hub.telemetry("r", Telemetry(outcomes=outcomes))
    text = world.text()
    assert value(text, "llmgw_key_requests_total", key="name0000", status_class="2xx") == 1
    assert value(text, "llmgw_key_requests_total", key="(other)", status_class="2xx") == 10
    names = {sample.labels["key"] for sample in families(text)["llmgw_key_requests"].samples}
    assert len(names) == metrics.KEYS_MAX + 2


# The control process's own key.


def test_routers_know_the_servers_own_key_wherever_keys_are_needed_and_nobody_else_counts_it() -> None:
    own = OwnKey.made()
    keys = ApiKeys(KeyRule.ONCE_MADE, own.route)
    keys.take([], any_made=False)
    assert (keys.routes, keys.names, keys.required) == ([], {}, False), "nobody is asked for a key yet"
    keys.take([record()], any_made=True)
    assert [key.id for key in keys.routes] == [PLAYGROUND, "k1"]
    assert (keys.names, keys.count) == ({"k1": "alice", PLAYGROUND: PLAYGROUND}, 1)
    assert keys.routes[0].hash == hashlib.sha256(own.secret.encode()).digest()
    assert own.secret not in repr(keys.routes)
    outcomes = [Outcome(model="m", endpoint="e", status=200, key=PLAYGROUND)]
    keys.told("r0", Telemetry(outcomes=outcomes))
    assert keys.take_used() == set(), "the store knows no such key"
    assert keys.tally.counts == {PLAYGROUND: {"2xx": 1}}
    keys.take([], any_made=True)
    assert [key.id for key in keys.routes] == [PLAYGROUND]
    (finding,) = keys.findings("127.0.0.1:8080", NOW)
    assert (finding.check, "there is none" in finding.what) == ("no-api-keys", True)
    never = ApiKeys(KeyRule.NEVER, own.route)
    never.take([record()], any_made=True)
    assert never.routes == []


def test_an_earlier_servers_own_key_is_no_sign_of_a_lost_store() -> None:
    keys = ApiKeys(KeyRule.ONCE_MADE, OwnKey.made().route)
    keys.take([], any_made=False)
    table = RouteTable(version=TableVersion("before", 9), keys=[OwnKey.made().route], keys_required=True)
    keys.imported(table)
    assert not keys.required
    keys.imported(msgspec.structs.replace(table, keys=[*table.keys, KeyRoute(id="k9", hash=b"x" * 32)]))
    assert keys.required
    assert [key.id for key in keys.routes] == [PLAYGROUND], "whose store was lost can still try its models"


@pytest.mark.parametrize("name", [PLAYGROUND, "playground)", "(x"])
def test_no_key_that_somebody_makes_is_called_as_the_servers_own(name: str) -> None:
    assert name_problem(name, "key") is not None

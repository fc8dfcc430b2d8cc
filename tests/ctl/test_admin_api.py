"""The admin API through its socket: shapes, names at the border, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from llmgw.messages import admin, admin_fabrics, admin_keys, audit_views, recent_views, topology
from llmgw.messages.routes import Outcome
from llmgw.server.admin.app import create_admin_app
from tests.ctl.scripted import STARTED_AT, TOKEN, ScriptedBackend, ServedAdmin

DOCS = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.fixture
def client(served: ServedAdmin) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=served.url, headers=headers, trust_env=False, verify=False) as client:
        yield client


def test_every_list_and_every_single_thing_can_be_read(client: httpx.Client) -> None:
    for path, key, name in [
        ("nodes", "node_id", "node01"),
        ("replicas", "replica_id", "chat-large-1a2b"),
    ]:
        listed = client.get(f"/api/v1/{path}").json()
        assert name in [entry[key] for entry in listed]
        assert client.get(f"/api/v1/{path}/{name}").json() == next(e for e in listed if e[key] == name)
    assert client.get("/api/v1/fabrics").json()[0]["unusable"] == {"node02": "mlx5_1 is down"}
    assert client.get("/api/v1/models").json()[0]["name"] == "org/chat-large"
    assert client.get("/api/v1/server").json()["settling"] is False
    assert client.get("/api/v1/tokens").json()[0]["name"] == "first"


def test_a_model_with_a_slash_is_explained_and_scaled(client: httpx.Client, backend: ScriptedBackend) -> None:
    explained = client.get("/api/v1/explain", params={"model": "org/chat-large"})
    assert explained.json()["profiles"][0]["refused"][0]["nodes"] == ["node01", "node02"]
    scaled = client.post("/api/v1/scale", json={"model": "org/chat-large", "replicas": 3})
    assert scaled.json()["warnings"] == ["no node could host a third"]
    assert backend.asked[-1] == ("scale", "org/chat-large", None, 3, "first")
    client.post("/api/v1/scale", json={"model": "org/chat-large", "replicas": 0, "confirmed": True})
    assert backend.asked[-1] == ("scale", "org/chat-large", None, 0, "first", "confirmed")


def test_replicas_can_be_asked_for_by_model_and_by_alias(client: httpx.Client) -> None:
    for name in ("org/chat-large", "chat"):
        listed = client.get("/api/v1/replicas", params={"model": name}).json()
        assert [entry["replica_id"] for entry in listed] == ["chat-large-1a2b"]
    refused = client.get("/api/v1/replicas", params={"model": "nothing"})
    assert refused.status_code == 404
    assert "chat-small" in refused.json()["message"]


def test_history_passes_its_filters_on_and_bounds_its_limit(
    client: httpx.Client, backend: ScriptedBackend
) -> None:
    params = {"subject": "org/chat-large/default", "kind": "replica", "model": "m", "before": 9, "limit": 1000}
    assert client.get("/api/v1/history", params=params).json()[0]["event"] == "ready"
    assert backend.asked[-1] == ("history", "org/chat-large/default", "replica", "m", 9, 1000)
    client.get("/api/v1/history")
    assert backend.asked[-1] == ("history", None, None, None, None, 100)
    assert client.get("/api/v1/history", params={"limit": 1001}).status_code == 400


def test_logs_pass_rank_stream_offset_and_lines_on(client: httpx.Client, backend: ScriptedBackend) -> None:
    params = {"rank": 1, "stream": "ray-head", "offset": 4, "lines": 5}
    answer = client.get("/api/v1/replicas/chat-large-1a2b/logs", params=params).json()
    assert answer["text"] == "two\nthree\n"
    assert backend.asked[-1] == ("logs", "chat-large-1a2b", 1, "ray-head", 4, 5)


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("POST", "replicas/chat-large-1a2b/restart", ("restart", "chat-large-1a2b", "first")),
        ("POST", "nodes/node01/cordon", ("cordon", "node01", True, "first")),
        ("POST", "nodes/node01/uncordon", ("cordon", "node01", False, "first")),
        ("POST", "nodes/node01/drain", ("drain", "node01", False, "first")),
        ("POST", "nodes/node01/undrain", ("undrain", "node01", "first")),
        ("DELETE", "nodes/node01", ("remove_node", "node01", "first")),
        ("POST", "fabrics/ib-a/accept", ("accept_fabric", "ib-a", "first")),
        ("DELETE", "tokens/first", ("revoke_token", "first", "first")),
    ],
)
def test_a_change_is_made_in_the_name_of_the_token(
    client: httpx.Client, backend: ScriptedBackend, method: str, path: str, asked: tuple[Any, ...]
) -> None:
    answer = client.request(method, f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"message", "warnings"}
    assert backend.asked[-1] == asked


def test_the_removal_of_a_node_is_told_though_nobody_knows_it_any_more(client: httpx.Client) -> None:
    removed = client.get("/api/v1/nodes/node99/removal").json()
    assert removed == {"node_id": "node99", "removed_at": STARTED_AT}
    assert client.get("/api/v1/nodes/node01/removal").json() == {"node_id": "node01", "removed_at": None}


def test_a_forced_drain_says_so(client: httpx.Client, backend: ScriptedBackend) -> None:
    client.post("/api/v1/nodes/node01/drain", json={"force": True})
    assert backend.asked[-1] == ("drain", "node01", True, "first")


def test_a_new_token_is_shown_once(client: httpx.Client) -> None:
    made = client.post("/api/v1/tokens", json={"name": "ci"})
    assert made.status_code == 201
    assert made.json() == {"name": "ci", "token": "llmgw-fresh-secret"}
    assert "llmgw-fresh-secret" not in client.get("/api/v1/tokens").text


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("nodes/Node_01", "node id"),
        ("nodes/" + "n" * 64, "node id"),
        ("nodes/node01%0A", "node id"),
        ("replicas/a%20b", "replica id"),
        ("replicas/x/logs?rank=-1", "rank"),
        ("replicas/x/logs?lines=0", "lines"),
        ("replicas/x/logs?lines=1_0", "lines"),
        ("replicas/x/logs?stream=../../etc/passwd", "stream"),
        ("replicas/x/logs?offset=99999999999999999999999", "offset"),
        ("history?kind=nonsense", "operator"),
        ("history?before=abc", "before"),
        ("history?subject=" + "x" * 300, "subject"),
        ("history?limit=1&limit=2", "twice"),
        ("replicas?modle=chat", "'modle'"),
        ("explain", "explain?model=NAME"),
        ("explain?model=", "printable"),
        ("explain?model=a%00b", "printable"),
    ],
)
def test_what_is_no_name_or_number_gets_a_sentence(client: httpx.Client, path: str, part: str) -> None:
    refused = client.get(f"/api/v1/{path}")
    assert refused.status_code == 400
    assert refused.json()["code"] == "bad-request"
    assert part in refused.json()["message"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "shape of Scale"),
        (b'{"model":"m"}', "replicas"),
        (b'{"model":"m","replicas":"3"}', "replicas"),
        (b'{"model":"m","replicas":-1}', "0 to 1000, not -1"),
        (b'{"model":"m","replicas":1001}', "0 to 1000"),
        (b'{"model":"m","replicas":1,"replica":2}', "replica"),
        (b'{"model":"","replicas":1}', "printable"),
    ],
)
def test_a_body_that_cannot_be_meant_gets_a_sentence(
    client: httpx.Client, backend: ScriptedBackend, body: bytes, part: str
) -> None:
    refused = client.post("/api/v1/scale", content=body)
    assert refused.status_code == 400
    assert part in refused.json()["message"]
    assert backend.asked == []


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("keys", b"{}", "name"),
        ("keys", b'{"name":"a","key":"mine"}', "key"),
        ("keys", b'{"name":"a b"}', "is not a key name"),
        ("keys", b'{"name":"a","models":[]}', "null allows all"),
        ("keys", b'{"name":"a","models":["\\u0000"]}', "printable"),
        ("keys", b'{"name":"a","models":"chat"}', "models"),
        ("keys", b'{"name":"a","requests_per_minute":0}', "llmgw ctl keys revoke ends a key"),
        ("keys", b'{"name":"a","requests_per_minute":1.5}', "requests_per_minute"),
        ("keys", b'{"name":"a","tokens_per_minute":99999999999999}', "from 1 to"),
        ("keys", b'{"name":"a","concurrency":-1}', "from 1 to"),
        ("keys", b'{"name":"a","priority":null}', "priority"),
        ("keys", b'{"name":"a","priority":101}', "-100 to 100"),
        ("keys", b'{"name":"a","expires_at":1e300}', "seconds since 1970"),
        ("keys", b'{"name":"a","expires_at":-1}', "seconds since 1970"),
        ("keys/a/limit", b'{"name":"b"}', "name"),
        ("keys/a/limit", b'{"concurrency":0}', "from 1 to"),
        ("keys/a%20b/limit", b'{"concurrency":1}', "is not a key name"),
        ("keys?force=1", b'{"name":"a"}', "no parameter"),
    ],
)
def test_a_key_that_cannot_be_meant_gets_a_sentence(
    client: httpx.Client, backend: ScriptedBackend, path: str, body: bytes, part: str
) -> None:
    refused = client.post(f"/api/v1/{path}", content=body)
    assert refused.status_code == 400
    assert part in refused.json()["message"]
    assert backend.asked == []


def test_a_body_on_a_route_that_takes_none_is_refused(client: httpx.Client, backend: ScriptedBackend) -> None:
    refused = client.post("/api/v1/nodes/node01/undrain", json={"force": True})
    assert refused.status_code == 400
    assert client.post("/api/v1/nodes/node01/undrain", json={}).status_code == 200


def test_a_large_body_is_refused_whether_or_not_it_says_its_length(client: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1024

    for content in (b" " * 70_000, chunks()):
        refused = client.post("/api/v1/scale", content=content)
        assert refused.status_code == 413
        assert refused.json()["code"] == "too-large"


def test_unknown_names_come_with_the_known_ones(client: httpx.Client) -> None:
    for path, known in [
        ("nodes/node99", "node01, node02"),
        ("replicas/none", "chat-large-1a2b, chat-small-3c4d"),
    ]:
        refused = client.get(f"/api/v1/{path}")
        assert refused.status_code == 404
        assert known in refused.json()["message"]


def test_unknown_routes_and_methods_are_json_too(client: httpx.Client) -> None:
    unknown = client.get("/api/v1/nodes/")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown-route")
    wrong = client.put("/api/v1/nodes/node01")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "wrong-method")
    assert wrong.headers["allow"] == "DELETE, GET, HEAD"


def test_a_defect_is_a_sentence_and_the_next_request_is_answered(
    client: httpx.Client, backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.broken = True
    failed = client.get("/api/v1/nodes")
    assert failed.status_code == 500
    assert failed.json()["code"] == "internal-error"
    assert "defect of the control plane" not in failed.text
    assert "GET /api/v1/nodes" in caplog.text
    backend.broken = False
    assert client.get("/api/v1/nodes").status_code == 200


def test_the_documents_name_every_route_and_no_other(backend: ScriptedBackend) -> None:
    app = create_admin_app(backend, secure=False)
    routes = {
        f"{method} {re.sub(r'[{}]', '', route.path)}"
        for route in app.routes
        if isinstance(route, Route) and route.path != "/" and not route.path.startswith("/admin")
        for method in route.methods or ()
        if method != "HEAD"
    }
    documented = {
        f"{method} {path.split('?')[0].replace('{', '').replace('}', '')}"
        for method, path in re.findall(
            r"^#+ `(GET|POST|PUT|DELETE) (/(?:api/v1/|health|metrics)\S*)`", DOCS.read_text(), re.M
        )
    }
    assert documented == routes


def test_the_documents_name_every_field_of_every_answer() -> None:
    text = DOCS.read_text()
    for shape in (
        admin.ServerView, admin.NodeView, admin.ReplicaView, admin.ShardView, admin.ModelView,
        admin.ProfileView, admin.ExplainView, admin.ExplainProfile, admin.FilterTally, admin.HistoryEntry,
        admin.LogView, admin.TokenView, admin.NewToken, admin.Done, admin.Scale, admin.Drain, admin.CreateToken,
        admin_keys.KeyView, admin_keys.NewKey, admin_keys.CreateKey, admin_keys.LimitKey,
        admin.CatalogView, admin.CatalogRevisionView, admin.PlanCatalog, admin.CatalogPlan, admin.ModelPlan,
        admin.ProfilePlan, admin.ApplyCatalog, admin.AppliedCatalog, admin.NodeWeightsView,
        admin.WeightsFileView, admin.RemoveWeightsWish, admin.RemovedWeights, admin_fabrics.FabricView,
        admin_fabrics.ManagerView, admin_fabrics.CableEndView, admin_fabrics.SlowCableView,
        admin_fabrics.FabricMapView, admin_fabrics.FabricChangeView, admin_fabrics.CablingDifference,
        admin_fabrics.FabricChanges,
        audit_views.AuditEntry,
        recent_views.RequestView, recent_views.ModelRates, recent_views.ModelSeries, recent_views.RatePoint,
        topology.TopologyGraph,
        topology.TopologySwitch, topology.TopologyAdapter, topology.TopologyGroup, topology.TopologySlow,
        topology.TopologyCable, topology.TopologyTier, topology.TopologyRail, topology.TopologySizes,
        topology.LivePort, topology.LiveNode, topology.LiveReplica, topology.LiveManager, topology.TopologyLive,
    ):  # fmt: skip
        missing = [
            name for name in shape.__struct_fields__ if f"`{name}`" not in text and f'"{name}"' not in text
        ]
        assert not missing, f"{shape.__name__}: {missing}"


def test_every_json_block_of_the_documents_is_json() -> None:
    blocks = re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.S)
    assert blocks
    for block in blocks:
        json.loads(block)


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("catalog/plan", {}, "either models, or the number of a revision"),
        ("catalog/plan", {"models": [], "revision": 1}, "either models, or the number of a revision"),
        ("catalog/plan", {"models": {"a": 1}}, "shape of PlanCatalog"),
        ("catalog/plan", {"models": [7]}, "shape of PlanCatalog"),
        ("catalog/plan", {"revision": 0}, "from 1 to"),
        ("catalog/plan", {"models": [], "confirm": True}, "confirm"),
        ("catalog", {"models": []}, "base"),
        ("catalog", {"models": [], "base": 1, "note": "a\nb"}, "note must be"),
        ("catalog", {"models": [], "base": 1, "note": "x" * 201}, "note must be"),
        ("catalog", {"revision": -1, "base": 1}, "from 1 to"),
    ],
)
def test_a_catalog_s_body_that_cannot_be_meant_gets_a_sentence(
    client: httpx.Client, backend: ScriptedBackend, path: str, body: dict[str, Any], part: str
) -> None:
    refused = client.post(f"/api/v1/{path}", json=body)
    assert refused.status_code == 400
    assert part in refused.json()["message"]
    assert backend.asked == []


def test_a_catalog_may_be_larger_than_other_bodies_but_not_without_bound(client: httpx.Client) -> None:
    model = {"name": "a", "profiles": [{"engine": "sim", "args": ["x" * 3_000_000]}]}
    assert client.post("/api/v1/catalog/plan", json={"models": [model]}).status_code == 200
    model["profiles"][0]["args"] *= 2  # type: ignore[index]
    refused = client.post("/api/v1/catalog/plan", json={"models": [model]})
    assert (refused.status_code, refused.json()["code"]) == (413, "too-large")


def test_a_body_without_bottom_gets_a_sentence(client: httpx.Client) -> None:
    for path, body in (
        ("scale", '{"model":' + "[" * 30_000),
        ("catalog/plan", '{"models":[{"a":' + "[" * 30_000),
    ):
        refused = client.post(f"/api/v1/{path}", content=body)
        assert refused.status_code == 400


@pytest.mark.parametrize(
    "query", ["revision=0", "revision=-1", "revision=x", "revision=1&revision=2", "number=1"]
)
def test_a_revision_is_a_number(client: httpx.Client, query: str) -> None:
    assert client.get(f"/api/v1/catalog?{query}").status_code == 400


def test_the_last_requests_are_asked_for_by_what_they_were(
    client: httpx.Client, backend: ScriptedBackend
) -> None:
    backend.recent.tell(
        Outcome("chat-small", "chat-small-3c4d", 200, key="k1", total_s=1.0),
        Outcome("org/chat-large", None, 503, error="no engine is ready", total_s=0.1),
        Outcome("", None, 401, error="no key"),
    )
    assert [each["id"] for each in client.get("/api/v1/requests").json()] == [3, 2, 1]

    def ids(**query: Any) -> list[int]:
        return [each["id"] for each in client.get("/api/v1/requests", params=query).json()]

    assert ids(model="chat") == [2]
    assert ids(key="alice") == [1]
    assert ids(endpoint="chat-small-3c4d") == [1]
    assert ids(status="503") == ids(status="5xx") == [2]
    assert ids(status="failed") == [3, 2]
    assert ids(before=3, limit=1) == [2]
    for wrong in ({"status": "5x"}, {"status": "²xx"}, {"limit": 0}, {"model": "\n"}, {"modle": "chat"}):
        refused = client.get("/api/v1/requests", params=wrong)
        assert refused.status_code == 400, wrong
        assert refused.json()["message"]


def test_rates_are_told_for_each_model_and_its_last_hour(client: httpx.Client, backend: ScriptedBackend) -> None:
    backend.recent.now = 30.0
    backend.recent.tell(Outcome("chat-small", "chat-small-3c4d", 200, total_s=1.0, completion_tokens=60))
    rates = {each["model"]: each for each in client.get("/api/v1/rates").json()}
    assert rates["chat-small"]["tokens_per_s"] == 2.0
    assert rates["org/chat-large"]["requests_per_s"] == 0
    series = client.get("/api/v1/rates/series", params={"model": "chat-small"}).json()
    assert [point["requests"] for point in series["points"]] == [0, 0, 0, 1]
    assert client.get("/api/v1/rates/series").status_code == 400
    assert "org/chat-large" in client.get("/api/v1/rates/series", params={"model": "x"}).json()["message"]

"""API keys from `ctl` to the routers: made, used, limited, revoked, over restarts, and without a server."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from llmgw.messages.routes import RouteTable
from tests.endtoend.conftest import Running, llmgw, until
from tests.endtoend.servers import Server, server
from tests.engines.running import Program, sim_engine
from tests.pages.visitor import Visitor
from tests.server.exposition import value

MODELS = ("local", "other")


@pytest.fixture(scope="module")
def engine() -> Iterator[Program]:
    with sim_engine("--served-name", "local", "--tokens-per-s", "500") as running:
        running.url()
        yield running


def models(engine: Program) -> list[dict[str, Any]]:
    endpoint = {"url": engine.url(), "model": "local"}
    return [
        {"name": "local", "aliases": ["alias"], "endpoints": [endpoint]},
        {"name": "other", "endpoints": [endpoint]},
    ]


@pytest.fixture
def alone(tmp_path: Path, engine: Program) -> Iterator[Server]:
    """A server without a key."""
    with server(tmp_path, models=models(engine), router={"workers": 2}) as started:
        yield started


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: Program) -> Iterator[Server]:
    """One for the tests that only make keys of their own; it has one that is `taken`."""
    with server(tmp_path_factory.mktemp("keys"), models=models(engine), router={"workers": 2}) as started:
        started.ctl("keys", "create", "taken")
        yield started


def ask(running: Server, key: str | None, model: str = "local", **more: Any) -> httpx.Response:
    """One small request over a connection of its own: whichever router is free takes it."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, **more}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx.Client(trust_env=False, timeout=20) as client:
        return client.post(f"{running.api}/v1/chat/completions", json=body, headers=headers)


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"]) if answer.status_code != 200 else ""


def create(running: Server, name: str, *options: str) -> str:
    """A key that both routers have heard of, as far as so many connections can tell."""
    key = running.ctl("keys", "create", name, *options).strip()
    until(lambda: all(code(ask(running, key)) not in ("invalid_api_key", "no_api_keys") for _ in range(6)), 10)
    return key


def refuse(running: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = llmgw("ctl", *arguments, env={"LLMGW_STATE": str(running.state), "NO_COLOR": "1", "COLUMNS": "200"})
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert "defect" not in done.stderr
    return done


def test_the_first_key_closes_the_gateway_and_revoking_it_does_not_open_it(alone: Server) -> None:
    assert ask(alone, None).status_code == 200
    assert ask(alone, "whatever").status_code == 200
    key = create(alone, "alice")
    assert key.startswith("llmgw-")
    assert code(ask(alone, None)) == "missing_api_key"
    assert code(ask(alone, key[:-1])) == "invalid_api_key"
    assert ask(alone, key).status_code == 200
    assert "alice" in alone.ctl("keys", "list")
    assert key not in alone.ctl("keys", "list", "-o", "json") + alone.ctl("history")

    begun = time.monotonic()
    said = alone.ctl("keys", "revoke", "alice")
    assert "requests without a key stay refused" in said
    until(lambda: all(ask(alone, key).status_code == 401 for _ in range(6)), 5)
    assert time.monotonic() - begun < 5, "the command itself included"
    assert ask(alone, None).status_code == 401
    assert "every request to the model API is refused" in alone.ctl("status")


def test_a_revoked_key_is_refused_within_a_second_by_every_router(running: Server) -> None:
    create(running, "stays")
    key = create(running, "leaked")
    token = json.loads((running.state / "admin.json").read_text())["token"]
    prefix = "-".join(key.split("-")[:2])
    with httpx.Client(trust_env=False, timeout=40) as kept:
        # A connection that has proved itself before is with one router, new ones are with either.
        headers = {"authorization": f"Bearer {key}"}
        assert kept.get(f"{running.api}/v1/models", headers=headers).status_code == 200
        answer = httpx.delete(
            f"{running.admin}/api/v1/keys/{prefix}", headers={"authorization": f"Bearer {token}"}, trust_env=False
        )
        told_at = time.monotonic()
        assert answer.status_code == 200, answer.text
        last_good = 0.0
        while time.monotonic() - told_at < 2.0:
            fresh = ask(running, key)
            old = kept.get(f"{running.api}/v1/models", headers=headers)
            if 200 in (fresh.status_code, old.status_code):
                last_good = time.monotonic() - told_at
        assert last_good < 1.0
        assert code(fresh) == "invalid_api_key"


def test_keys_survive_every_restart_and_are_asked_for_all_the_while(alone: Server) -> None:
    key = create(alone, "alice", "--models", "local")
    alone.kill()
    statuses: Counter[tuple[bool, int]] = Counter()

    def both() -> None:
        statuses[True, ask(alone, key).status_code] += 1
        statuses[False, ask(alone, None).status_code] += 1

    for _ in range(5):
        both()
    for router in alone.routers():
        os.kill(router.pid, signal.SIGTERM)
    until(lambda: not alone.routers(), 10)
    alone.start_again()
    alone.wait_serving()
    for _ in range(20):
        both()
    # With routers that live: the server imports their table, and publishes one with the store's keys.
    alone.kill()
    alone.start_again()

    def published() -> bool:
        both()
        try:
            return bool(alone.get("server")["settling"] is not None)
        except httpx.HTTPError:
            return False

    until(published, 20)
    for _ in range(20):
        both()
    assert set(statuses) == {(True, 200), (False, 401)}
    assert code(ask(alone, key, "other")) == "model_not_allowed"
    table = msgspec.msgpack.decode((alone.state / "routes.msgpack").read_bytes(), type=RouteTable)
    assert table.keys_required
    assert [each.models for each in table.keys if not each.of_server] == [["local"]]
    for path in alone.state.iterdir():
        if path.is_file():
            assert key.rpartition("-")[2].encode() not in path.read_bytes(), path
            assert key.encode() not in path.read_bytes(), path


def test_without_a_server_routers_that_start_from_disk_ask_for_the_same_keys(
    tmp_path: Path, engine: Program
) -> None:
    with server(tmp_path, models=models(engine), router={"workers": 1}) as running:
        key = create(running, "alice")
        running.kill()
        (router,) = running.routers()
        os.kill(router.pid, signal.SIGKILL)
        until(lambda: not running.routers(), 10)
        listen = running.api.removeprefix("http://")
        with Running.llmgw(
            "router", f"--state={running.state}", f"--listen={listen}", log=tmp_path / "unit"
        ) as unit:
            unit.says("serving on")
            assert ask(running, key).status_code == 200
            assert ask(running, None).status_code == 401


def test_models_aliases_and_lists_are_the_keys_own(running: Server) -> None:
    key = create(running, "mia", "--models", "alias")
    headers = {"x-api-key": key}
    listed = httpx.get(f"{running.api}/v1/models", headers=headers, trust_env=False).json()
    assert [each["id"] for each in listed["data"]] == ["alias", "local"]
    assert ask(running, key, "alias").status_code == 200
    assert code(ask(running, key, "other")) == "model_not_allowed"
    said = running.ctl("keys", "limit", "mia", "--all-models")
    assert "all models" in said
    until(lambda: all(ask(running, key, "other").status_code == 200 for _ in range(6)), 5)


def test_a_limit_holds_over_all_routers_and_new_ones_hold_at_once(running: Server) -> None:
    limit = 40
    key = running.ctl("keys", "create", "lim", "--requests-per-minute", str(limit)).strip()
    begun = time.monotonic()
    codes: Counter[str] = Counter()
    while time.monotonic() - begun < 5.0:
        codes[code(ask(running, key))] += 1
    lasted_s = time.monotonic() - begun
    assert set(codes) <= {"", "requests_per_minute_exceeded", "invalid_api_key", "no_api_keys"}
    # What comes back meanwhile, and a request for each router that may owe one.
    assert limit * 7 / 8 <= codes[""] <= limit + limit * lasted_s / 60 + 2
    assert codes["requests_per_minute_exceeded"] > 0

    running.ctl("keys", "limit", "lim", "--requests-per-minute", "none", "--concurrency", "1")
    until(lambda: all(ask(running, key).status_code == 200 for _ in range(6)), 5)
    (shown,) = [each for each in running.get("keys") if each["name"] == "lim"]
    assert (shown["requests_per_minute"], shown["concurrency"]) == (None, 1)


def test_connections_that_all_land_on_one_router_get_the_limit_too(running: Server) -> None:
    limit = 60
    key = running.ctl("keys", "create", "one", "--requests-per-minute", str(limit)).strip()
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": "local", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    with httpx.Client(trust_env=False, timeout=10, headers=headers) as client:
        url = f"{running.api}/v1/chat/completions"
        until(lambda: client.post(url, json=body).status_code == 200, 5)
        begun, served = time.monotonic(), 1
        while time.monotonic() - begun < 4.0:
            served += client.post(url, json=body).status_code == 200
        assert limit * 7 / 8 <= served <= limit + limit * 4.1 / 60 + 2


def test_used_keys_are_counted_and_their_last_use_is_shown(alone: Server) -> None:
    key = create(alone, "alice")
    assert ask(alone, None).status_code == 401

    def counted() -> bool:
        text = httpx.get(f"{alone.admin}/metrics", trust_env=False).text
        without = value(text, "llmgw_key_requests_total", key="(none)", status_class="4xx")
        return bool(without) and bool(value(text, "llmgw_key_requests_total", key="alice", status_class="2xx"))

    until(counted, 10)
    used_at = alone.get("keys")[0]["last_used_at"]
    assert abs(used_at - time.time()) < 60

    def kept() -> bool:
        database = sqlite3.connect(alone.state / "llmgw.db")
        try:
            return database.execute("SELECT last_used_at FROM api_keys").fetchone()[0] is not None
        finally:
            database.close()

    until(kept, 10)
    alone.kill()
    alone.start_again()
    alone.wait_serving()
    assert key
    assert alone.get("keys")[0]["last_used_at"] is not None


def test_a_database_that_takes_nothing_fails_no_request_and_keeps_no_revoked_key_alive(alone: Server) -> None:
    key, other = create(alone, "alice"), create(alone, "bob")
    database = sqlite3.connect(alone.state / "llmgw.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        for _ in range(10):
            begun = time.monotonic()
            assert ask(alone, key).status_code == 200
            assert time.monotonic() - begun < 2
        revoking = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "ctl", "keys", "revoke", "alice"],
            env={**os.environ, "LLMGW_STATE": str(alone.state)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        until(lambda: all(ask(alone, key).status_code == 401 for _ in range(6)), 8)
        assert ask(alone, other).status_code == 200
    finally:
        database.execute("ROLLBACK")
        database.close()
    assert revoking.wait(20) in (0, 1)
    assert revoking.stderr is not None
    revoking.stderr.close()
    until(lambda: [each["name"] for each in alone.get("keys")] == ["bob"], 10)


def test_beyond_loopback_keys_are_needed_from_the_start_unless_it_is_said_aloud(
    tmp_path: Path, engine: Program
) -> None:
    with server(tmp_path, models=models(engine)) as running:
        port = running.api.rpartition(":")[2]
        running.process.process.terminate()
        running.process.process.wait(20)
        running.configure(listen=f"0.0.0.0:{port}")
        running.start_again()
        running.wait_serving()
        refused = ask(running, None)
        assert code(refused) == "no_api_keys"
        assert "llmgw ctl keys create NAME" in refused.json()["error"]["message"]
        assert httpx.get(f"{running.api}/health", trust_env=False).status_code == 200
        assert "no-api-keys" in [problem["check"] for problem in running.get("server")["problems"]]
        key = create(running, "alice")
        assert ask(running, key).status_code == 200
        assert "no-api-keys" not in [problem["check"] for problem in running.get("server")["problems"]]

        running.process.process.terminate()
        running.process.process.wait(20)
        running.configure(auth="none")
        running.start_again()
        running.wait_serving()
        assert ask(running, None).status_code == 200
        assert ask(running, "wrong").status_code == 200
        assert "api-keys-not-asked-for" in [problem["check"] for problem in running.get("server")["problems"]]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "part"),
    [
        (("create", "a b"), 1, "is not a key name"),
        (("create", "-x"), 2, "No such option"),
        (("create", "alice", "--models", "lcoal"), 1, "did you mean 'local'?"),
        (("create", "alice", "--models", "a,,b"), 2, "a name is empty"),
        (("create", "alice", "--requests-per-minute", "0"), 2, "neither a whole number from 1 up nor none"),
        (("create", "alice", "--tokens-per-minute", "1e6"), 2, "--tokens-per-minute"),
        (("create", "alice", "--concurrency", "-1"), 2, "--concurrency"),
        (("create", "alice", "--concurrency", "99999999"), 1, "from 1 to 1000000"),
        (("create", "alice", "--priority", "high"), 2, "--priority"),
        (("create", "alice", "--priority", "1000"), 1, "from -100 to 100"),
        (("create", "alice", "--expires", "soon"), 2, "neither a duration nor a date"),
        (("create", "alice", "--expires", "2020-01-01"), 2, "lies in the past"),
        (("create", "alice", "--expires", "2027-02-30"), 2, "no day of the calendar"),
        (("create", "alice", "--expires", "0s"), 2, "ends at once"),
        (("limit", "nobody", "--concurrency", "1"), 1, "there is no key 'nobody'; the keys are "),
        (("limit", "taken"), 2, "nothing was named that should change"),
        (("limit", "taken", "--models", "local", "--all-models"), 2, "contradict"),
        (("revoke", "takne"), 1, "did you mean 'taken'?"),
        (("create", "taken"), 1, "there is a key named taken already"),
    ],
)
def test_what_cannot_be_meant_gets_a_sentence(
    running: Server, arguments: tuple[str, ...], exit_code: int, part: str
) -> None:
    done = refuse(running, "keys", *arguments)
    assert done.returncode == exit_code
    assert part in done.stderr
    assert not {"alice", "nobody"} & {each["name"] for each in running.get("keys")}


def test_json_has_the_key_once_and_the_history_has_who_did_what(running: Server) -> None:
    made = json.loads(running.ctl("keys", "create", "json", "--expires", "1h", "--priority", "5", "-o", "json"))
    assert made["key"].startswith(f"llmgw-{made['id']}-")
    (shown,) = [each for each in json.loads(running.ctl("keys", "list", "-o", "json")) if each["name"] == "json"]
    assert shown["prefix"] == f"llmgw-{made['id']}"
    assert (shown["priority"], shown["created_by"], shown["expired"]) == (5, "local", False)
    assert 3500 < shown["expires_at"] - time.time() <= 3600
    running.ctl("keys", "limit", shown["prefix"], "--expires", "never")
    running.ctl("keys", "revoke", "json")
    events = [(each["event"], each["reason"]) for each in running.get("history?subject=json")]
    assert [event for event, _ in events] == ["key revoked", "key limited", "key created"]
    assert all("by local" in reason and shown["prefix"] in reason for _, reason in events)
    assert made["key"] not in json.dumps(events)
    running.ctl("keys", "create", "json")
    running.ctl("keys", "revoke", "json")


def test_the_playground_needs_no_key_is_counted_by_its_own_name_and_leaves_nothing_in_flight(
    running: Server,
) -> None:
    visitor = Visitor(running.admin)
    visitor.log_in(json.loads((running.state / "admin.json").read_text())["token"])
    headers = {"x-csrf-token": visitor.csrf()}
    body = {"model": "local", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}

    def chat() -> int:
        return visitor.http.post("/admin/playground/chat", json=body, headers=headers).status_code

    assert [chat() for _ in range(8)] == [200] * 8, "whichever router takes it"
    assert ask(running, None).status_code == 401
    endless = {**body, "max_tokens": 4000, "stream": True}
    with visitor.http.stream("POST", "/admin/playground/chat", json=endless, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        parts = answer.iter_raw()
        assert b"data: " in next(parts)
        request_id = answer.headers["x-request-id"]
    (left,) = until(lambda: running.get(f"requests?id={request_id}"), 10)
    assert (left["key"], left["status"], left["stream"]) == ("(playground)", 499, True)
    until(lambda: [each["in_flight"] for each in running.get("rates")] == [0, 0], 10)
    assert len(running.get("requests?key=(playground)&status=2xx")) == 8
    assert "(playground)" in running.ctl("requests", "--failed", "--key", "(playground)")

    def used() -> dict[str, Any]:
        return next(
            (each for each in running.get("usage?by=key")["entries"] if each["key"] == "(playground)"), {}
        )

    until(lambda: used().get("requests") == 9, 10)
    assert used()["completion_tokens"] >= 24
    assert "(playground)" in visitor.http.get("/admin/usage").text
    assert "(playground)" not in {each["name"] for each in running.get("keys")}
    assert running.get("server")["api_keys"] == len(running.get("keys"))
    # The next server has another secret, and routers that live hear of it.
    running.kill()
    running.start_again()
    running.wait_serving()
    visitor = Visitor(running.admin)
    visitor.log_in(json.loads((running.state / "admin.json").read_text())["token"])
    headers["x-csrf-token"] = visitor.csrf()
    until(lambda: [chat() for _ in range(6)] == [200] * 6, 20)

"""Who is let in: tokens, guesses, and plain HTTP beyond loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmgw.server.admin.app import create_admin_app
from llmgw.server.admin.auth import FAILURE_REFILL_S, FAILURES_BURST_MAX, Attempts, peer_key
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin


def ask(url: str, token: str | None = None, **headers: str) -> httpx.Response:
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return httpx.get(f"{url}/api/v1/server", headers=headers, trust_env=False, verify=False)


def test_health_needs_no_token_and_tells_nothing(served: ServedAdmin) -> None:
    assert httpx.get(f"{served.url}/health", trust_env=False, verify=False).json() == {"status": "ok"}


def test_everything_else_needs_a_token(served: ServedAdmin) -> None:
    for path in ("/api/v1/server", "/api/v1/nodes/x", "/", "/nothing"):
        refused = httpx.get(served.url + path, trust_env=False, verify=False)
        assert refused.status_code == 401
        assert refused.json()["code"] == "no-token"
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert ask(served.url, TOKEN).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer", "Basic eDp5", TOKEN, "Bearer " + "x" * 600])
def test_what_is_no_bearer_token_never_reaches_the_backend(
    served: ServedAdmin, backend: ScriptedBackend, value: str
) -> None:
    assert ask(served.url, authorization=value).status_code == 401
    assert backend.authenticated == 0


def test_guesses_are_limited_and_the_owner_of_a_token_is_not_locked_out(backend: ScriptedBackend) -> None:
    clock = {"now": 0.0}
    server = ServedAdmin(backend, attempts=Attempts(lambda: clock["now"]))
    try:
        assert ask(server.url, TOKEN).status_code == 200
        answers = [ask(server.url, f"guess-{n}").status_code for n in range(FAILURES_BURST_MAX + 5)]
        assert answers == [401] * FAILURES_BURST_MAX + [429] * 5
        limited = ask(server.url, "guess")
        assert int(limited.headers["retry-after"]) <= FAILURE_REFILL_S
        asked = backend.authenticated
        ask(server.url, "guess")
        assert backend.authenticated == asked, "a limited guess costs no look-up"
        assert ask(server.url, TOKEN).status_code == 200
        clock["now"] += FAILURE_REFILL_S
        assert ask(server.url, "guess").status_code == 401
        assert ask(server.url, "guess").status_code == 429
    finally:
        server.stop()


def test_a_token_that_was_revoked_is_refused_at_once(served: ServedAdmin, backend: ScriptedBackend) -> None:
    assert ask(served.url, TOKEN).status_code == 200
    backend.tokens_known.clear()
    assert ask(served.url, TOKEN).json()["code"] == "wrong-token"


def test_the_table_of_attempts_is_bounded() -> None:
    attempts = Attempts(lambda: 0.0, peers_max=50)
    for n in range(500):
        attempts.take(f"10.0.{n // 250}.{n % 250}")
    assert len(attempts) == 50


def test_right_tokens_leave_no_trace_in_the_table() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(100):
        assert attempts.take("10.0.0.1") == 0
        attempts.give_back("10.0.0.1")
    assert len(attempts) == 0


def test_ipv6_peers_are_counted_by_their_network() -> None:
    assert peer_key("2001:db8:1:2::1") == peer_key("2001:db8:1:2:ffff::9") != peer_key("2001:db8:1:3::1")
    assert peer_key("::ffff:10.0.0.1") == peer_key("10.0.0.1")


def call(app: Callable[..., Any], peer: str, path: str = "/api/v1/server", **headers: str) -> int:
    """The status that `app` answers a peer with, without a socket: loopback is the only peer here."""
    statuses: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent = headers or {"authorization": f"Bearer {TOKEN}"}
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in sent.items()]
    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": b"", "headers": pairs,
        "client": (peer, 1), "root_path": "", "scheme": "http", "server": ("x", 80), "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return statuses[0]


def test_without_tls_only_loopback_is_answered(backend: ScriptedBackend) -> None:
    plain, secure = create_admin_app(backend, secure=False), create_admin_app(backend, secure=True)
    assert call(plain, "10.1.2.3") == 403
    assert backend.authenticated == 0
    assert call(plain, "127.0.0.1") == call(plain, "::1") == call(plain, "::ffff:127.0.0.1") == 200
    assert call(secure, "10.1.2.3") == 200


def test_metrics_need_no_token_on_this_host_and_one_everywhere_else(
    served: ServedAdmin, backend: ScriptedBackend
) -> None:
    scraped = httpx.get(f"{served.url}/metrics", trust_env=False)
    assert scraped.status_code == 200
    assert scraped.headers["content-type"].startswith("text/plain; version=")
    assert scraped.text == asyncio.run(backend.metrics()).decode()
    secure = create_admin_app(backend, secure=True)
    assert call(secure, "127.0.0.1", "/metrics", host="127.0.0.1:8081") == 200
    assert call(secure, "::1", "/metrics", host="[::1]:8081") == 200
    assert call(secure, "::ffff:127.0.0.1", "/metrics", host="localhost:8081") == 200
    assert call(secure, "10.1.2.3", "/metrics", host="127.0.0.1:8081") == 401
    assert call(secure, "10.1.2.3", "/metrics", host="x", authorization=f"Bearer {TOKEN}") == 200
    assert call(secure, "127.0.0.1", "/api/v1/server", host="127.0.0.1:8081") == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rebound.example.org:8081"},
        {"host": "127.0.0.1.example.org"},
        {"host": "127.0.0.1", "x_forwarded_for": "10.1.2.3"},
        {"host": "127.0.0.1", "forwarded": "for=10.1.2.3"},
        {"host": "127.0.0.1", "authorization": "Bearer wrong"},
        {"accept": "*/*"},
    ],
)
def test_a_request_that_only_looks_local_needs_a_token_for_metrics(
    backend: ScriptedBackend, headers: dict[str, str]
) -> None:
    assert call(create_admin_app(backend, secure=True), "127.0.0.1", "/metrics", **headers) == 401

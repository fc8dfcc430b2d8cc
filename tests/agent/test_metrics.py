"""What an agent tells a Prometheus that scrapes it, from a real process, and whom it answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from llmgw.agent.metrics.exposition import FAMILIES
from llmgw.agent.metrics.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsHttp
from llmgw.agent.metrics.listener import read_token
from llmgw.config.load import ConfigError, load_agent_config
from llmgw.messages.agent import StartShard
from llmgw.sim.hardware import set_gpu, write_hardware
from tests.agent.fakes import make_spec
from tests.agent.test_front_door import Site, end
from tests.agent.waiting import until
from tests.server.exposition import families, lint, value

TOKEN = "a-token-of-a-scraper"


def follow_log(agent: subprocess.Popen[bytes]) -> Callable[[], str | None]:
    """Where the agent says that its metrics are, once it has; its log is read to the end."""
    found: list[str] = []

    def read() -> None:
        assert agent.stderr is not None
        told = (re.search(rb"https?://127\.0\.0\.1:\d+/metrics", line) for line in agent.stderr)
        found.extend(match[0].decode() for match in told if match)

    threading.Thread(target=read, daemon=True).start()
    return lambda: found[-1] if found else None


def test_an_agent_tells_of_its_hardware_its_shards_and_its_link_to_the_server(tmp_path: Path) -> None:
    site = Site(tmp_path)
    hardware = write_hardware(tmp_path / "hardware", gpus=2, adapters=2, node="node01")
    set_gpu(tmp_path / "hardware", 1, "xid")
    discovery = {"nvidia_smi": str(hardware.nvidia_smi), "ib_root": str(hardware.ib_root)}
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")

    async def test() -> None:
        async with site.serving() as port:
            metrics = {"listen": "127.0.0.1:0"}
            agent = site.start_agent(site.write_config(port, discovery=discovery, metrics=metrics))
            url = follow_log(agent)
            try:
                await until(lambda: site.registers and url(), "the agent registers and listens", 20)
                spec = make_spec("r1-0", engine="llamacpp", source=str(model), model="org/m")
                lost = make_spec("r2-0", engine="llamacpp", source=str(tmp_path / "none.gguf"), model="org/n")
                site.commands += [StartShard(seq=1, spec=spec), StartShard(seq=2, spec=lost)]
                await until(lambda: site.phase("r1-0") == "ready", "the engine is ready", 20)
                await until(lambda: site.phase("r2-0") == "failed", "the other has failed", 20)
                async with httpx.AsyncClient(trust_env=False) as client:
                    answer = await client.get(url() or "")
                    refused = await client.get(url() or "", headers={"host": "evil.example"})
                    elsewhere = await client.get((url() or "").removesuffix("metrics"))
                assert (refused.status_code, elsewhere.status_code) == (403, 404)
                assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
                text = answer.text
                assert lint(text) == []
                assert set(families(text)) == {family.name.removesuffix("_total") for family in FAMILIES}
                assert value(text, "llmgw_agent_connected", node="node01") == 1
                age = value(text, "llmgw_agent_answer_age_seconds", node="node01")
                assert age is not None
                assert 0 <= age < 10
                assert value(text, "llmgw_shards", node="node01", model="org/m", phase="ready") == 1
                assert value(text, "llmgw_shard_failures_total", node="node01", model="org/n") == 1
                assert value(text, "llmgw_gpu_power_limit_watts", node="node01", gpu="0") == 700
                assert value(text, "llmgw_gpu_usable", node="node01", gpu="1") == 0
                assert value(text, "llmgw_gpu_xid_errors_total", node="node01", gpu="1", xid="119") == 1
                at = {"node": "node01", "adapter": "mlx5_0", "port": "1"}
                assert value(text, "llmgw_ib_port_counter_total", **at, counter="link_downed") == 0
                left = value(text, "llmgw_certificate_seconds_left", name="node01", kind="node")
                assert left is not None
                assert left > 86400
                assert value(text, "llmgw_findings", check="gpu-unusable", severity="error") == 1
            finally:
                await asyncio.to_thread(end, agent, signal.SIGTERM)

    try:
        asyncio.run(test())
    finally:
        site.end_engines()


def test_over_tls_only_the_token_of_the_file_is_answered_and_the_server_need_not_be_there(tmp_path: Path) -> None:
    site = Site(tmp_path)
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    token_file.chmod(0o600)
    tls = {"cert": site.server["cert"], "key": site.server["key"]}
    metrics = {"listen": "127.0.0.1:0", "tls": tls, "token_file": str(token_file)}
    trust = ssl.create_default_context(cafile=site.server["ca"])

    async def test() -> None:
        agent = site.start_agent(site.write_config(1, metrics=metrics))
        url = follow_log(agent)
        try:
            await until(url, "the agent listens", 20)
            async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
                assert (await client.get(url() or "")).status_code == 401
                wrong = await client.get(url() or "", headers={"authorization": "Bearer x"})
                assert wrong.status_code == 401
                headers = {"authorization": f"Bearer {TOKEN}"}
                text = (await client.get(url() or "", headers=headers)).text
                while not value(text, "llmgw_agent_call_failures_total", node="node01"):
                    text = (await client.get(url() or "", headers=headers)).text
                assert lint(text) == []
                assert value(text, "llmgw_agent_connected", node="node01") == 0
                assert value(text, "llmgw_agent_answer_age_seconds", node="node01") is None
        finally:
            await asyncio.to_thread(end, agent, signal.SIGTERM)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_beyond_loopback_metrics_need_a_certificate_and_a_token(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text('server: https://gw:8443\nmetrics: {listen: "0.0.0.0:9401", token_file: /x}\n')
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:9401 is beyond loopback without metrics\.tls; set"):
        load_agent_config(path, {})


def test_a_token_that_others_may_read_or_that_is_short_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.write_text("short\n")
    with pytest.raises(ValueError, match="shorter than 16"):
        read_token(path)


@asynccontextmanager
async def answering(http: MetricsHttp) -> AsyncIterator[int]:
    server = await asyncio.start_server(http.answer, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


LOCAL = b"Host: 127.0.0.1:9401\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n" + LOCAL + b"\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.0\r\nHost: [::1]:9401\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 403),
        (b"POST /metrics HTTP/1.1\r\n" + LOCAL + b"\r\n", 405),
        (b"GET /other HTTP/1.1\r\n" + LOCAL + b"\r\n", 404),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET http://evil/metrics HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_only_get_metrics_of_this_host_is_answered(request_bytes: bytes, status: int) -> None:
    async def text() -> bytes:
        return b"llmgw_x 1\n"

    async def test() -> None:
        async with answering(MetricsHttp(text, None)) as port:
            answer = await exchange(port, request_bytes)
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert answer.endswith(b"\r\n\r\nllmgw_x 1\n") == (status == 200)

    asyncio.run(test())


def test_a_failing_scrape_and_too_many_connections_are_said_and_end_nothing() -> None:
    async def text() -> bytes:
        raise RuntimeError("odd")

    async def test() -> None:
        async with answering(MetricsHttp(text, None)) as port:
            request = b"GET /metrics HTTP/1.1\r\n" + LOCAL + b"\r\n"
            assert (await exchange(port, request)).startswith(b"HTTP/1.1 500 ")
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
            assert await exchange(port, request) == b""
            for _, writer in idle:
                writer.close()
            answer = b""
            while not answer.startswith(b"HTTP/1.1 500 "):
                answer = await exchange(port, request)

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_connection_that_reads_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw.agent.metrics.http.TIMEOUT_S", 0.2)

    async def text() -> bytes:
        return b"x" * 50_000_000

    async def test() -> None:
        closed = asyncio.Event()
        http = MetricsHttp(text, None)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await http.answer(reader, writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            closed.set()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await asyncio.wait_for(closed.wait(), 10)
        server.close()

    asyncio.run(test())

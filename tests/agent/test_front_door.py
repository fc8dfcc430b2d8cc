"""The agent as its own process, over mutual TLS, with an engine that is llama.cpp to it."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from llmgw.agent.processes import uncovered
from llmgw.messages.agent import (
    Command,
    Commands,
    Inventory,
    Poll,
    Refusal,
    Register,
    Registered,
    Renew,
    Renewed,
    Report,
    Reported,
    StartShard,
    StopShard,
)
from llmgw.messages.findings import Finding
from tests.agent.fakes import PROGRAM, make_spec
from tests.agent.test_supervisor import PORTS, alive
from tests.agent.waiting import until

REPOSITORY = Path(__file__).parent.parent.parent


class Site:
    """An authority, a server that answers as the hub would, and one node's files."""

    def __init__(self, folder: Path, *, certificate_age_days: float = 0.0) -> None:
        from llmgw.pki.authority import Authority
        from llmgw.pki.handout import write_files

        now = time.time()
        self.folder = folder
        self.work_dir = folder / "work"
        self.authority = Authority.create(folder / "pki", now=now - 86400 * certificate_age_days)
        self.server = write_files(self.authority.issue_server(["127.0.0.1"], now), folder / "server")
        issued = self.authority.issue_client("node01", "127.0.0.1", now - 86400 * certificate_age_days)
        self.client = write_files(issued, folder / "client")
        self.registers: list[Register] = []
        self.reports: list[Report] = []
        self.commands: list[Command] = []
        self.serials: list[str] = []
        self.acked = 0
        self.renews = True

    def write_config(self, port: int, **changes: Any) -> Path:
        """`changes` are keys of agent.yaml, at its top."""
        llama = self.folder / "llama-server"
        llama.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} "$@"\n')
        llama.chmod(0o755)
        config = {
            "node_id": "node01",
            "server": f"https://127.0.0.1:{port}",
            "tls": self.client,
            "mgmt_addr": "127.0.0.1",
            "heartbeat_interval": "200ms",
            "reconnect_base": "50ms",
            "reconnect_max": "500ms",
            "discovery": {"nvidia_smi": "/nonexistent/nvidia-smi", "ib_root": str(self.folder / "no-ib")},
            "engines": {"llamacpp": {"bin": str(llama)}},
            "supervisor": {
                "work_dir": str(self.work_dir),
                "port_range": PORTS,
                "health_interval": "50ms",
                "stop_timeout": "3s",
            },
        }
        path = self.folder / "agent.yaml"
        path.write_text(yaml.safe_dump({**config, **changes}))
        return path

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.server["ca"])
        context.load_cert_chain(self.server["cert"], self.server["key"])
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length")]
                body = await reader.readexactly(int(lengths[0].partition(":")[2]))
                tls = writer.get_extra_info("ssl_object")
                self.serials.append(tls.getpeercert()["serialNumber"])
                status, message = await self._answer(head.split()[1], body, tls.getpeercert(True))
                raw = msgspec.json.encode(message)
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(raw), raw))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, der: bytes) -> tuple[int, Any]:
        from llmgw.pki.peer import peer_from_der
        from llmgw.pki.renewal import Renewer

        if path.endswith("/register"):
            self.registers.append(msgspec.json.decode(body, type=Register))
            return 200, Registered(session=str(len(self.registers)), server_version="1", poll_wait_s=0.5)
        if path.endswith("/renew") and not self.renews:
            return 501, Refusal(code="no_renewal", message="this server renews nothing")
        if path.endswith("/renew"):
            renewer = Renewer(self.authority.renewal_cert_pem, self.authority.renewal_key_pem)
            csr = msgspec.json.decode(body, type=Renew).csr_pem
            return 200, Renewed(cert_pem=renewer.renew(csr, peer_from_der(der), time.time()))
        if path.endswith("/report"):
            report = msgspec.json.decode(body, type=Report)
            if report.session != str(len(self.registers)):
                return 410, Refusal(code="session", message="register again")
            self.reports.append(report)
            return 200, Reported()
        poll = msgspec.json.decode(body, type=Poll)
        if poll.session != str(len(self.registers)):
            return 410, Refusal(code="session", message="register again")
        self.acked = poll.acked
        for _ in range(10):
            waiting = [command for command in self.commands if command.seq > poll.acked]
            if waiting:
                return 200, Commands(commands=waiting)
            await asyncio.sleep(0.05)
        return 200, Commands()

    def start_agent(self, config: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "llmgw", "agent", "--config", str(config)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HTTPS_PROXY": "http://127.0.0.1:1"},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def phase(self, shard_id: str) -> str | None:
        phases = [
            each.phase for report in self.reports for each in report.shards if each.spec.shard_id == shard_id
        ]
        return phases[-1] if phases else None

    def end_engines(self) -> None:
        for info in uncovered(os.path.realpath(self.work_dir), []):
            os.kill(info.pid, signal.SIGKILL)


def warnings(inventory: Inventory) -> list[Finding]:
    return [finding for finding in inventory.findings if finding.check == "profile-warning"]


def end(agent: subprocess.Popen[bytes], number: signal.Signals) -> int:
    agent.send_signal(number)
    code = agent.wait(10)
    if agent.stderr is not None:
        agent.stderr.close()
    return code


def test_an_engine_is_started_survives_two_agents_and_is_stopped_by_the_third(tmp_path: Path) -> None:
    site = Site(tmp_path)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")

    async def test() -> None:
        async with site.serving() as port:
            config = site.write_config(port)
            agent = site.start_agent(config)
            await until(lambda: site.registers, "the agent registers")
            [offer] = site.registers[0].inventory.engines
            assert (offer.name, offer.problem) == ("llamacpp", None)
            assert site.registers[0].held == []
            spec = make_spec("r1-0", engine="llamacpp", source=str(model), env={"MY_TOKEN": "s3cret"})
            site.commands.append(StartShard(seq=1, spec=spec))
            await until(lambda: site.phase("r1-0") in ("ready", "failed"), "the engine is ready", 20)
            last = [each for report in site.reports for each in report.shards][-1]
            assert last.phase == "ready", last
            pid = last.engine_pid
            assert pid is not None
            site.commands.clear()

            for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 0)):
                assert await asyncio.to_thread(end, agent, number) == code
                assert alive(pid)
                before = len(site.registers)
                agent = site.start_agent(config)
                await until(lambda before=before: len(site.registers) > before, "the next agent registers", 20)
                [held] = site.registers[-1].held
                assert (held.phase, held.engine_pid, held.spec) == ("ready", pid, spec)
                # What is odd about its profile is told for as long as it runs, by whichever agent.
                [warning] = warnings(site.registers[-1].inventory)
                assert (warning.where, "env sets MY_TOKEN" in warning.what) == ("node01 m/p", True)
                assert "s3cret" not in repr(warning)

            first, last_life = site.registers[0], site.registers[-1]
            assert first.boot_id == last_life.boot_id
            assert first.instance != last_life.instance
            assert first.instance_started_at < last_life.instance_started_at

            second = site.start_agent(config)
            assert second.stderr is not None
            assert second.wait(20) == 1
            assert b"another agent" in second.stderr.read()
            second.stderr.close()

            site.commands.append(StopShard(seq=1, shard_id="r1-0", reason="end of test"))
            await until(lambda: site.phase("r1-0") == "stopped", "the engine is stopped", 20)
            assert not alive(pid)
            told = len(site.reports)
            await until(lambda: any(report.inventory for report in site.reports[told:]), "a heartbeat", 20)
            assert [warnings(report.inventory) for report in site.reports[told:] if report.inventory][-1] == []
            await asyncio.to_thread(end, agent, signal.SIGTERM)

    try:
        asyncio.run(test())
    finally:
        site.end_engines()


def test_a_certificate_past_half_its_life_is_renewed_and_shown_from_then_on(tmp_path: Path) -> None:
    site = Site(tmp_path, certificate_age_days=300)
    before = Path(site.client["cert"]).read_text()

    async def test() -> None:
        async with site.serving() as port:
            agent = site.start_agent(site.write_config(port))
            try:
                await until(lambda: len(set(site.serials)) == 2, "the new certificate is shown", 20)
                # It is shown as soon as it is there, maybe while the agent is still registering.
                await until(lambda: site.registers, "the agent registers", 20)
                assert Path(site.client["cert"]).read_text() != before
                assert os.stat(site.client["key"]).st_mode & 0o777 == 0o600
                assert len(site.registers) == 1
            finally:
                await asyncio.to_thread(end, agent, signal.SIGTERM)

    asyncio.run(test())


def test_a_certificate_that_ends_soon_and_is_not_renewed_is_reported_as_a_finding(tmp_path: Path) -> None:
    site = Site(tmp_path, certificate_age_days=345)
    site.renews = False

    async def test() -> None:
        async with site.serving() as port:
            agent = site.start_agent(site.write_config(port))
            try:
                await until(lambda: site.registers, "the agent registers")
                found = {finding.check: finding for finding in site.registers[0].inventory.findings}
                finding = found["certificate-expiring"]
                assert finding.where == f"node01 {site.client['cert']}"
                assert "in 20 days" in finding.what
                assert "ctl cert renew node01" in finding.remedy
            finally:
                await asyncio.to_thread(end, agent, signal.SIGTERM)

    asyncio.run(test())


def test_an_agent_whose_engine_user_is_not_there_offers_its_engines_with_that_problem(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def test() -> None:
        async with site.serving() as port:
            config = site.write_config(port)
            content = yaml.safe_load(config.read_text())
            content["supervisor"]["engine_user"] = "nobody-of-this-name"
            config.write_text(yaml.safe_dump(content))
            agent = site.start_agent(config)
            try:
                await until(lambda: site.registers, "the agent registers")
                [offer] = site.registers[0].inventory.engines
                assert offer.problem is not None
                assert "engine_user names nobody-of-this-name, and this node has no such user" in offer.problem
            finally:
                await asyncio.to_thread(end, agent, signal.SIGTERM)

    asyncio.run(test())


def test_an_agent_without_its_certificate_says_so_in_one_sentence(tmp_path: Path) -> None:
    site = Site(tmp_path)
    os.unlink(site.client["cert"])
    agent = site.start_agent(site.write_config(1))
    assert agent.stderr is not None
    with agent.stderr:
        said = agent.stderr.read().decode()
    assert agent.wait(20) == 1
    assert "error: " in said
    assert site.client["cert"] in said
    assert "Traceback" not in said

"""The demo's fleet: a fresh authority, a server and four agents as processes of their own, in one folder.

Everything is reached as an operator would reach it: configuration files, the command line, the admin API and
the model API. Nothing is shared with the processes but their files.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from llmgw.config.addresses import join_host_port
from llmgw.config.errors import SentenceError
from llmgw.config.own_program import own_program
from llmgw.pki.authority import Authority
from llmgw.sim.claims import ClaimError, claim, free_port
from llmgw.sim.demo_files import (
    DemoOptions,
    change_arguments,
    change_settle,
    write_fabrics,
    write_node,
    write_private,
    write_server_config,
)
from llmgw.sim.hardware import HARDWARE_ENV
from llmgw.sim.hardware_files import set_power
from llmgw.sim.power import pointer_path, power_off, processes_of

SERVER_START_S = 30.0
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class DemoError(SentenceError):
    """The demo cannot go on."""


@dataclass
class DemoFleet:
    """A running demo. `start` brings it up, `stop` leaves nothing behind."""

    options: DemoOptions
    folder: Path = field(init=False)
    api: str = field(init=False)
    admin: str = field(init=False)
    agents: str = field(init=False)
    nodes: dict[str, tuple[str, str]] = field(init=False)
    """Node → (address, fabric)."""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _client: httpx.AsyncClient | None = None
    _claims: list[socket.socket] = field(default_factory=list)

    # Coming up.

    def prepare(self) -> None:
        """Write authority, certificates, hardware and configuration files."""
        if self.options.folder is not None:
            self.folder = self.options.folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=False)
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="llmgw-demo-"))
        host = self.options.host
        ports = []
        for preferred in (self.options.api_port, self.options.admin_port, self.options.agents_port):
            port, claimed = free_port(host, preferred)
            ports.append(port)
            self._claims.append(claimed)
        self.api = f"http://{join_host_port(host, ports[0])}"
        self.admin = f"http://{join_host_port(host, ports[1])}"
        self.agents = f"https://{join_host_port(host, ports[2])}"
        self.nodes = self._claim_addresses()
        now = time.time()
        authority = Authority.create(
            self.folder / "pki",
            name="llmgw demo",
            permit_dns=["localhost"],
            permit_ip=["127.0.0.0/8", "::1/128"],
            now=now,
        )
        server = authority.issue_server([host, "localhost"], now)
        write_private(self.folder / "server.pem", server.cert_pem)
        write_private(self.folder / "server-key.pem", server.key_pem)
        write_private(self.folder / "renewal.pem", authority.renewal_cert_pem)
        write_private(self.folder / "renewal-key.pem", authority.renewal_key_pem)
        write_fabrics(self.folder, self.nodes)
        for node, (address, fabric) in self.nodes.items():
            write_node(self.options, authority, self.folder / node, self.agents, address, fabric, now)
        write_server_config(self.options, self.folder, ports)

    async def start(self) -> None:
        """Start agents and server; returns when the admin API answers. Raises DemoError."""
        # The agents first: they are dialling when the server opens, so that it knows them all when its short
        # settling ends, and places on the whole fleet.
        for node in self.nodes:
            self.start_agent(node)
        await self._wait_until_agents_dial()
        self.start_server()
        await self.wait_for_admin()
        self._write_pointer()

    async def _wait_until_agents_dial(self) -> None:
        deadline = time.monotonic() + SERVER_START_S
        waiting = set(self.nodes)
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            for node in list(waiting):
                if "agent starts" in self.last_words(node):
                    waiting.discard(node)
                elif self._processes[node].poll() is not None:
                    raise DemoError(f"{node}'s agent did not start; its last words:\n{self.last_words(node)}")

    def start_server(self, *, settle_s: float | None = None) -> None:
        """Start the control plane, in a session of its own.

        `settle_s`: how long it waits for the nodes that it knows. Without it as long as the demo's first server
        does, which knows none.
        """
        if settle_s is not None:
            change_settle(self.folder, settle_s)
        self._spawn("server", ["server", "--config", str(self.folder / "server.yaml")], {})

    def start_agent(self, node: str, *, program: Sequence[str] | None = None) -> None:
        """Start one node's agent, in a session of its own. A node whose power was cut has power again.

        `program` takes llmgw's arguments in place of this llmgw.
        """
        hardware = self.folder / node / "hardware"
        set_power(hardware, True)
        env = {HARDWARE_ENV: str(hardware)}
        arguments = ["agent", "--config", str(self.folder / node / "agent.yaml")]
        self._spawn(node, arguments, env, program=program)

    def start_stranger(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Start a process that is none of llmgw's and ends with the demo; its pid."""
        self._spawn(name, [], env, program=command)
        return self.pid(name)

    async def wait_for_admin(self) -> None:
        """Wait until the admin API answers. Raises DemoError with the server's last words."""
        deadline = time.monotonic() + SERVER_START_S
        while time.monotonic() < deadline:
            if self._processes["server"].poll() is not None:
                break
            try:
                await self.get("server")
                return
            except (httpx.HTTPError, DemoError):
                await asyncio.sleep(0.1)
        raise DemoError(f"the server did not come up; its last words:\n{self.last_words('server')}")

    # Asking.

    async def get(self, path: str) -> Any:
        """A GET of the admin API, decoded. Raises DemoError or httpx.HTTPError."""
        return (await self._ask("GET", f"/api/v1/{path}")).json()

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """A POST to the admin API, decoded. Raises DemoError or httpx.HTTPError."""
        return (await self._ask("POST", f"/api/v1/{path}", json=body)).json()

    async def metric(self, name: str) -> float:
        """The sum of a metric's series. Raises DemoError or httpx.HTTPError."""
        return sum(value for _, value in await self.series(name))

    async def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        """A metric's series: labels, and value. Raises DemoError or httpx.HTTPError."""
        text = (await self._ask("GET", "/metrics")).text
        return [
            (dict(_LABEL.findall(line)), float(line.rpartition(" ")[2]))
            for line in text.splitlines()
            if line.partition("{")[0].partition(" ")[0] == name
        ]

    async def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            token = json.loads((self.state / "admin.json").read_text())["token"]
        except (OSError, ValueError, KeyError):
            raise DemoError(f"{self.state}/admin.json is not there yet") from None
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, timeout=5.0)
        headers = {"authorization": f"Bearer {token}"}
        answer = await self._client.request(method, f"{self.admin}{path}", headers=headers, **arguments)
        answer.raise_for_status()
        return answer

    @property
    def state(self) -> Path:
        """The server's state folder."""
        return self.folder / "state"

    def pid(self, name: str) -> int:
        """The process id of `server` or a node's agent."""
        return self._processes[name].pid

    def last_words(self, name: str, lines: int = 15) -> str:
        """The end of a process's log."""
        try:
            return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def engines(self, node: str | None = None) -> dict[int, str]:
        """Engine processes of a node (or all): pid → shard id."""
        return {
            pid: what
            for name in ([node] if node else self.nodes)
            for pid, what in processes_of(self.folder, name).items()
            if what != "agent"
        }

    # Breaking.

    def kill_node(self, node: str) -> None:
        """Power off: the agent and everything it runs end at once."""
        power_off(self.folder, node)

    def freeze(self, node: str) -> None:
        """The node stays, and answers nobody any more: agent and engines are stopped in their tracks."""
        signal_all(list(processes_of(self.folder, node)), signal.SIGSTOP)

    def thaw(self, node: str) -> None:
        """A frozen node goes on, as if it had been cut off."""
        signal_all(list(processes_of(self.folder, node)), signal.SIGCONT)

    def change_arguments(self, model: str, arguments: list[str]) -> None:
        """Add arguments to a model's profiles in server.yaml and tell the server."""
        change_arguments(self.folder, model, arguments)
        os.kill(self.pid("server"), signal.SIGHUP)

    def kill_server(self) -> None:
        """SIGKILL to the control process alone; routers and agents live on."""
        signal_all([self.pid("server")], signal.SIGKILL)
        self._processes["server"].wait()

    # Going down.

    async def stop(self) -> None:
        """End everything, engines last, and remove the folder."""
        if self._client is not None:
            await self._client.aclose()
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        await asyncio.to_thread(self._wait_all, 8.0)
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
        deadline = time.monotonic() + 5.0
        while (left := [*self.engines(), *self.routers()]) and time.monotonic() < deadline:
            signal_all(left, signal.SIGKILL)
            await asyncio.sleep(0.05)
        self._remove_pointer()
        for claimed in self._claims:
            claimed.close()
        if not self.options.keep and self.options.folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for process in self._processes.values():
            try:
                process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass

    def routers(self) -> list[int]:
        """Pids of this demo's routers."""
        found = []
        for process in psutil.process_iter():
            try:
                command = process.cmdline()
            except (psutil.Error, OSError):
                continue
            if "router" in command and f"--state={self.state}" in command:
                found.append(process.pid)
        return found

    def _spawn(
        self, name: str, arguments: list[str], env: Mapping[str, str], *, program: Sequence[str] | None = None
    ) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._processes[name] = subprocess.Popen(
                own_program(*arguments) if program is None else [*program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
                # A Ctrl-C at the terminal is the demo's to handle, in its own order.
                start_new_session=True,
                cwd=self.folder,
            )

    def _claim_addresses(self) -> dict[str, tuple[str, str]]:
        """The nodes, with addresses that no other running demo has."""
        for network in range(256):
            nodes = {
                node: (re.sub(r"^127\.0\.0\.", f"127.0.{network}.", address), fabric)
                for node, (address, fabric) in self.options.nodes.items()
            }
            claims = [claim(address) for address in {address for address, _ in nodes.values()}]
            held = [one for one in claims if one is not None]
            if len(held) == len(claims):
                self._claims += held
                return nodes
            for one in held:
                one.close()
        raise ClaimError("other demos have all loopback addresses; end one of them")

    def _write_pointer(self) -> None:
        # `llmgw ctl` in another terminal finds the running demo by this.
        path = pointer_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"state": str(self.state), "pid": os.getpid()}))
        except OSError:
            pass

    def _remove_pointer(self) -> None:
        try:
            if json.loads(pointer_path().read_text()).get("pid") == os.getpid():
                pointer_path().unlink()
        except (OSError, ValueError):
            pass


def signal_all(pids: list[int], signal_number: signal.Signals) -> None:
    """Send a signal to processes; those that have gone are no error."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            pass

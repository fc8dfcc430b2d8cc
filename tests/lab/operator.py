"""What an operator of the lab's fleet types, and looks at."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from llmgw.config.addresses import join_host_port
from llmgw.sim.load import Load
from tests.lab.machines import lab
from tests.lab.machines.machine import is_on, ssh_command
from tests.lab.machines.places import FLEET, HARDWARE, SERVER
from tests.lab.machines.processes import pids_in
from tests.lab.real_fabric import LOOK_EVERY_S, WAIT_S, wait_for
from tests.ports import free_port

AGENTS = "https://server.internal:8443"
API = f"http://{join_host_port(FLEET[SERVER].address, 8080)}"
CLIENTS_KEY = "/root/clients.key"
"""On the control host: a key of the model API."""
HARDWARE_OPTIONS = f"--nvidia-smi /{HARDWARE}/nvidia-smi --ib-root /{HARDWARE}/ib"


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __contains__(self, words: str) -> bool:
        return words in self.out or words in self.err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


def on(
    name: str, command: str, *, code: int | None = 0, stdin: str | None = None, timeout_s: float = 120
) -> Said:
    """Run a command on a machine. `code`: how it must end; None: as it likes."""
    said = Said(
        subprocess.run(
            ssh_command(name, command),
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    )
    assert "Traceback" not in said, said
    assert code is None or said.code == code, f"{command} on {name}: {said}"
    return said


def llmgw(command: str, *, code: int | None = 0, timeout_s: float = 120) -> Said:
    """`llmgw …` on the control host."""
    return on(SERVER, f"NO_COLOR=1 COLUMNS=200 llmgw {command}", code=code, timeout_s=timeout_s)


def onboard(
    node: str, options: str = "", *, address: str | None = None, code: int | None = 0, timeout_s: float = 240
) -> Said:
    """`llmgw onboard-node` for a node, on the control host."""
    machine = FLEET[node]
    command = (
        f"onboard-node --node {node} --addr {address or machine.address} --server {AGENTS} "
        f"--fabric {machine.fabric} {HARDWARE_OPTIONS} {options}"
    )
    return llmgw(command, code=code, timeout_s=timeout_s)


def put(name: str, source: Path, target: str) -> None:
    """Copy a file to a machine."""
    with source.open("rb") as file:
        subprocess.run(
            ssh_command(name, f"cat > {shlex.quote(target)}"), stdin=file, check=True, capture_output=True
        )


def engines(node: str) -> dict[int, str]:
    """Engine processes of a node, as they carry their shard in the environment: pid → shard."""
    found = {}
    for pid in pids_in(FLEET[node].namespace):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            if entry.startswith(b"LLMGW_SHARD="):
                found[pid] = entry.partition(b"=")[2].decode()
    return found


def gpus_used_twice(node: str) -> list[str]:
    """The GPUs of a node that processes of more than one shard hold memory of."""
    said = on(node, f"/{HARDWARE}/nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader").out
    holders = {tuple(line.split(", ")) for line in said.splitlines() if line}
    return [uuid for uuid, count in Counter(uuid for uuid, _ in holders).items() if count > 1]


def is_at_work(node: str) -> bool:
    """Whether a run of `onboard-node` has the node to itself."""
    return on(node, "flock -n /run/llmgw-onboard.lock true", code=None).code == 1


def picture() -> str:
    """All that may say why something in the lab is not as it should be."""
    parts = [f"load of this machine: {Path('/proc/loadavg').read_text()}"]
    commands = [
        (name, "journalctl -t llmgw -t systemd -n 60 -o short-precise --no-pager --quiet") for name in FLEET
    ]
    commands += [(SERVER, f"llmgw ctl {words}") for words in ("nodes", "replicas", "history --limit 60")]
    for name, command in commands:
        if not is_on(FLEET[name]):
            continue
        try:
            done = subprocess.run(
                ssh_command(name, f"NO_COLOR=1 COLUMNS=200 {command}"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
            parts.append(f"==== {name}: {command}\n{done.stdout}{done.stderr}")
        except subprocess.TimeoutExpired:
            parts.append(f"==== {name}: {command}\nno answer")
    return "\n".join(parts)


def main_pid(name: str, unit: str) -> int:
    """The process of a unit; 0 while it has none."""
    return int(on(name, f"systemctl show --property=MainPID --value {unit}").out)


class Fleet:
    """The control plane, asked as its pages ask it: over ssh, with the token that root has."""

    def __init__(self) -> None:
        port = free_port()
        forward = ["-o", "ControlPath=none", "-N", "-L", f"127.0.0.1:{port}:127.0.0.1:8081"]
        self._tunnel = subprocess.Popen(ssh_command(SERVER, options=forward), stdin=subprocess.DEVNULL)
        wait_for(lambda: _listens(port), "ssh forwards to the control host")
        self._admin = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5.0)

    def close(self) -> None:
        self._admin.close()
        self._tunnel.kill()
        self._tunnel.wait()

    def get(self, path: str) -> Any:
        """A GET of the admin API, once it answers: a server that is restarted is waited for."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                token = json.loads((FLEET[SERVER].root / "var/lib/llmgw/admin.json").read_text())["token"]
                answer = self._admin.get(f"/api/v1/{path}", headers={"authorization": f"Bearer {token}"})
                answer.raise_for_status()
                return answer.json()
            except (OSError, ValueError, httpx.HTTPError) as error:
                why = error
            if time.monotonic() > deadline:
                raise AssertionError(f"no {path} from the server within {WAIT_S:g} s: {why!r}")
            time.sleep(LOOK_EVERY_S)

    def node(self, node: str) -> dict[str, Any]:
        """What the server says of a node; empty where it knows none of that name."""
        found: dict[str, Any] = next((one for one in self.get("nodes") if one["node_id"] == node), {})
        return found

    def wait_state(self, node: str, state: str) -> None:
        """Wait until the server says so of a node."""
        wait_for(lambda: self.node(node).get("state") == state, f"{node} is {state}")

    def fabric(self, name: str) -> dict[str, Any]:
        """What the server knows of a fabric that it knows."""
        [found] = [one for one in self.get("fabrics") if one["name"] == name]
        return dict(found)

    def ready(self, model: str | None = None) -> list[dict[str, Any]]:
        """The ready replicas of a model, or all."""
        return [one for one in self.get("replicas") if one["state"] == "ready" and model in (None, one["model"])]

    def nodes_of(self, model: str) -> list[list[str]]:
        """The nodes of each ready replica."""
        return sorted(sorted(shard["node"] for shard in one["shards"]) for one in self.ready(model))

    def replica_ids(self) -> set[str]:
        return {one["replica_id"] for one in self.ready()}

    def wait_ready(self, big: int = 2, small: int = 2) -> None:
        wait_for(
            lambda: (len(self.ready("demo/big")), len(self.ready("demo/small"))) == (big, small),
            f"{big} and {small} replicas are ready",
        )

    def wait_big_on(self, *places: list[str]) -> None:
        """Wait until the replicas of two nodes are on these nodes, and no other is ready."""
        wait_for(lambda: self.nodes_of("demo/big") == list(places), f"the replicas of demo/big are on {places}")

    def history(self, subject: str) -> list[str]:
        """The events of a subject, the oldest first."""
        return [item["event"] for item in reversed(self.get(f"history?subject={subject}&limit=500"))]

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Clients of both models while the block runs; every request of theirs is served."""
        key = (FLEET[SERVER].root / CLIENTS_KEY[1:]).read_text().strip()
        load = Load(API, ["demo/big", "demo/small"], clients=2, tokens=20, key=key)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        def run(work: Callable[[], Any]) -> None:
            async def call() -> None:
                result = work()
                if result is not None:
                    await result

            asyncio.run_coroutine_threadsafe(call(), loop).result(WAIT_S)

        run(load.start)
        try:
            wait_for(lambda: load.counts()["served"] > 3 or load.failed, "requests are served")
            yield load
            # What went on at the end of the block is seen by requests that begin after it.
            until = load.counts()["served"] + 8
            wait_for(lambda: load.counts()["served"] >= until or load.failed, "requests go on")
        finally:
            run(load.stop)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        assert not load.failed, f"{load.failed}\n{load.counts()}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running_lab() -> Iterator[None]:
    """A lab, and nothing of it afterwards. With LLMGW_LAB_KEEP=1 it stays, to look at what failed, and the next
    run goes on with it (pytest -k names the tests that it is to go on with)."""
    keep = bool(os.environ.get("LLMGW_LAB_KEEP"))
    if not (keep and lab.status()["up"]):
        lab.up(print)
    try:
        yield
    finally:
        if not keep:
            lab.down()
            assert lab.leftovers() == []

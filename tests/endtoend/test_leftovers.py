"""GPU memory that is not ours, or ours no longer, on a real fleet: nothing is placed on it, and it is named."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgw.sim.demo_files import NODES
from llmgw.sim.hardware import hold_gpu_memory
from tests.endtoend.conftest import RunningFleet, until

NODE = "node01"
SMALL = "demo/small"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(
        tmp_path_factory.mktemp("leftovers") / "demo",
        nodes={NODE: NODES[NODE]},
        replicas_big=0,
        replicas_small=1,
    )
    try:
        running.wait_ready(big=0, small=1)
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"


def hardware(fleet: RunningFleet) -> Path:
    return fleet.demo.folder / NODE / "hardware"


def gpus(fleet: RunningFleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet.node(NODE)["gpus"]
    return found


def in_use(fleet: RunningFleet) -> list[int]:
    found: list[int] = fleet.node(NODE)["gpus_in_use"]
    return found


@contextmanager
def stranger(fleet: RunningFleet, indexes: list[int], mib: int = 40000) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process with memory on some GPUs of the node."""
    program = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], cwd="/") as process:
        uuids = [gpu["uuid"] for gpu in gpus(fleet) if gpu["index"] in indexes]
        hold_gpu_memory(hardware(fleet), uuids, mib, process.pid)
        try:
            yield process
        finally:
            process.kill()


def test_a_gpu_that_a_stranger_holds_takes_no_replica_until_it_is_free(fleet: RunningFleet) -> None:
    ours = in_use(fleet)
    others = [gpu["index"] for gpu in gpus(fleet) if gpu["index"] not in ours]
    with stranger(fleet, others) as process:
        until(lambda: [gpu["index"] for gpu in gpus(fleet) if not gpu["usable"]] == others, 20, fleet.story)
        assert all(gpu["usable"] for gpu in gpus(fleet) if gpu["index"] in ours)
        shown = re.sub(r"\s+", " ", fleet.ctl("nodes", NODE).stdout)
        assert f"process {process.pid} (python" in shown
        assert "40000 MiB" in shown
        assert f"ps -fp {process.pid}" in shown

        fleet.ctl("scale", SMALL, "2", "--yes")
        until(lambda: "has too few free GPUs" in fleet.ctl("explain", SMALL).stdout, 20, fleet.story)
        explained = re.sub(r"\s+", " ", fleet.ctl("explain", SMALL).stdout)
        assert f"process {process.pid} (python" in explained
        assert len(fleet.ready(SMALL)) == 1
        assert process.poll() is None, "a stranger's process was ended"
    until(lambda: len(fleet.ready(SMALL)) == 2, 30, fleet.story)
    assert set(in_use(fleet)) & set(others)


def test_a_stop_is_complete_only_when_the_memory_of_its_gpu_is_free(fleet: RunningFleet) -> None:
    fleet.ctl("scale", SMALL, "1", "--yes")
    until(lambda: len(fleet.get("replicas")) == 1 and len(fleet.ready(SMALL)) == 1, 30, fleet.story)
    (replica,) = fleet.ready(SMALL)
    # What the agent sees of a worker that escaped: a process that began after the shard, and nothing more.
    with stranger(fleet, in_use(fleet), mib=5000) as process:
        fleet.ctl("scale", SMALL, "0", "--yes")

        def stopping() -> bool:
            shards = [s for r in fleet.get("replicas") for s in r["shards"]]
            return any(f"process {process.pid} (" in (shard["reason"] or "") for shard in shards)

        until(stopping, 20, fleet.story)
        assert not fleet.demo.engines(NODE)
        assert replica["replica_id"] in {r["replica_id"] for r in fleet.get("replicas")}
        assert process.poll() is None
    until(lambda: not in_use(fleet), 20, fleet.story)
    assert all(gpu["usable"] for gpu in gpus(fleet))
    fleet.ctl("scale", SMALL, "1", "--yes")
    until(lambda: len(fleet.ready(SMALL)) == 1, 30, fleet.story)

"""`llmgw inspect`, through its front door: the shapes that programs rely on, tables for people, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgw.sim.hardware import set_port, write_hardware
from tests.inspecting import inspect, said

CSV = """index, uuid, name, memory.total [MiB], memory.used [MiB], mig.mode.current
0, GPU-00000000-aaaa, NVIDIA H200, 143771 MiB, 55 MiB, Enabled
1, GPU-00000000-bbbb, NVIDIA H200, 143771 MiB, [GPU requires reset], Disabled
Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU
2, GPU-00000000-cccc, NVIDIA GB10, [N/A], [N/A], [N/A]
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_gpus_have_the_agreed_shape_from_a_file_and_from_a_pipe(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "saved.csv").write_bytes(CSV.encode(encoding))
    report = said("gpus", tmp_path / "saved.csv")
    assert report == said("gpus", "-", stdin=CSV.encode(encoding))
    keys = ["index", "uuid", "name", "memory_total_mib", "memory_used_mib", "mig", "usable", "reason"]
    assert [list(gpu) for gpu in report["gpus"]] == [keys] * 3
    first, second, third = report["gpus"]
    assert first == {
        "index": 0,
        "uuid": "GPU-00000000-aaaa",
        "name": "NVIDIA H200",
        "memory_total_mib": 143771,
        "memory_used_mib": 55,
        "mig": True,
        "usable": True,
        "reason": None,
    }
    assert (second["usable"], second["memory_used_mib"]) == (False, None)
    assert "Reset" in second["reason"]
    assert (third["memory_total_mib"], third["mig"], third["usable"]) == (None, None, True)
    assert [problem.partition(":02:00.0 ")[2][:8] for problem in report["problems"]] == ["is lost:"]


def test_ports_have_the_agreed_shape(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", adapters=2)
    set_port(node.directory, "mlx5_1", "init")
    report = said("ports", node.ib_root)
    keys = ["adapter", "port", "link_layer", "state", "phys_state", "rate_gbps", "usable", "reason", "counters"]
    assert [list(port) for port in report["ports"]] == [keys] * 2
    assert [(port["adapter"], port["usable"]) for port in report["ports"]] == [
        ("mlx5_0", True),
        ("mlx5_1", False),
    ]
    assert "no subnet manager" in report["ports"][1]["reason"]
    assert report["ports"][0]["counters"]["link_downed"] == 0
    assert report["problems"] == []


def test_a_tree_is_found_below_the_folder_of_a_whole_sysfs(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", adapters=1)
    (tmp_path / "sys" / "class").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "infiniband").symlink_to(node.ib_root)
    assert len(said("ports", tmp_path / "sys")["ports"]) == len(said("ports", tmp_path)["ports"]) == 1


def test_people_get_tables(tmp_path: Path) -> None:
    code, out, _ = inspect("gpus", "-", stdin=CSV.encode())
    assert code == 0
    assert out.splitlines()[0].split() == ["GPU", "NAME", "USED", "MEMORY", "MIG", "STATE", "UUID", "REASON"]
    assert out.splitlines()[-1].startswith("PROBLEM: 0000:02:00.0 is lost")
    _, out, _ = inspect("ports", write_hardware(tmp_path / "hw", adapters=1).ib_root)
    assert "mlx5_0:1  InfiniBand  ACTIVE  LinkUp  400 Gb/s  usable" in out
    topology = b"\tGPU0\tGPU1\tmlx5_0\nGPU0\tX\tNV4\tPIX\nGPU1\tNV4\tX\tSYS\n"
    _, out, _ = inspect("topo", "-", stdin=topology)
    assert [line.split() for line in out.splitlines()[1:]] == [["0", "1", "mlx5_0"], ["1", "0", "none"]]


@pytest.mark.parametrize("what", ["gpus", "topo"])
def test_what_cannot_be_read_ends_with_a_sentence_and_1(tmp_path: Path, what: str) -> None:
    code, out, err = inspect(what, tmp_path / "nothing.txt")
    assert (code, out) == (1, "")
    assert "nothing.txt cannot be read: No such file or directory" in err
    code, _, err = inspect(what, tmp_path)
    assert code == 1
    assert "Is a directory" in err
    for stdin in (b"", b"hello\n", bytes(range(256))):
        code, out, err = inspect(what, "-", "-o", "json", stdin=stdin)
        assert (code, err) == (1, "")
        assert json.loads(out)["problems"]


def test_a_node_without_gpus_was_read(tmp_path: Path) -> None:
    assert said("gpus", "-", stdin=b"No devices were found\n") == {
        "gpus": [],
        "problems": ["the driver is loaded and finds no GPU"],
    }


def test_a_folder_that_is_none_ends_with_a_sentence(tmp_path: Path) -> None:
    code, _, err = inspect("ports", tmp_path / "nothing")
    assert code == 1
    assert "does not exist; name a folder like /sys/class/infiniband" in err
    code, out, _ = inspect("ports", tmp_path)
    assert code == 1
    assert "there is no adapter with a port below" in out

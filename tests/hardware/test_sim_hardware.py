"""Simulated hardware behaves as a node's does, through the doors that an agent uses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.hardware.gpus import read_gpus
from llmgw.hardware.nvidia_smi import QUERY_FIELDS, query_args
from llmgw.hardware.ports import read_ports
from llmgw.sim.hardware import (
    HardwareError,
    SimulatedHardware,
    hold_gpu_memory,
    release_gpu_memory,
    set_gpu,
    set_port,
    write_hardware,
)
from llmgw.sim.hardware_nvidia_smi import FIELDS
from tests.hardware.nodes import discovery_of


@pytest.fixture
def node(tmp_path: Path) -> SimulatedHardware:
    return write_hardware(tmp_path / "hw", gpus=4, adapters=2, node="node01")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds memory until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def smi(node: SimulatedHardware, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([node.nvidia_smi, *args], capture_output=True, text=True, timeout=150, check=False)


def used_mib(node: SimulatedHardware) -> list[int | None]:
    return [gpu.memory_used_mib for gpu in read_gpus(discovery_of(node)).gpus]


def llmgw_sim(*args: object) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "llmgw", "sim", *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, done.stderr


def test_nvidia_smi_answers_every_field_in_the_order_asked(node: SimulatedHardware) -> None:
    fields = sorted(FIELDS, reverse=True)
    lines = smi(node, *query_args(fields)).stdout.splitlines()
    assert [cell.partition(" [")[0] for cell in lines[0].split(", ")] == fields
    assert [len(line.split(", ")) for line in lines] == [len(fields)] * 5
    assert set(QUERY_FIELDS) <= FIELDS.keys()


def test_nvidia_smi_leaves_heading_and_units_away_when_told(node: SimulatedHardware) -> None:
    asked = "--query-gpu=index,memory.total,fan.speed"
    assert smi(node, asked, "--format=csv,noheader,nounits").stdout.splitlines()[1] == "1, 81559, [N/A]"
    assert smi(node, asked, "--format=csv, noheader").stdout.splitlines()[1] == "1, 81559 MiB, [N/A]"
    assert smi(node, asked, "--format=csv,nounits").stdout.splitlines()[0] == "index, memory.total, fan.speed"


def test_nvidia_smi_lists_and_selects_gpus(node: SimulatedHardware) -> None:
    listed = smi(node, "-L").stdout.splitlines()
    assert listed[2] == f"GPU 2: NVIDIA H100 80GB HBM3 (UUID: {node.gpu_uuids[2]})"
    for name in ("3", node.gpu_uuids[3]):
        assert smi(node, "--query-gpu=index", "--format=csv,noheader", "-i", name).stdout == "3\n"
    assert "H100" in smi(node).stdout
    assert "590.48.01" in smi(node, "--version").stdout
    assert smi(node, "topo", "-m").stdout.splitlines()[3].startswith("GPU2\tNV18\tNV18\t X \tNV18\tNODE\tNODE\t")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--query-gpu=index,nothing", "--format=csv"], 'Field "nothing" is not a valid field'),
        (["--query-gpu=index;reboot", "--format=csv"], "is not a valid field"),
        (["--query-gpu=$(id)", "--format=csv"], "is not a valid field"),
        (["--query-gpu=index"], "Invalid combination"),
        (["--frobnicate"], "Invalid combination"),
        (["-m"], "Invalid combination"),
        (["-i"], "Invalid combination"),
    ],
)
def test_nvidia_smi_refuses_what_real_ones_refuse(node: SimulatedHardware, args: list[str], words: str) -> None:
    result = smi(node, *args)
    assert (result.returncode, words in result.stdout) == (2, True)


def test_nvidia_smi_works_from_any_directory_and_through_a_link(node: SimulatedHardware, tmp_path: Path) -> None:
    link = tmp_path / "nvidia-smi"
    link.symlink_to(node.nvidia_smi)
    for program in (link, node.nvidia_smi):
        result = subprocess.run([program, "-L"], cwd="/", capture_output=True, text=True, timeout=150, check=True)
        assert len(result.stdout.splitlines()) == 4


def test_nvidia_smi_says_nothing_on_stderr(node: SimulatedHardware, sleeper: subprocess.Popen[bytes]) -> None:
    (node.directory / "used" / f"{node.gpu_uuids[0]}.999999999").write_text("10 5\n")
    (node.directory / "used" / f"{node.gpu_uuids[0]}.x").write_text("10\n")
    (node.directory / "used" / f"{node.gpu_uuids[0]}.{sleeper.pid}").write_text("many\n")
    result = smi(node, *query_args())
    assert (result.returncode, result.stderr) == (0, "")
    assert used_mib(node) == [0, 0, 0, 0]


def test_memory_that_a_process_holds_is_used_until_it_lets_go(node: SimulatedHardware) -> None:
    hold_gpu_memory(node.directory, node.gpu_uuids[1:3], 70_000)
    assert used_mib(node) == [0, 70_000, 70_000, 0]
    hold_gpu_memory(node.directory, node.gpu_uuids[1:2], 20_000)
    assert used_mib(node) == [0, 20_000, 70_000, 0]
    release_gpu_memory(node.directory, node.gpu_uuids)
    assert used_mib(node) == [0, 0, 0, 0]


def test_memory_of_several_processes_adds_up_and_never_exceeds_the_gpu(
    node: SimulatedHardware, sleeper: subprocess.Popen[bytes]
) -> None:
    hold_gpu_memory(node.directory, node.gpu_uuids[:1], 30_000)
    hold_gpu_memory(node.directory, node.gpu_uuids[:1], 40_000, sleeper.pid)
    assert used_mib(node)[0] == 70_000
    hold_gpu_memory(node.directory, node.gpu_uuids[:1], 80_000, sleeper.pid)
    assert used_mib(node)[0] == 81559 - 479


def test_a_killed_process_holds_nothing_even_before_it_is_reaped(
    node: SimulatedHardware, sleeper: subprocess.Popen[bytes]
) -> None:
    hold_gpu_memory(node.directory, node.gpu_uuids, 1000, sleeper.pid)
    assert used_mib(node) == [1000] * 4
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert used_mib(node) == [0] * 4
    sleeper.wait()
    assert used_mib(node) == [0] * 4


def test_a_later_process_of_the_same_id_is_not_taken_for_the_holder(
    node: SimulatedHardware, sleeper: subprocess.Popen[bytes]
) -> None:
    (node.directory / "used" / f"{node.gpu_uuids[0]}.{sleeper.pid}").write_text("1000 1\n")
    assert used_mib(node)[0] == 0
    (node.directory / "used" / f"{node.gpu_uuids[0]}.{sleeper.pid}").write_text("1000")
    assert used_mib(node)[0] == 1000


def test_what_dead_processes_left_is_cleared_by_the_next_holder(node: SimulatedHardware) -> None:
    (node.directory / "used" / f"{node.gpu_uuids[0]}.999999999").write_text("10 5\n")
    hold_gpu_memory(node.directory, node.gpu_uuids[:1], 5)
    assert [file.name for file in (node.directory / "used").iterdir()] == [f"{node.gpu_uuids[0]}.{os.getpid()}"]


def test_the_processes_on_the_gpus_are_listed(node: SimulatedHardware, sleeper: subprocess.Popen[bytes]) -> None:
    hold_gpu_memory(node.directory, node.gpu_uuids[1:3], 1500, sleeper.pid)
    listed = smi(node, "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv").stdout.splitlines()
    assert listed == [
        "gpu_uuid, pid, used_memory [MiB]",
        f"{node.gpu_uuids[1]}, {sleeper.pid}, 1500 MiB",
        f"{node.gpu_uuids[2]}, {sleeper.pid}, 1500 MiB",
    ]
    assert smi(node, "--query-compute-apps=memory.total", "--format=csv").returncode == 2


def test_nodes_differ_and_a_node_is_always_the_same(tmp_path: Path) -> None:
    first, again, other, namesake = (
        write_hardware(tmp_path / folder, node=name)
        for folder, name in (("a", "node01"), ("a", "node01"), ("c", "node02"), ("d", "node01"))
    )
    assert first.gpu_uuids == again.gpu_uuids
    assert not set(first.gpu_uuids) & set(other.gpu_uuids)
    assert not set(first.gpu_uuids) & set(namesake.gpu_uuids), "two demos on one machine share no GPU"
    guids = [{port.node_guid for port in read_ports(each.ib_root)} for each in (first, again, other)]
    assert guids[0] == guids[1]
    assert not guids[0] & guids[2]


def test_a_port_is_never_half_changed_for_a_reader(node: SimulatedHardware) -> None:
    stop = threading.Event()

    def flap() -> None:
        while not stop.is_set():
            for state in ("down", "init", "active"):
                set_port(node.directory, "mlx5_0", state)  # type: ignore[arg-type]

    flapping = threading.Thread(target=flap)
    flapping.start()
    try:
        seen: set[str | None] = set()
        deadline = time.monotonic() + 20
        while seen != {"ACTIVE", "INIT", "DOWN"}:
            assert time.monotonic() < deadline, seen
            port = read_ports(node.ib_root)[0]
            assert port.state in ("ACTIVE", "INIT", "DOWN")
            assert port.phys_state in ("LinkUp", "Polling")
            assert port.rate_text in ("400 Gb/sec (4X NDR)", "10 Gb/sec (4X SDR)")
            assert None not in port.counters.values()
            seen.add(port.state)
    finally:
        stop.set()
        flapping.join()


def test_only_a_port_that_was_up_goes_down(node: SimulatedHardware) -> None:
    for _ in range(3):
        set_port(node.directory, "mlx5_0", "down")
    assert read_ports(node.ib_root)[0].counters["link_downed"] == 1


def test_writing_a_smaller_node_over_a_larger_one_leaves_nothing_behind(node: SimulatedHardware) -> None:
    set_port(node.directory, "mlx5_0", "down")
    smaller = write_hardware(node.directory, gpus=1, adapters=1, node="node01", link_layer="Ethernet")
    assert len(read_gpus(discovery_of(smaller)).gpus) == 1
    (port,) = read_ports(smaller.ib_root)
    assert (port.state, port.link_layer) == ("ACTIVE", "Ethernet")
    again = write_hardware(node.directory, gpus=1, adapters=1, node="node01")
    gids = again.ib_root / "mlx5_0" / "ports" / "1" / "gids"
    assert [path.name for path in gids.iterdir()] == ["0"]


def test_the_largest_node_is_still_read(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", gpus=64, adapters=64, rate_gbps=800)
    reading = read_gpus(discovery_of(node))
    assert (len(reading.gpus), reading.findings) == (64, [])
    ports = read_ports(node.ib_root)
    assert len({port.node_guid for port in ports}) == 64


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"gpus": 65}, "65 GPUs are not possible on one node; write a number from 0 to 64"),
        ({"gpus": -1}, "-1 GPUs"),
        ({"adapters": 1000}, "1000 adapters"),
        ({"rate_gbps": 123}, "123 Gb/s is not the rate"),
        ({"rate_gbps": float("nan")}, "nan Gb/s is not the rate"),
        ({"memory_mib": 0}, "0 MiB is not the memory"),
        ({"gpu_name": "a'; rm -rf /, b"}, "is not the name of a GPU"),
        ({"gpu_name": ""}, "is not the name of a GPU"),
        ({"link_layer": "Token Ring"}, "write InfiniBand or Ethernet"),
        ({"node": "Node One"}, "is not a node id"),
        ({"sm_lid": 0}, "0 is not a LID"),
        ({"driver_version": "1;2"}, "is not a driver version"),
    ],
)
def test_silly_values_are_a_sentence_and_write_nothing(
    tmp_path: Path, keys: dict[str, object], words: str
) -> None:
    with pytest.raises(HardwareError) as raised:
        write_hardware(tmp_path / "hw", **keys)  # type: ignore[arg-type]
    assert words in str(raised.value)
    assert not (tmp_path / "hw").exists()


def test_changes_to_what_is_not_there_are_sentences(node: SimulatedHardware, tmp_path: Path) -> None:
    for call, words in (
        (lambda: set_port(node.directory, "mlx5_9", "down"), "it has mlx5_0, mlx5_1"),
        (lambda: set_port(node.directory, "mlx5_0", "down", port=2), "no port 2"),
        (lambda: set_gpu(node.directory, 4, "lost"), "it has 0 to 3"),
        (lambda: hold_gpu_memory(node.directory, ["GPU-nobody"], 1), "is no GPU of"),
        (lambda: hold_gpu_memory(node.directory, node.gpu_uuids, -1), "-1 MiB"),
        (lambda: hold_gpu_memory(tmp_path / "none", [], 1), "is not simulated hardware"),
    ):
        with pytest.raises(HardwareError, match=words):
            call()


def test_the_command_writes_a_node_and_says_what_goes_into_agent_yaml(tmp_path: Path) -> None:
    code, out, _ = llmgw_sim(
        *("hardware", tmp_path / "hw", "--gpus", 2, "--adapters", 1, "--rate", 200, "--node", "node07"),
        *("--gpu-name", "NVIDIA L40S", "--memory-mib", 46068, "--link-layer", "ethernet", "--sm-lid", 3),
    )
    assert code == 0
    assert f"  nvidia_smi: {tmp_path}/hw/nvidia-smi\n  ib_root: {tmp_path}/hw/ib\n" in out
    (port,) = read_ports(tmp_path / "hw" / "ib")
    assert (port.link_layer, port.rate_text) == ("Ethernet", "200 Gb/sec (4X HDR)")


def test_the_commands_change_ports_and_gpus(node: SimulatedHardware) -> None:
    assert llmgw_sim("port", node.directory, "mlx5_1", "init") == (0, "mlx5_1 port 1 is init\n", "")
    assert [port.state for port in read_ports(node.ib_root)] == ["ACTIVE", "INIT"]
    assert llmgw_sim("gpu", node.directory, 0, "ecc")[0] == 0
    assert not read_gpus(discovery_of(node)).gpus[0].usable


def test_a_refusal_of_a_command_is_one_sentence_on_stderr(node: SimulatedHardware, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("x")
    (tmp_path / "file").write_text("x")
    damaged = write_hardware(tmp_path / "damaged", gpus=1).directory
    (damaged / "llmgw-sim-hardware.json").write_text("{")
    for args, words in (
        (["hardware", tmp_path / "other"], "holds other files and is not simulated hardware"),
        (["hardware", tmp_path / "file"], "is a file; name a folder"),
        (["hardware", tmp_path / "file" / "below"], "cannot be written"),
        (["hardware", "/proc/llmgw"], "cannot be written"),
        (["hardware", tmp_path / "hw2", "--gpus", 100], "100 GPUs are not possible"),
        (["port", node.directory, "mlx4_0", "down"], "it has mlx5_0, mlx5_1"),
        (["port", tmp_path / "other", "mlx5_0", "down"], "is not simulated hardware"),
        (["port", damaged, "mlx5_0", "down"], "is damaged"),
        (["gpu", node.directory, 9, "lost"], "is no GPU of"),
    ):
        code, out, err = llmgw_sim(*args)
        assert (code, out) == (1, "")
        assert words in err
        assert err.count("\n") == 1
    assert (tmp_path / "other" / "precious").read_text() == "x"


def test_an_ethernet_port_has_no_subnet_manager_to_wait_for(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "hw", link_layer="Ethernet")
    with pytest.raises(HardwareError, match="never in INIT"):
        set_port(node.directory, "mlx5_0", "init")
    set_port(node.directory, "mlx5_0", "down")
    assert read_ports(node.ib_root)[0].state == "DOWN"


def test_a_port_may_be_slow_or_without_an_address(tmp_path: Path) -> None:
    node = write_hardware(tmp_path / "roce", adapters=2, link_layer="Ethernet")
    assert llmgw_sim("port", node.directory, "mlx5_1", "unaddressed")[0] == 0
    first, second = read_ports(node.ib_root)
    assert (first.state, [gid.index for gid in first.gids]) == ("ACTIVE", [0, 1, 2, 3])
    assert (second.state, [gid.index for gid in second.gids]) == ("ACTIVE", [0, 1])
    set_port(node.directory, "mlx5_1", "slow")
    second = read_ports(node.ib_root)[1]
    assert (second.rate_gbps, second.rate_text, len(second.gids)) == (100.0, "100 Gb/sec (1X NDR)", 4)
    infiniband = write_hardware(tmp_path / "ib", adapters=1)
    with pytest.raises(HardwareError, match="needs no IP address"):
        set_port(infiniband.directory, "mlx5_0", "unaddressed")


def test_where_devices_sit_is_told_as_a_kernel_tells_it(node: SimulatedHardware) -> None:
    ports = read_ports(node.ib_root)
    assert [(port.pci_address, port.numa_node, port.virtual) for port in ports] == [
        ("0000:18:00.0", 0, False),
        ("0000:28:00.0", 0, False),
    ]
    write_hardware(node.directory, gpus=1, adapters=1, node="node01")
    devices = node.directory / "sys/bus/pci/devices"
    assert sorted(path.name for path in devices.iterdir()) == ["0000:18:00.0", "0000:1b:00.0"]
    assert all(path.exists() for path in devices.iterdir())


def test_the_commands_break_and_mend_gpus_and_machine(node: SimulatedHardware) -> None:
    assert llmgw_sim("machine", node.directory, "no-devices")[:2] == (0, "the machine is no-devices\n")
    assert not (node.directory / "dev/infiniband").exists()
    assert llmgw_sim("machine", node.directory, "ok")[0] == 0
    assert (node.directory / "dev/infiniband/uverbs1").exists()
    assert llmgw_sim("gpu", node.directory, "1", "xid")[0] == 0
    assert "Xid (PCI:0000:2b:00): 119" in (node.directory / "dev/kmsg").read_text()

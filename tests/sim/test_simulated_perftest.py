"""Two simulated `ib_write_bw` meet as real ones do, and measure what lies between their adapters."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from llmgw.fabric.perftest import Bandwidth, read_bandwidth
from llmgw.sim.fabric.change import set_cable
from llmgw.sim.hardware import set_port
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.sim.demo_site import ADDRESS, DemoSite

Ended = tuple[int, str, str]


@pytest.fixture
def port() -> str:
    """A port that nobody has."""
    return str(free_port(ADDRESS))


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def start(site: DemoSite, node: str, port: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [site.hardware(node) / "ib_write_bw", "-p", port, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def listens(port: str) -> bool:
    wanted = f":{int(port):04X} "
    with open("/proc/net/tcp") as table:
        return any(wanted in line and " 0A " in line for line in table)


def end(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def measure(
    site: DemoSite, port: str, server: list[str], client: list[str], nodes: tuple[str, str] = ("node02", "node01")
) -> tuple[Ended, Ended]:
    serving = start(site, nodes[0], port, *server)
    until(lambda: listens(port) or serving.poll() is not None, "the server listens")
    driving = start(site, nodes[1], port, *client, ADDRESS)
    return end(serving), end(driving)


def result(ended: Ended) -> Bandwidth:
    return read_bandwidth(ended[1] + ended[2])


def sent(site: DemoSite, node: str, adapter: str, counter: str) -> int:
    [value] = [one.counters[counter] for one in site.ports(node) if one.adapter == adapter]
    assert value is not None
    return value


def test_both_ends_print_95_percent_of_the_link_and_the_ports_have_carried_it(site: DemoSite, port: str) -> None:
    before = sent(site, "node01", "mlx5_1", "port_xmit_data"), sent(site, "node02", "mlx5_1", "port_rcv_data")
    options = ["-d", "mlx5_1", "-i", "1", "--report_gbits", "-F", "-D", "1"]
    serving, driving = measure(site, port, options, options)
    for ended in (serving, driving):
        assert ended[0] == 0
        assert ended[2] == ""
        assert (result(ended).gbps, result(ended).message_bytes, result(ended).unit_read) == (
            380.0,
            65536,
            "Gb/s",
        )
    words = 380e9 / 32
    assert sent(site, "node01", "mlx5_1", "port_xmit_data") - before[0] == pytest.approx(words, rel=0.01)
    assert sent(site, "node02", "mlx5_1", "port_rcv_data") - before[1] == pytest.approx(words, rel=0.01)


def test_by_default_it_counts_messages_in_mebibytes(site: DemoSite, port: str) -> None:
    _, driving = measure(site, port, [], [])
    assert "BW average[MB/sec]" in driving[1]
    assert result(driving).gbps == pytest.approx(380.0, abs=0.1)
    assert result(driving).unit_read == "MiB/s"
    _, driving = measure(site, port, ["-a", "-n", "5"], ["-a", "-n", "5"])
    assert result(driving).message_bytes == 2**23
    assert len([line for line in driving[1].splitlines() if line.split()[1:2] == ["5"]]) == 23


def test_a_slow_cable_at_either_end_is_measured(site: DemoSite, port: str) -> None:
    set_port(site.hardware("node02"), "mlx5_0", "slow")
    options = ["-d", "mlx5_0", "--report_gbits"]
    assert result(measure(site, port, options, options)[1]).gbps == 95.0
    assert (
        result(
            measure(site, port, ["-d", "mlx5_1", "--report_gbits"], ["-d", "mlx5_1", "--report_gbits"])[1]
        ).gbps
        == 380.0
    )


def test_between_leaves_the_best_way_counts(site: DemoSite, port: str) -> None:
    server, client = ["-d", "mlx5_1", "--report_gbits"], ["-d", "mlx5_0", "--report_gbits"]
    assert result(measure(site, port, server, client)[1]).gbps == 380.0
    for uplink in (33, 35, 36):
        set_cable(site.fabric("ib-a"), "ib-a-leaf-1", uplink, "down")
    assert result(measure(site, port, server, client)[1]).gbps == 190.0


def test_a_port_that_is_down_or_not_there_is_refused_in_perftests_words(site: DemoSite, port: str) -> None:
    set_port(site.hardware("node01"), "mlx5_0", "down")
    ended = end(start(site, "node01", port, "-d", "mlx5_0", ADDRESS))
    assert ended[0] == 1
    assert (result(ended).error or "").startswith("Port number 1 state is Down; Couldn't set the link layer")
    ended = end(start(site, "node01", port, "-d", "mlx5_9"))
    assert "IB device mlx5_9 not found" in (result(ended).error or "")


def test_nobody_there_is_refused_in_perftests_words(site: DemoSite, port: str) -> None:
    ended = end(start(site, "node01", port, "-d", "mlx5_0", ADDRESS))
    assert ended[0] == 1
    assert (result(ended).error or "").startswith(f"Couldn't connect to {ADDRESS}:{port}")


def test_adapters_of_two_fabrics_do_not_reach_each_other(site: DemoSite, port: str) -> None:
    serving, driving = measure(site, port, [], [], ("node03", "node01"))
    assert serving[0] == driving[0] == 1
    assert "Failed status 12" in (result(driving).error or "")
    assert "Failed to exchange data" in (result(serving).error or "")


def test_ends_that_were_told_different_things_both_fail(site: DemoSite, port: str) -> None:
    serving, driving = measure(site, port, ["-s", "4096"], ["-s", "65536"])
    assert serving[0] == driving[0] == 1
    assert "Failed to exchange data between server and clients" in (result(driving).error or "")


def test_a_port_that_goes_down_in_between_ends_both(site: DemoSite, port: str) -> None:
    options = ["-d", "mlx5_0", "-D", "30"]
    before = sent(site, "node02", "mlx5_0", "port_rcv_data")
    serving = start(site, "node02", port, *options)
    until(lambda: listens(port), "the server listens")
    driving = start(site, "node01", port, *options, ADDRESS)
    until(lambda: sent(site, "node02", "mlx5_0", "port_rcv_data") > before, "data runs")
    set_port(site.hardware("node02"), "mlx5_0", "down")
    ended = end(driving)
    assert ended[0] == 1
    assert "Failed status 12" in (result(ended).error or "")
    assert end(serving)[0] == 1


@pytest.mark.parametrize("killed", ["server", "client"])
def test_when_one_end_is_killed_the_other_ends_too(site: DemoSite, port: str, killed: str) -> None:
    options = ["-d", "mlx5_0", "-D", "30"]
    before = sent(site, "node02", "mlx5_0", "port_rcv_data")
    serving = start(site, "node02", port, *options)
    until(lambda: listens(port), "the server listens")
    driving = start(site, "node01", port, *options, ADDRESS)
    until(lambda: sent(site, "node02", "mlx5_0", "port_rcv_data") > before, "data runs")
    victim, other = (serving, driving) if killed == "server" else (driving, serving)
    victim.kill()
    end(victim)
    assert end(other)[0] == 1


def test_a_wrong_command_line_is_refused_in_perftests_words(site: DemoSite, port: str) -> None:
    ended = end(start(site, "node01", port, "--bogus"))
    assert ended[0] == 1
    assert "Invalid Command or flag." in ended[2]
    assert end(start(site, "node01", port, "-V"))[1] == "Version: 6.06\n"

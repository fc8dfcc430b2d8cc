"""What a Prometheus scrapes and what doctor finds, of a real fleet in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from llmgw.pki.authority import Authority
from llmgw.pki.files import install_pair
from llmgw.pki.handout import write_files
from llmgw.server.admin.reads import GZIP_FROM_BYTES
from llmgw.sim.hardware import set_machine, set_port
from tests.endtoend.conftest import RunningFleet, until
from tests.server.exposition import families, lint, value

DAY = 86400.0


def scrape(fleet: RunningFleet) -> str:
    answer = httpx.get(f"{fleet.demo.admin}/metrics", trust_env=False, timeout=40)
    assert answer.status_code == 200
    assert (answer.headers.get("content-encoding") == "gzip") == (len(answer.text) > GZIP_FROM_BYTES)
    return answer.text


def doctor(config: Path, code: int) -> dict[str, Any]:
    """`llmgw doctor -o json` as a process of its own, in front of a server that runs."""
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "doctor", "--config", str(config), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == code, done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def changed(fleet: RunningFleet, folder: Path, **changes: Any) -> Path:
    """node01's agent.yaml with some keys changed."""
    config = yaml.safe_load((fleet.demo.folder / "node01" / "agent.yaml").read_text())
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump(config | changes))
    return path


def test_a_scrape_tells_what_the_admin_api_tells(fleet: RunningFleet) -> None:
    text = scrape(fleet)
    assert lint(text) == []
    assert value(text, "llmgw_settling") == 0
    assert value(text, "llmgw_agent_sessions") == 4
    assert value(text, "llmgw_transitions_total", kind="node", event="joined") == 4
    assert value(text, "llmgw_replica_start_seconds_count", model="demo/small") == 2
    assert value(text, "llmgw_replica_failures_total", model="demo/small") == 0
    for name in ("llmgw_turn_seconds", "llmgw_reconcile_seconds", "llmgw_placement_seconds"):
        assert value(text, f"{name}_count"), name
    assert value(text, "llmgw_agent_call_seconds_count", call="report")
    assert value(text, "llmgw_agent_command_seconds_count")
    assert value(text, "llmgw_gpu_power_limit_watts", node="node01", gpu="0") == 700
    assert value(text, "llmgw_gpu_ecc_errors_total", node="node01", gpu="0", kind="corrected") == 0
    assert value(text, "llmgw_gpu_throttled", node="node01", gpu="0", reason="thermal") == 0
    port = {"node": "node01", "adapter": "mlx5_0", "port": "1"}
    assert value(text, "llmgw_ib_port_counter_total", **port, counter="link_downed") is not None
    for replica in fleet.ready("demo/small"):
        at = {"model": "demo/small", "endpoint": replica["replica_id"]}
        assert value(text, "llmgw_endpoint_in_flight", **at) is not None
    assert value(text, "llmgw_nodes", state="ready") == 4
    for node in fleet.get("nodes"):
        name = node["node_id"]
        in_use = value(text, "llmgw_gpus", node=name, state="in_use")
        assert in_use == len(node["gpus_in_use"])
        left_s = value(text, "llmgw_certificate_seconds_left", name=name, kind="node")
        assert left_s == pytest.approx(node["certificate_expires_at"] - time.time(), abs=30)
        port = {"node": name, "adapter": "mlx5_0", "port": "1"}
        assert value(text, "llmgw_ib_port_rate_gbps", **port) == 400
        assert value(text, "llmgw_ib_port_active", **port, state="ACTIVE", phys_state="LinkUp") == 1
    for model in ("demo/big", "demo/small"):
        assert value(text, "llmgw_replicas", model=model, profile="default", state="ready") == 2
        assert value(text, "llmgw_replicas_wanted", model=model, profile="default") == 2
    samples = families(text)["llmgw_certificate_seconds_left"].samples
    left_s = {sample.labels["kind"]: sample.value for sample in samples}
    assert set(left_s) == {"server", "authority", "renewal", "node"}
    assert min(left_s.values()) > DAY


def test_requests_through_the_gateway_are_counted_and_timed(fleet: RunningFleet) -> None:
    labels = {"model": "demo/small", "status_class": "2xx"}
    before = value(scrape(fleet), "llmgw_requests_total", **labels) or 0
    body = {"model": "small", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": True}
    for _ in range(3):
        answer = httpx.post(f"{fleet.demo.api}/v1/chat/completions", json=body, trust_env=False, timeout=20)
        assert answer.status_code == 200
    nobody = httpx.post(f"{fleet.demo.api}/v1/chat/completions", json=body | {"model": "made-up"}, timeout=20)
    assert nobody.status_code == 404
    until(lambda: value(scrape(fleet), "llmgw_requests_total", **labels) == before + 3, 10)
    text = until(
        lambda: (
            found
            if value(found := scrape(fleet), "llmgw_requests_total", model="(other)", status_class="4xx")
            else None
        ),
        10,
    )
    assert value(text, "llmgw_request_first_byte_seconds_count", model="demo/small") == before + 3
    assert (value(text, "llmgw_request_seconds_sum", model="demo/small") or 0) > 0
    assert "made-up" not in text


def test_a_port_that_goes_down_shows_in_the_next_scrapes_and_as_a_finding(fleet: RunningFleet) -> None:
    hardware = fleet.demo.folder / "node04" / "hardware"
    port = {"node": "node04", "adapter": "mlx5_1", "port": "1"}
    down = {"check": "fabric-port-down", "severity": "error"}
    set_port(hardware, "mlx5_1", "down")
    try:
        until(lambda: value(scrape(fleet), "llmgw_findings", **down) == 1, 20)
        assert value(scrape(fleet), "llmgw_ib_port_active", **port, state="DOWN", phys_state="Polling") == 0
        assert "mlx5_1" in fleet.ctl("status").stdout
    finally:
        set_port(hardware, "mlx5_1", "active")
    until(lambda: value(scrape(fleet), "llmgw_findings", **down) is None, 20)


def test_a_certificate_that_is_renewed_in_the_midst_of_a_session_is_told_as_renewed(fleet: RunningFleet) -> None:
    authority = Authority.open(fleet.demo.folder / "pki")
    issued = authority.issue_client("node03", "127.0.0.13", time.time() - 300 * DAY)
    os.kill(fleet.demo.pid("node03"), signal.SIGKILL)
    home = fleet.demo.folder / "node03"
    install_pair(home / "agent.pem", home / "agent-key.pem", issued.cert_pem, issued.key_pem)
    fleet.demo.start_agent("node03")
    until(lambda: "certificate renewed" in fleet.demo.last_words("node03", 200), 20)
    labels = {"name": "node03", "kind": "node"}
    until(lambda: (value(scrape(fleet), "llmgw_certificate_seconds_left", **labels) or 0) > 300 * DAY, 10)
    assert "WARNING" not in fleet.ctl("nodes", "node03").stdout


def test_metrics_are_given_to_a_local_program_and_not_to_a_browser_that_was_sent_here(
    fleet: RunningFleet,
) -> None:
    rebound = {"host": "rebound.example.org"}
    assert httpx.get(f"{fleet.demo.admin}/metrics", headers=rebound, trust_env=False).status_code == 401


def test_doctor_finds_nothing_on_a_node_of_a_healthy_fleet(fleet: RunningFleet) -> None:
    found = doctor(fleet.demo.folder / "node01" / "agent.yaml", 0)
    assert found["findings"] == []
    assert found["checks"] == [
        "configuration",
        "certificate",
        "hardware",
        "fabric-tools",
        "address",
        "engines",
        "engine-user",
        "packages",
        "ports",
        "work-dir",
        "weights",
        "server",
    ]
    # Agents have asked the same meanwhile: the server's log is for what is wrong.
    assert '"refused"' not in (fleet.demo.folder / "server.log").read_text()


def test_doctor_finds_what_was_planted_and_exits_by_the_worst_of_it(fleet: RunningFleet, tmp_path: Path) -> None:
    warned = doctor(changed(fleet, tmp_path, engines={}), 1)
    assert [(finding["check"], finding["severity"]) for finding in warned["findings"]] == [
        ("engine-none", "warning")
    ]
    authority = Authority.open(fleet.demo.folder / "pki")
    issued = authority.issue_client("node03", "127.0.0.13", time.time())
    files = write_files(issued, tmp_path / "tls")
    os.chmod(files["key"], 0o644)
    failed = doctor(changed(fleet, tmp_path, tls=files), 2)
    assert sorted(finding["check"] for finding in failed["findings"]) == [
        "certificate-address",
        "certificate-name",
        "key-open",
    ]
    for finding in failed["findings"]:
        assert all(finding[part] for part in ("where", "what", "why", "remedy"))


def test_what_doctor_finds_rides_to_the_server_with_the_agent(fleet: RunningFleet) -> None:
    path = fleet.demo.folder / "node03" / "agent.yaml"
    before = path.read_text()
    agent = yaml.safe_load(before)
    path.write_text(yaml.safe_dump(agent | {"engines": {**agent["engines"], "llamacpp": {"bin": "/bin/false"}}}))
    hardware, key = fleet.demo.folder / "node03" / "hardware", fleet.demo.folder / "node03" / "agent-key.pem"

    def checks() -> set[str]:
        return {finding["check"] for finding in fleet.node("node03")["findings"]}

    try:
        set_machine(hardware, "memlock")
        key.chmod(0o644)
        os.kill(fleet.demo.pid("node03"), signal.SIGKILL)
        fleet.demo.start_agent("node03")
        until(lambda: {"engine-program", "memlock", "key-open"} <= checks(), 30)
        told = fleet.ctl("nodes", "node03").stdout
        assert "/bin/false --version fails" in told
        assert "engines may lock 8 MiB of memory" in told
        assert "LimitMEMLOCK=infinity" in told
    finally:
        set_machine(hardware, "ok")
        key.chmod(0o600)
        path.write_text(before)
        os.kill(fleet.demo.pid("node03"), signal.SIGKILL)
        fleet.demo.start_agent("node03")
    until(
        lambda: fleet.node("node03")["state"] == "ready" and not checks(),
        30,
        lambda: str(fleet.node("node03")["findings"]),
    )


def test_how_gpus_are_joined_is_told_in_the_api_and_as_a_metric(fleet: RunningFleet) -> None:
    node = fleet.get("nodes/node01")
    count = len(node["gpus"])
    assert node["gpus"][0]["paths"] == {str(other): "NV18" for other in range(1, count)}
    assert node["gpus"][0]["nearest_adapters"] == ["mlx5_0"]
    assert value(scrape(fleet), "llmgw_gpu_nvlink_peers", node="node01", gpu="0") == count - 1


def test_doctor_tells_people_what_is_wrong_where_and_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("servr: x\n")
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "doctor", "--config", "agent.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ""
    assert "errors (2):" in done.stdout
    assert "ERROR: agent.yaml line 1: servr: unknown key; did you mean server?" in done.stdout
    assert "what to do: " in done.stdout

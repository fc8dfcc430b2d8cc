"""Server, router and agent as services: what they tell systemd, and what they keep to themselves."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml

from llmgw.pki.authority import Authority
from llmgw.pki.handout import write_files
from tests.endtoend.conftest import Running, llmgw, until
from tests.endtoend.servers import Server
from tests.ports import free_port
from tests.service_manager import ServiceManager, environment_of


def test_a_server_tells_of_its_life_and_its_routers_do_not_speak_for_it(tmp_path: Path) -> None:
    api, admin = free_port(), free_port()
    config = tmp_path / "server.yaml"
    settings = {
        "listen": f"127.0.0.1:{api}",
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "state": str(tmp_path / "state"),
        "router": {"workers": 1},
    }
    config.write_text(yaml.safe_dump(settings))
    with ServiceManager(tmp_path, watchdog_s=1) as systemd:
        server = Server(tmp_path, config, api, admin, systemd.env)
        try:
            until(lambda: systemd.count("READY"), 30, server.log)
            # Ready is said when it is, not before.
            assert server._answers(server.admin)
            assert systemd.status.startswith(f"0 models on 127.0.0.1:{api}; 0 of 0 nodes ready; ")
            until(lambda: systemd.count("WATCHDOG") > 2, 20, server.log)
            server.wait_serving()
            [router] = server.routers()
            assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(environment_of(router.pid))

            static = {"name": "there", "endpoints": [{"url": "http://127.0.0.1:9", "model": "m"}]}
            config.write_text(yaml.safe_dump({**settings, "models": [static]}))
            server.process.process.send_signal(signal.SIGHUP)
            until(lambda: systemd.count("READY") == 2, 20, server.log)
            assert [m for m in systemd.said if "RELOADING" in m or "READY" in m][1].keys() >= {"RELOADING"}
            until(lambda: systemd.status.startswith("1 model on"), 20, lambda: systemd.status)

            # A file without `models:` is that of somebody who applies catalogs, not of one who wants no models.
            config.write_text(yaml.safe_dump(settings))
            server.process.process.send_signal(signal.SIGHUP)
            until(lambda: f"{config} does not say `models:`" in server.log(), 20, server.log)
            assert [model["name"] for model in server.get("catalog")["models"]] == ["there"]

            server.process.process.terminate()
            server.process.process.wait(20)
            assert systemd.count("STOPPING") == 1
        finally:
            server.stop()


def test_a_router_is_ready_when_it_accepts_and_says_that_nobody_steers_it(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, watchdog_s=1) as systemd:
        port = free_port()
        arguments = ["router", f"--state={tmp_path / 'state'}", f"--listen=127.0.0.1:{port}"]
        with Running.llmgw(*arguments, log=tmp_path / "log", env=systemd.env) as router:
            until(lambda: systemd.count("READY"), 20, lambda: router.output)
            assert port in {c.laddr.port for c in psutil.Process(router.process.pid).net_connections()}
            assert (
                systemd.status
                == f"Serves 0 models on 127.0.0.1:{port}; no control process, so routes stay as they are."
            )
            until(lambda: systemd.count("WATCHDOG") > 2, 20, lambda: router.output)
            router.process.terminate()
            assert router.process.wait(20) == 0
            assert systemd.count("STOPPING") == 1


def test_an_agent_whose_server_is_away_is_ready_and_says_why_it_waits(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki", now=time.time())
    files = write_files(authority.issue_client("node01", "127.0.0.1", time.time()), tmp_path / "tls")
    config = tmp_path / "agent.yaml"
    port = free_port()
    config.write_text(
        yaml.safe_dump(
            {
                "node_id": "node01",
                "server": f"https://127.0.0.1:{port}",
                "tls": files,
                "mgmt_addr": "127.0.0.1",
                "reconnect_base": "50ms",
                "discovery": {"nvidia_smi": "/nonexistent/nvidia-smi", "ib_root": str(tmp_path / "no-ib")},
                "supervisor": {"work_dir": str(tmp_path / "work")},
            }
        )
    )
    with (
        ServiceManager(tmp_path, watchdog_s=1) as systemd,
        Running.llmgw("agent", "--config", str(config), log=tmp_path / "log", env=systemd.env) as agent,
    ):
        until(lambda: systemd.count("READY"), 30, lambda: agent.output)
        assert systemd.status.startswith(
            f"Does not get through to https://127.0.0.1:{port} and goes on trying; 0 shards here: "
        )
        assert "Nothing listens at" in systemd.status
        until(lambda: systemd.count("WATCHDOG") > 2, 20, lambda: agent.output)
        agent.process.terminate()
        assert agent.process.wait(20) == 0
        assert systemd.count("STOPPING") == 1


@pytest.mark.parametrize("role", ["server", "agent"])
def test_a_wrong_configuration_ends_a_service_with_a_code_that_its_unit_does_not_restart(
    tmp_path: Path, role: str
) -> None:
    (tmp_path / "bad.yaml").write_text("servr: x\n")
    with ServiceManager(tmp_path) as systemd:
        done = llmgw(role, "--config", str(tmp_path / "bad.yaml"), env=systemd.env)
        assert done.returncode == 78
        assert done.stderr.startswith("error: ")
        assert systemd.count("READY") == 0
    unit = (Path(__file__).parent.parent.parent / "examples" / f"llmgw-{role}.service").read_text()
    assert "\nRestartPreventExitStatus=2 78\n" in unit

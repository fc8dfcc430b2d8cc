"""A server whose model API has a certificate: its routers speak TLS, and what is wrong with the files is told."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import httpx

from llmgw.pki.authority import Authority
from llmgw.pki.files import install_pair
from tests.endtoend.conftest import Running, until
from tests.endtoend.servers import Server, server


def problems(running: Server) -> dict[str, Any]:
    return {each["check"]: each for each in running.get("server")["problems"]}


def test_tls_is_switched_on_by_replacing_routers_and_its_files_are_watched(tmp_path: Path) -> None:
    authority = Authority.create(
        tmp_path / "pki", name="test", permit_dns=(), permit_ip=(), now=time.time(), days=365
    )
    cert, key = tmp_path / "gateway.pem", tmp_path / "gateway-key.pem"

    def issue() -> None:
        issued = authority.issue_server(["127.0.0.1"], time.time())
        install_pair(cert, key, issued.cert_pem, issued.key_pem)

    issue()
    context = ssl.create_default_context(cadata=authority.ca_pem)
    with server(tmp_path / "server") as running:
        assert httpx.get(f"{running.api}/health", trust_env=False).status_code == 200
        running.kill()
        running.configure(
            tls={"cert": str(cert), "key": str(key)}, router={"workers": 1, "cors": {"origins": ["*"]}}
        )
        running.start_again()

        # The router that the first server left speaks plain HTTP; it finishes when one that speaks TLS accepts.
        def speaks_tls() -> bool:
            try:
                answer = httpx.get(
                    running.api.replace("http:", "https:") + "/health",
                    headers={"origin": "https://x"},
                    verify=context,
                    trust_env=False,
                )
            except httpx.TransportError:
                return False
            return answer.headers["access-control-allow-origin"] == "*"

        until(speaks_tls, 30, running.log)
        until(lambda: len(running.routers()) == 1, 30, running.log)
        assert speaks_tls()
        assert "listener-certificate" not in problems(running)
        key.write_text("nonsense")
        key.chmod(0o644)
        until(lambda: {"listener-certificate", "key-open"} <= set(problems(running)), 20, running.log)
        assert "tls.key" in problems(running)["listener-certificate"]["what"]
        assert f"chmod 600 {key}" in running.ctl("status")
        assert speaks_tls()
        issue()
        until(lambda: not {"listener-certificate", "key-open"} & set(problems(running)), 20, running.log)
        assert "gateway" in httpx.get(f"{running.admin}/metrics", trust_env=False).text


def test_a_server_whose_certificate_cannot_be_used_says_so_and_starts_no_router(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        f"state: {tmp_path}/state\ntls: {{cert: {tmp_path}/none.pem, key: {tmp_path}/none-key.pem}}\n"
    )
    with Running.llmgw("server", "--config", str(config), log=tmp_path / "log") as running:
        assert running.process.wait(20) != 0
        assert f"There is no certificate (tls.cert) at {tmp_path}/none.pem" in running.output
        assert "Traceback" not in running.output

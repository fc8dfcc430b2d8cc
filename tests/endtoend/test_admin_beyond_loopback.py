"""An admin API on every address, as Prometheus on another host needs it: `ctl` on its own host finds it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from llmgw.pki.authority import Authority
from llmgw.pki.files import install_pair
from tests.endtoend.conftest import until
from tests.endtoend.servers import server


def test_a_token_for_a_scraper_elsewhere_is_made_on_the_servers_host_without_further_words(
    tmp_path: Path,
) -> None:
    authority = Authority.create(
        tmp_path / "pki", name="test", permit_dns=(), permit_ip=(), now=time.time(), days=365
    )
    issued = authority.issue_server(["127.0.0.1"], time.time())
    cert, key, ca = tmp_path / "server.pem", tmp_path / "server-key.pem", tmp_path / "ca.pem"
    install_pair(cert, key, issued.cert_pem, issued.key_pem)
    ca.write_text(authority.ca_pem)
    pair = {"cert": str(cert), "key": str(key)}
    with server(tmp_path / "server") as running:
        running.kill()
        port = running.admin.rpartition(":")[2]
        running.configure(
            admin={"listen": f"0.0.0.0:{port}", "tls": pair},
            agents={"listen": "127.0.0.1:0", "tls": {**pair, "ca": str(ca)}},
        )
        running.start_again()
        written = running.state / "admin.json"
        until(lambda: json.loads(written.read_text())["url"].startswith("https:"), 30, running.log)
        assert running.ctl("token", "create", "prometheus").strip()

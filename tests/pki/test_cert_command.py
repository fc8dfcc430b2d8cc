"""`llmgw ctl cert …` as an operator types it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llmgw.cli.ctl.cert import app
from llmgw.config.agent import AgentTls
from llmgw.config.server import AgentsTls
from llmgw.pki.peer import peer_from_der
from llmgw.pki.revocation import RevocationList
from llmgw.pki.tls import agent_context, agents_server_context
from tests.pki.handshakes import shake

REPOSITORY = Path(__file__).parent.parent.parent


class Operator:
    """Types commands in a folder; the authority is `pki` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki = folder / "pki"

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--pki", str(self.pki)])

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "-o", "json"))

    def refused(self, *arguments: str) -> str:
        """The one sentence (or few) on stderr of a command that must fail."""
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert result.stderr.count("\n") == 1
        return str(result.stderr)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    operator = Operator(tmp_path)
    operator.ok("init-ca")
    return operator


def test_an_operator_makes_an_authority_a_server_and_a_node_that_understand_each_other(
    operator: Operator,
) -> None:
    gateway = operator.json("issue-server", "--host", "gw.lan", "--host", "127.0.0.1", "--host", "::1")
    node = operator.json("issue-client", "node01", "--address", "10.0.0.1", "--out", str(operator.folder / "n"))
    assert gateway["addresses"] == ["gw.lan", "127.0.0.1", "::1"]
    assert node["files"]["cert"] == str(operator.folder / "n" / "agent.pem")
    server = agents_server_context(AgentsTls(**gateway["files"]))
    peer = peer_from_der(shake(server, agent_context(AgentTls(**node["files"]))))
    assert (peer.node_id, peer.address, peer.serial) == ("node01", "10.0.0.1", node["serial"])
    revocations = RevocationList(operator.pki / "revoked.pem", gateway["files"]["ca"])
    assert revocations.refusal(peer) is None
    done = operator.json("revoke", "node01")
    assert done["serials"] == [node["serial"]]
    assert revocations.refusal(peer) is not None
    again = operator.json("issue-client", "node01", "--address", "10.0.0.1", "--out", str(operator.folder / "n"))
    peer = peer_from_der(shake(server, agent_context(AgentTls(**again["files"]))))
    assert revocations.refusal(peer) is None


def test_the_list_shows_every_certificate_in_both_forms(operator: Operator) -> None:
    node = operator.json("issue-client", "node01", "--address", "10.0.0.1")
    operator.ok("issue-server", "--host", "gw.lan")
    operator.ok("revoke", "node01")
    records = operator.json("list")
    assert {record["kind"] for record in records} == {"root", "renewal", "server", "client"}
    client = next(record for record in records if record["kind"] == "client")
    assert set(client) >= {
        "kind",
        "name",
        "serial",
        "addresses",
        "not_before",
        "not_after",
        "days_left",
        "revoked",
    }
    assert client["revoked"] is True
    assert abs(client["days_left"] - 365) < 1
    table = operator.ok("list")
    assert node["serial"] in table
    assert "gw.lan" in table
    assert "days left" in table


def test_renewing_writes_a_new_pair_in_the_same_place(operator: Operator) -> None:
    first = operator.json("issue-server", "--host", "gw.lan", "--host", "127.0.0.1")
    second = operator.json("renew", "gw.lan")
    assert second["files"] == first["files"]
    assert second["serial"] != first["serial"]
    assert second["addresses"] == first["addresses"]
    agents_server_context(AgentsTls(**second["files"]))
    assert "renewal certificate" in operator.ok("renew", "renewal")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["init-ca"], "never overwritten"),
        (["issue-server"], "--host"),
        (["issue-server", "--host", "google.com"], "lies outside of what this authority may sign for"),
        (["issue-server", "--host", "https://gw.lan"], "is a URL"),
        (["issue-server", "--host", "gw.lan", "--days", "0"], "cannot hold for 0 days"),
        (["issue-client", "Node_1", "--address", "10.0.0.1"], "is not a node id"),
        (["issue-client", "../../etc", "--address", "10.0.0.1"], "is not a node id"),
        (["issue-client", "node01", "--address", "nowhere"], "is not an IP address"),
        (["issue-client", "node01", "--address", "8.8.8.8"], "--permit-ip"),
        (["renew", "node09"], "No certificate of 'node09' was issued here"),
        (["revoke", "node09"], "neither a node nor a serial"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why_and_changes_nothing(
    operator: Operator, arguments: list[str], sentence: str
) -> None:
    before = operator.json("list")
    assert sentence in operator.refused(*arguments)
    after = operator.json("list")
    assert [record["serial"] for record in after] == [record["serial"] for record in before]


def test_without_an_authority_every_command_says_how_to_make_one(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    for arguments in (
        ["issue-server", "--host", "gw.lan"],
        ["issue-client", "node01", "--address", "10.0.0.1"],
        ["list"],
        ["renew", "node01"],
        ["revoke", "node01"],
    ):
        assert "init-ca" in operator.refused(*arguments)


def test_a_folder_that_cannot_be_written_gets_a_sentence(operator: Operator) -> None:
    (operator.folder / "file").write_text("")
    out = str(operator.folder / "file" / "below")
    assert "cannot be written" in operator.refused("issue-server", "--host", "gw.lan", "--out", out)


def test_the_permitted_names_are_what_the_operator_named(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    made = operator.json(
        "init-ca", "--name", "lab", "--permit-dns", "lab.example.com", "--permit-ip", "203.0.113.0/24"
    )
    assert made["permit_dns"] == ["lab.example.com"]
    assert made["permit_ip"] == ["203.0.113.0/24"]
    operator.ok("issue-server", "--host", "gw.lab.example.com", "--host", "203.0.113.4")
    assert "lies outside" in operator.refused("issue-server", "--host", "gw.lan")


def process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from llmgw.cli.ctl.cert import app; app()", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_a_real_process_uses_pki_below_the_current_folder_and_fails_with_a_sentence(tmp_path: Path) -> None:
    made = process("init-ca", "-o", "json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["pki"] == "pki"
    assert stat.S_IMODE((tmp_path / "pki" / "ca-key.pem").stat().st_mode) == 0o600
    again = process("init-ca", cwd=tmp_path)
    assert again.returncode == 1
    assert again.stdout == ""
    assert "never overwritten" in again.stderr
    assert "Traceback" not in again.stderr


def test_help_does_not_load_what_only_the_commands_need(tmp_path: Path) -> None:
    program = (
        "import sys; import llmgw.cli.ctl.cert\n"
        "print([name for name in ('cryptography', 'msgspec', 'pydantic', 'ssl') if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"
    began = time.monotonic()
    assert "issue-client" in process("--help", cwd=tmp_path).stdout
    assert time.monotonic() - began < 10

"""`llmgw ctl audit`: who asked for what, as a table and as the API's own JSON."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from llmgw.messages.audit_views import AuditEntry
from tests.ctl.run_ctl import ctl, ctl_process, sentence_of
from tests.ctl.scripted import STARTED_AT, TOKEN, ScriptedBackend, ServedAdmin


@pytest.fixture
def asked(served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path) -> ServedAdmin:
    """A server that was asked for changes by `ctl` itself, and got wrong tokens."""
    assert ctl("drain", "node01", "--force", home=tmp_path, served=served).returncode == 0
    assert ctl("cordon", "node99", home=tmp_path, served=served).returncode == 1
    backend.audit.entries.append(
        AuditEntry(
            id=3,
            at=STARTED_AT + 3,
            address="10.0.0.9",
            method="POST",
            route="/admin/login",
            status=401,
            message="this token is not known",
            count=57,
            last_at=STARTED_AT + 90,
        )
    )
    return served


def test_the_table_says_who_asked_for_what_from_where_and_how_it_ended(
    asked: ServedAdmin, tmp_path: Path
) -> None:
    done = ctl_process("audit", home=tmp_path, served=asked, TZ="UTC")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["ID", "AT", "(UTC)", "BY", "FROM", "ASKED", "SUBJECT", "WISH", "STATUS", "ANSWER"]
    assert [row.split()[0] for row in rows] == ["3", "2", "1"], "newest first"
    assert "10.0.0.9" in rows[0]
    assert "this token is not known, 57 times until 2023-11-14" in rows[0]
    assert all(part in rows[1] for part in ("first", "cordon", "node99", "404", "there is no node"))
    parts = (
        "first",
        "127.0.0.1",
        "POST /api/v1/nodes/{node}/drain",
        "node01",
        "force yes",
        "200",
        "drain was done",
    )
    assert all(part in rows[2] for part in parts)


def test_json_is_exactly_what_the_api_answers(asked: ServedAdmin, tmp_path: Path) -> None:
    done = ctl("audit", "--limit", "2", "-o", "json", home=tmp_path, served=asked)
    headers = {"authorization": f"Bearer {TOKEN}"}
    api = httpx.get(f"{asked.url}/api/v1/audit?limit=2", headers=headers, trust_env=False).json()
    assert json.loads(done.stdout) == api
    assert len(api) == 2


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--by", "first"], [2, 1]),
        (["--subject", "node01"], [1]),
        (["--before", "3", "--limit", "1"], [2]),
        (["--since", "2023-11-14T22:13:22"], [3, 2]),
        (["--since", "1h"], []),
        (["--by", "nobody"], []),
    ],
)
def test_entries_are_chosen_by_options(
    asked: ServedAdmin, tmp_path: Path, options: list[str], ids: list[int]
) -> None:
    done = ctl("audit", *options, "-o", "json", home=tmp_path, served=asked)
    assert [entry["id"] for entry in json.loads(done.stdout)] == ids
    if not ids:
        assert ctl("audit", *options, home=tmp_path, served=asked).stdout == "nothing yet\n"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--since", "yesterday"], "--since"),
        (["--since", "2023-99-99"], "from must be a time"),
        (["--by", "a\nb"], "printable"),
    ],
)
def test_what_cannot_be_meant_gets_a_sentence(
    served: ServedAdmin, tmp_path: Path, options: list[str], part: str
) -> None:
    assert part in sentence_of(ctl("audit", *options, home=tmp_path, served=served))
    assert ctl("audit", "--limit", "0", home=tmp_path, served=served).returncode == 2

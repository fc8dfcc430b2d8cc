"""`ctl requests`: the last requests in a terminal, for programs, and as they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.messages.routes import Outcome
from tests.ctl.run_ctl import ctl, environment, sentence_of
from tests.ctl.scripted import ScriptedBackend, ServedAdmin

HOSTILE = "\x1b[2J\u202eno answer"


@pytest.fixture(autouse=True)
def told(backend: ScriptedBackend) -> None:
    backend.recent.tell(
        Outcome(
            "chat-small", "chat-small-3c4d", 200, key="k1", total_s=1.5, first_byte_s=0.25, request_id="req-1"
        ),
        Outcome("chat-small", "chat-small-3c4d", 200, 1, retried_because="chat-small-0: it answered 503"),
        Outcome("org/chat-large", None, 503, error=HOSTILE, total_s=0.1, retry_refused=True, queued_s=2.5),
        Outcome("", None, 401, error="wrong_api_key"),
    )


def test_a_table_says_who_asked_what_answered_and_why_not(served: ServedAdmin, tmp_path: Path) -> None:
    done = ctl("requests", home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["4", "3", "2", "1"]
    assert head.split()[-4:] == ["OUT", "REQUEST", "ID", "WHY"]
    assert rows[0].endswith("wrong_api_key")
    assert rows[1].endswith("no answer; no other engine was asked: the model's retry budget was spent")
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert rows[2].endswith("tried again since chat-small-0: it answered 503")
    assert "alice" in rows[3]
    assert "0.250s  1.500s" in rows[3]
    assert "req-1" in rows[3]


def test_what_the_engine_itself_refused_says_that_it_did(
    backend: ScriptedBackend, served: ServedAdmin, tmp_path: Path
) -> None:
    backend.recent.tell(Outcome("chat-small", "chat-small-3c4d", 500))
    done = ctl("requests", "--limit", "1", home=tmp_path, served=served)
    assert done.stdout.splitlines()[-1].endswith("chat-small-3c4d itself answered 500")


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--model", "chat"], [3]),
        (["--key", "alice"], [1]),
        (["--replica", "chat-small-3c4d"], [2, 1]),
        (["--failed"], [4, 3]),
        (["--status", "4xx"], [4]),
        (["--id", "req-1"], [1]),
        (["--before", "3", "--limit", "1"], [2]),
        (["--model", "chat-small", "--failed"], []),
    ],
)
def test_they_are_asked_for_by_what_they_were(
    served: ServedAdmin, tmp_path: Path, arguments: list[str], ids: list[int]
) -> None:
    done = ctl("requests", *arguments, "-o", "json", home=tmp_path, served=served)
    assert [each["id"] for each in json.loads(done.stdout)] == ids
    if not ids:
        table = ctl("requests", *arguments, home=tmp_path, served=served)
        assert table.stdout == "no request that is still known is like that\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--failed", "--status", "5xx"], 2, "contradict each other"),
        (["--follow", "--before", "3"], 2, "contradict each other"),
        (["--status", "bad"], 1, "status must be like 503, 5xx or failed"),
        (["--key", "a\nb"], 1, "key must be 1 to"),
        (["--limit", "0"], 2, "--limit"),
    ],
)
def test_what_cannot_be_asked_gets_a_sentence(
    served: ServedAdmin, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    assert words in sentence_of(ctl("requests", *arguments, home=tmp_path, served=served), code)


@pytest.mark.parametrize("form", [[], ["-o", "json"]])
def test_following_prints_what_ends_from_the_oldest_on_also_of_a_server_that_began_anew(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path, form: list[str]
) -> None:
    command = [sys.executable, "-m", "llmgw", "ctl", "requests", "--follow", "--model", "chat-small", *form]
    with subprocess.Popen(
        command,
        env=environment(tmp_path, served),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        first, second = following.stdout.readline(), following.stdout.readline()
        assert "req-1" in first if form else "ttft 0.250s" in first
        assert "tried again since" in second if not form else json.loads(second)["id"] == 2
        backend.recent.__init__(backend.recent.models)  # type: ignore[misc]
        backend.recent.now = 60.0
        backend.recent.tell(*[Outcome("chat-small", f"new-{number}", 200) for number in range(150)])
        fresh = [following.stdout.readline() for _ in range(150)]
        assert all(f"new-{number}" in line for number, line in enumerate(fresh))
        following.send_signal(signal.SIGINT)
        rest, said = following.communicate(timeout=20)
        assert rest == ""
        assert "Traceback" not in said
        assert following.returncode == 130

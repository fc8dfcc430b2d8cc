"""`ctl usage` and its route: what is asked, how it is shown, and a sentence for what cannot be asked."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import httpx
import pytest

from tests.ctl.run_ctl import ctl, sentence_of
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin

HOUR = 3600


def test_a_table_has_what_was_asked_for_and_a_total(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    done = ctl("usage", "--by", "hour,key,model", "--since", "2023-11-14", home=tmp_path, served=served)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    heads = ["HOUR", "(UTC)", "KEY", "MODEL", "REQUESTS", "ERRORS", "PROMPT", "CACHED", "COMPLETION", "ESTIMATED"]
    assert lines[0].split() == heads
    assert lines[1].split() == ["2023-11-14", "23:00", "team-a", "m", "3", "0", "1000", "5", "0", "0"]
    assert lines[2].split()[2:4] == ["-", "=m"]
    assert lines[3].split()[:1] == ["total"]
    assert lines[3].split()[-6:] == ["5", "1", "1000", "5", "7", "1"]
    name, from_s, to_s, key, model, by = backend.asked[-1]
    assert (name, from_s, key, model, by) == ("usage", 1_699_920_000, None, None, ["hour", "key", "model"])
    assert to_s % HOUR == 0


def test_csv_and_json_are_for_programs(served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path) -> None:
    done = ctl("usage", "--by", "day,key", "-o", "csv", home=tmp_path, served=served)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert rows[0] == {
        "day": "2023-11-14",
        "key": "team-a",
        "requests": "3",
        "errors": "0",
        "prompt_tokens": "1000",
        "cached_tokens": "5",
        "completion_tokens": "0",
        "estimated": "0",
    }
    assert rows[1]["key"] == ""
    told = json.loads(ctl("usage", "-o", "json", home=tmp_path, served=served).stdout)
    assert told["total"]["requests"] == 5
    backend.usage.empty = True
    assert "nothing was used" in ctl("usage", home=tmp_path, served=served).stdout


def test_how_far_back_is_a_duration_or_a_date(
    served: ServedAdmin, backend: ScriptedBackend, tmp_path: Path
) -> None:
    more = ["--until", "2023-11-15T12:00", "--key", "team-a", "--model", "b"]
    assert ctl("usage", "--since", "2023-11-14T13:30", *more, home=tmp_path, served=served).returncode == 0
    assert backend.asked[-1][1:5] == (1_699_966_800, 1_700_049_600, "team-a", "b")
    assert ctl("usage", "--since", "1h30m", home=tmp_path, served=served).returncode == 0
    assert abs(backend.asked[-1][1] - (time.time() - 5400)) <= HOUR + 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is not a duration; write for example 5s"),
        (["--since", "2023-13-45"], "from must be a time like 2026-11-29"),
        (["--until", "soon"], "to must be a time like 2026-11-29"),
        (["--since", "1d", "--until", "2023-01-01"], "from must be before to"),
        (["--by", "week"], "usage is not kept by 'week'; by takes day, hour, key, model"),
        (["--by", "day,hour"], "by names the same twice"),
        (["--by", "key,key"], "by names the same twice"),
        (["--key", "a\nb"], "key must be 1 to"),
    ],
)
def test_what_cannot_be_asked_gets_a_sentence(
    served: ServedAdmin, tmp_path: Path, arguments: list[str], words: str
) -> None:
    assert words in sentence_of(ctl("usage", *arguments, home=tmp_path, served=served))


def test_csv_is_for_usage_alone(served: ServedAdmin, tmp_path: Path) -> None:
    assert "csv" in sentence_of(ctl("nodes", "-o", "csv", home=tmp_path, served=served), 2)


def test_the_route_takes_seconds_and_refuses_what_it_does_not_know(
    served: ServedAdmin, backend: ScriptedBackend
) -> None:
    def status(**parameters: str) -> int:
        headers = {"authorization": f"Bearer {TOKEN}"}
        url = f"{served.url}/api/v1/usage"
        return httpx.get(url, params=parameters, headers=headers, trust_env=False, verify=False).status_code

    assert status(**{"from": "3601", "to": "7201", "by": "model,day", "key": ""}) == 200
    assert backend.asked[-1] == ("usage", 3600, 10_800, "", None, ["day", "model"])
    assert status(form="3601") == 400
    assert status(**{"from": "9" * 30}) == 400
    assert status(**{"from": "0001-01-01"}) == 200

"""The catalog's revisions against a real fleet: what is applied serves, and rolls without a failed request."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from llmgw.sim.load import Load
from tests.endtoend.conftest import RunningFleet, until

Write = Callable[[dict[str, Any]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a catalog's file and returns its path."""

    def file(catalog: dict[str, Any]) -> str:
        path = tmp_path / "catalog.yaml"
        path.write_text(yaml.safe_dump(catalog, sort_keys=False))
        return str(path)

    return file


def shown(fleet: RunningFleet, *revision: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(fleet.ctl("catalog", "show", *revision).stdout)
    return found


def ruling(fleet: RunningFleet) -> int:
    return int(fleet.ctl_json("catalog", "show")["revision"])


def small(catalog: dict[str, Any]) -> dict[str, Any]:
    return next(model for model in catalog["models"] if model["name"] == "demo/small")["profiles"][0]


def ask(fleet: RunningFleet, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    return httpx.post(f"{fleet.demo.api}/v1/chat/completions", json=body, timeout=90, trust_env=False).status_code


def start_load(fleet: RunningFleet) -> Load:
    load = Load(fleet.demo.api, ["demo/small", "demo/big"], tokens=60)

    async def begin() -> None:
        load.start()

    fleet.run(begin())
    until(lambda: load.counts()["served"] >= 6)
    return load


def test_a_dry_run_tells_what_would_happen_and_changes_nothing(fleet: RunningFleet, write: Write) -> None:
    before, running = ruling(fleet), {r["replica_id"] for r in fleet.ready()}
    catalog = shown(fleet)
    small(catalog)["replicas"] = 4
    catalog["models"].append({"name": "demo/huge", "profiles": [{"engine": "sim", "gpus_per_node": 16}]})
    done = fleet.ctl("apply", write(catalog), "--dry-run")
    assert "replicas 2 → 4" in done.stdout
    assert "replicas: 2 to start, 0 to stop, 0 to roll" in done.stdout
    assert "demo/huge/default: no node known today could ever host it" in done.stderr
    assert "4 nodes have fewer usable GPUs than gpus_per_node" in done.stderr
    assert ruling(fleet) == before
    assert {r["replica_id"] for r in fleet.get("replicas")} == running


def test_a_file_that_does_not_validate_changes_nothing(fleet: RunningFleet, write: Write) -> None:
    before = ruling(fleet)
    catalog = shown(fleet)
    small(catalog)["replicas"] = -1
    catalog["models"][0]["aliases"] = ["demo/small"]
    done = fleet.ctl("apply", write(catalog), "--yes", ok=False)
    assert done.returncode == 1
    assert "replicas: must be at least 0, got -1" in done.stderr
    assert "line " in done.stderr
    assert ruling(fleet) == before


def test_apply_adds_a_model_that_serves_and_rolls_another_under_load_and_rollback_restores_both(
    fleet: RunningFleet, write: Write
) -> None:
    first = ruling(fleet)
    catalog = shown(fleet)
    small(catalog)["args"] += ["--max-model-len", "4096"]
    args = small(catalog)["args"]
    new = {"name": "demo/new", "aliases": ["new"], "profiles": [{"engine": "sim", "args": args}]}
    catalog["models"].append(new)
    old = {r["replica_id"] for r in fleet.ready("demo/small")}
    untouched = {r["replica_id"] for r in fleet.ready("demo/big")}
    load = start_load(fleet)
    done = fleet.ctl("apply", write(catalog), "--yes", "--wait", "--note", "longer contexts", timeout_s=90)
    assert "args changed: rolls" in done.stdout
    assert "replicas: 1 to start, 0 to stop, 2 to roll" in done.stdout
    assert f"catalog revision {first + 1} rules" in done.stdout
    assert "wanted replicas are ready" in done.stderr
    assert ask(fleet, "new") == 200
    assert not old & {r["replica_id"] for r in fleet.ready("demo/small")}
    assert len(fleet.ready("demo/small")) == 2

    done = fleet.ctl("catalog", "rollback", str(first), "--yes", "--wait", timeout_s=90)
    assert "removed, had 1 replica" in done.stdout
    assert f"catalog revision {first + 2} rules" in done.stdout
    fleet.run(load.stop())
    assert load.failed == []
    assert load.counts()["served"] > 20
    assert shown(fleet) == shown(fleet, str(first))
    assert {r["replica_id"] for r in fleet.ready("demo/big")} == untouched
    until(lambda: ask(fleet, "new") == 404)
    until(lambda: len(fleet.get("replicas")) == 4, 30, fleet.story)

    revisions = fleet.ctl_json("catalog", "history")
    assert [entry["revision"] for entry in revisions[:2]] == [first + 2, first + 1]
    assert [entry["note"] for entry in revisions[:2]] == [f"rollback to revision {first}", "longer contexts"]
    by = revisions[0]["by"]
    events = fleet.ctl_json("history", "--kind", "catalog")
    assert (events[0]["subject"], events[0]["reason"]) == (
        f"revision {first + 2}",
        f"rollback to revision {first}, by {by}",
    )


def test_an_edit_against_a_revision_that_rules_no_more_is_refused(fleet: RunningFleet) -> None:
    token = json.loads((fleet.demo.state / "admin.json").read_text())["token"]
    url = f"{fleet.demo.admin}/api/v1"
    with httpx.Client(headers={"authorization": f"Bearer {token}"}, trust_env=False) as api:
        catalog = api.get(f"{url}/catalog").json()
        fleet.ctl("scale", "demo/small", "3")
        catalog["models"][1]["first_byte_timeout"] = "1m"
        body = {"models": catalog["models"], "base": catalog["revision"]}
        refused = api.post(f"{url}/catalog", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "stale_plan")
    assert "demo/small/default: 2 → 3 replicas" in refused.json()["message"]
    fleet.ctl("scale", "demo/small", "2")
    fleet.wait_ready()


def test_stopping_much_is_named_loudly_and_refused_without_a_yes(fleet: RunningFleet, write: Write) -> None:
    before = ruling(fleet)
    catalog = shown(fleet)
    catalog["models"] = [model for model in catalog["models"] if model["name"] != "demo/small"]
    done = fleet.ctl("apply", write(catalog), ok=False)
    assert done.returncode == 2
    assert "WARNING: it would stop 2 of 4 ready replicas, more than 20%" in done.stderr
    empty = fleet.ctl("apply", write({"models": []}), ok=False)
    assert "the catalog would be empty: everything is stopped" in empty.stderr
    assert ruling(fleet) == before
    assert len(fleet.ready()) == 4


def test_a_sighup_whose_models_would_stop_much_is_not_taken(fleet: RunningFleet) -> None:
    before = ruling(fleet)
    path = fleet.demo.folder / "server.yaml"
    original = path.read_text()
    config = yaml.safe_load(original)
    config["models"] = config["models"][:1]
    try:
        path.write_text(yaml.safe_dump(config))
        os.kill(fleet.demo.pid("server"), signal.SIGHUP)
        until(lambda: "it would stop 2 of 4 ready replicas" in fleet.demo.last_words("server", 40))
        assert ruling(fleet) == before
        (entry,) = json.loads(fleet.ctl("audit", "--by", "SIGHUP", "-o", "json").stdout)
        assert (entry["route"], entry["subject"], entry["status"]) == (str(path), "catalog", 409)
        assert "it would stop 2 of 4 ready replicas" in entry["message"]
    finally:
        path.write_text(original)


def test_what_finds_no_place_is_said_by_the_plan_and_by_wait(fleet: RunningFleet, write: Write) -> None:
    first = ruling(fleet)
    catalog = shown(fleet)
    catalog["models"].append(
        {"name": "demo/wide", "profiles": [{"engine": "sim", "nodes": 3, "gpus_per_node": 1}]}
    )
    done = fleet.ctl("apply", write(catalog), "--yes", "--wait", ok=False, timeout_s=60)
    assert done.returncode == 1
    assert "demo/wide/default: no node known today could ever host it: needs 3 nodes" in done.stderr
    assert "error: demo/wide/default: 0 of 1 ready: cannot be placed: needs 3 nodes" in done.stderr
    fleet.ctl("catalog", "rollback", str(first), "--yes", "--wait", timeout_s=60)


def test_a_form_that_does_not_come_up_is_told_by_wait_with_the_engine_s_words_and_what_served_goes_on(
    fleet: RunningFleet, write: Write
) -> None:
    first = ruling(fleet)
    serving = {r["replica_id"] for r in fleet.ready("demo/small")}
    catalog = shown(fleet)
    small(catalog)["args"] += ["--no-such-flag"]
    done = fleet.ctl("apply", write(catalog), "--yes", "--wait", ok=False, timeout_s=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "error: demo/small/default: 0 of 2 ready, 2 still in a form that is not wanted any more: the"
    )
    assert "no-such-flag" in last
    assert {r["replica_id"] for r in fleet.ready("demo/small")} == serving
    assert ask(fleet, "demo/small") == 200
    fleet.ctl("catalog", "rollback", str(first), "--yes", "--wait", timeout_s=60)
    assert {r["replica_id"] for r in fleet.ready("demo/small")} == serving


def test_a_revision_that_never_was_comes_with_those_that_are(fleet: RunningFleet) -> None:
    done = fleet.ctl("catalog", "rollback", "999", "--yes", ok=False)
    assert done.returncode == 1
    assert f"the catalog never had a revision 999; there are 1 to {ruling(fleet)}" in done.stderr


def test_what_show_prints_applies_unchanged(fleet: RunningFleet, tmp_path: Path) -> None:
    path = tmp_path / "shown.yaml"
    path.write_text(fleet.ctl("catalog", "show").stdout)
    done = fleet.ctl("apply", str(path), "--yes")
    assert "nothing changes" in done.stdout
    assert "nothing was changed" in done.stdout


def test_a_form_that_fails_and_fails_is_rolled_back_by_itself(fleet: RunningFleet, tmp_path: Path) -> None:
    fleet.wait_ready()
    before = {replica["replica_id"] for replica in fleet.ready("demo/small")}
    ruling = fleet.ctl_json("catalog", "show")
    models = ruling["models"]
    small = next(model for model in models if model["name"] == "demo/small")
    small["profiles"][0]["args"] = [*small["profiles"][0]["args"], "--fail-load"]
    small["profiles"][0]["max_failures"] = 1
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump({"models": models}))
    fleet.ctl("apply", str(file), "--yes")
    until(lambda: fleet.ctl_json("catalog", "history")[0]["by"] == "llmgw", 40, fleet.story)
    assert "rollback of demo/small/default" in fleet.ctl_json("catalog", "history")[0]["note"]
    fleet.wait_ready()
    assert {replica["replica_id"] for replica in fleet.ready("demo/small")} == before
    assert "--fail-load" not in fleet.ctl("catalog", "show").stdout

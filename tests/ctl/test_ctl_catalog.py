"""`ctl apply` and `ctl catalog …` against the real admin API over a scripted control plane."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmgw.cli.ctl.catalog_text import catalog_yaml
from llmgw.config.load import catalog_of, load_catalog_file
from llmgw.messages.admin import CatalogPlan, ModelView, ProfileView
from llmgw.server.admin.backend import AdminError
from tests.ctl.run_ctl import PROGRAM, ctl, environment, sentence_of
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, replica
from tests.ctl.test_ctl_waits import WAIT_S, Running

FILE = "models:\n  - name: a\n    profiles:\n      - engine: sim\n"
MODELS = catalog_of([{"name": "a", "profiles": [{"engine": "sim"}]}]).model_dump(mode="json")["models"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "catalog.yaml").write_text(FILE)
    return tmp_path


def applied(backend: ScriptedBackend) -> list[tuple[object, ...]]:
    return [asked for asked in backend.asked if asked[0] == "apply"]


def test_apply_prints_the_plan_and_applies_it(served: ServedAdmin, backend: ScriptedBackend, home: Path) -> None:
    done = ctl("apply", "catalog.yaml", "--yes", "--note", "more room", home=home, served=served)
    assert done.returncode == 0, done.stderr
    for part in (
        "replicas 1 → 3; args changed: rolls; load_timeout changed: rolls nothing",
        "1 of the starts when others have stopped",
        "removed, had 2 replicas",
        "task changed; static endpoints: + http://x",
        "replicas: 2 to start, 2 to stop, 1 to roll; 4 models unchanged",
        "catalog revision 3 rules",
    ):
        assert part in done.stdout
    assert done.stderr == "warning: a/default: no node known today could ever host it: needs 1 node\n"
    ((_, wish, by),) = applied(backend)
    assert (wish.base, wish.models, wish.note, wish.confirmed, by) == (2, MODELS, "more room", True, "first")


def test_a_dry_run_prints_the_plan_and_changes_nothing(
    served: ServedAdmin, backend: ScriptedBackend, home: Path
) -> None:
    done = ctl("apply", "catalog.yaml", "--dry-run", home=home, served=served)
    assert "replicas: 2 to start" in done.stdout
    as_json = ctl("apply", "catalog.yaml", "--dry-run", "-o", "json", home=home, served=served)
    assert msgspec.json.decode(as_json.stdout, type=CatalogPlan) == backend.catalog.planned
    assert applied(backend) == []


def test_without_a_terminal_it_needs_yes(served: ServedAdmin, backend: ScriptedBackend, home: Path) -> None:
    for arguments in (["apply", "catalog.yaml"], ["catalog", "rollback", "1"]):
        done = ctl(*arguments, home=home, served=served)
        assert done.returncode == 2
        assert "needs --yes" in done.stderr
        assert "replicas: 2 to start" in done.stdout
    assert applied(backend) == []


@pytest.mark.parametrize(("typed", "code"), [("n", 1), ("y", 0)])
@pytest.mark.parametrize("confirm", [None, "it would stop 2 of 4 ready replicas, more than 20%"])
def test_on_a_terminal_it_asks(
    served: ServedAdmin, backend: ScriptedBackend, home: Path, typed: str, code: int, confirm: str | None
) -> None:
    backend.catalog.planned = msgspec.structs.replace(backend.catalog.planned, confirm=confirm)
    terminal, child = pty.openpty()
    os.write(terminal, f"{typed}\n".encode())
    done = subprocess.run(
        [*PROGRAM, "apply", "catalog.yaml"],
        env=environment(home, served),
        cwd=home,
        stdin=child,
        capture_output=True,
        text=True,
        timeout=90,
    )
    os.close(child)
    os.close(terminal)
    assert done.returncode == code, done.stderr
    assert ("although it stops so much?" in done.stderr) is (confirm is not None)
    assert (f"WARNING: {confirm}" in done.stderr) is (confirm is not None)
    assert [wish.confirmed for _, wish, _ in applied(backend)] == ([confirm is not None] if code == 0 else [])


def test_json_is_the_api_s_answer(served: ServedAdmin, home: Path) -> None:
    done = ctl("apply", "catalog.yaml", "--yes", "-o", "json", home=home, served=served)
    assert json.loads(done.stdout)["revision"] == 3
    assert json.loads(done.stdout)["plan"]["base"] == 2


def test_a_rollback_names_the_revision_and_goes_the_same_way(
    served: ServedAdmin, backend: ScriptedBackend, home: Path
) -> None:
    done = ctl("catalog", "rollback", "1", "--yes", home=home, served=served)
    assert "catalog revision 3 rules" in done.stdout
    ((_, wish, _),) = applied(backend)
    assert (wish.revision, wish.models, wish.base) == (1, None, 2)


def test_of_a_whole_server_yaml_it_says_what_is_not_read(served: ServedAdmin, home: Path) -> None:
    (home / "server.yaml").write_text("listen: 127.0.0.1:1\n" + FILE)
    done = ctl("apply", "server.yaml", "--dry-run", home=home, served=served)
    assert "server.yaml: only models: is read of it, not listen" in done.stderr


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (FILE + "      - engine: simm\n", "line 5: models[0].profiles[1].engine: must be"),
        (FILE + "        replicas: -1\n", "models[0].profiles[0].replicas: must be at least 0, got -1"),
        (FILE + "  - name: a\n    endpoints: [{url: http://x}]\n", "the name 'a' belongs to both"),
        ("models:\n", "an empty catalog stops everything"),
    ],
)
def test_a_file_that_does_not_validate_never_reaches_the_server(
    served: ServedAdmin, backend: ScriptedBackend, home: Path, text: str, part: str
) -> None:
    (home / "catalog.yaml").write_text(text)
    assert part in sentence_of(ctl("apply", "catalog.yaml", "--yes", home=home, served=served))
    assert backend.asked == []


def test_a_refusal_of_the_server_is_its_sentence(
    served: ServedAdmin, backend: ScriptedBackend, home: Path
) -> None:
    backend.catalog.refuse = AdminError(409, "stale_plan", "meanwhile night-shift made revision 3; apply again")
    done = ctl("apply", "catalog.yaml", "--yes", home=home, served=served)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: meanwhile night-shift made revision 3; apply again"


def test_scaling_away_much_needs_yes(served: ServedAdmin, backend: ScriptedBackend, home: Path) -> None:
    backend.scale_refused = "not applied: it would stop 2 of 4 ready replicas"
    assert "2 of 4" in sentence_of(ctl("scale", "chat-small", "0", home=home, served=served))
    assert ctl("scale", "chat-small", "0", "--yes", home=home, served=served).returncode == 0
    assert backend.asked[-1] == ("scale", "chat-small", "default", 0, "first", "confirmed")


def test_show_prints_what_apply_takes_back_unchanged(served: ServedAdmin, home: Path) -> None:
    shown = ctl("catalog", "show", "1", home=home, served=served)
    assert "# Catalog revision 1, which rules no more." in shown.stdout
    (home / "again.yaml").write_text(shown.stdout)
    again = load_catalog_file(home / "again.yaml").catalog
    told = ctl("catalog", "show", "1", "-o", "json", home=home, served=served)
    assert again == catalog_of(json.loads(told.stdout)["models"])


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
profiles = st.fixed_dictionaries(
    {"engine": st.just("sim"), "args": st.lists(text, max_size=3)},
    optional={
        "env": st.dictionaries(st.sampled_from(["A", "NULL", "yes"]), text),
        "replicas": st.integers(0, 3),
        "fabric": text,
        "load_timeout": st.floats(0, 1e8),
        "stop_first": st.booleans(),
    },
)


@example(profile={"engine": "sim", "env": {"A": "\x85"}, "args": ["\u2028", "é", "\ufeff", "a\n"]}, alias="null")
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(profile=profiles, alias=st.sampled_from(["null", "405", "no", "1.10", "12:30"]))
def test_any_catalog_reads_back_from_its_yaml(tmp_path: Path, profile: dict[str, object], alias: str) -> None:
    catalog = catalog_of([{"name": "a", "aliases": [alias], "profiles": [profile]}])
    (tmp_path / "c.yaml").write_text(catalog_yaml(catalog.model_dump(mode="json")["models"]))
    assert load_catalog_file(tmp_path / "c.yaml").catalog == catalog


def chat(wanted: int, ready: int, reason: str | None = None) -> ModelView:
    profile = ProfileView(
        name="default", engine="sim", nodes=1, gpus_per_node=1, wanted=wanted, ready=ready, reason=reason
    )
    return ModelView(name="chat", profiles=[profile])


def test_wait_follows_until_all_is_ready_in_its_new_form(
    served: ServedAdmin, backend: ScriptedBackend, home: Path
) -> None:
    backend.models_known = [chat(1, 1)]
    old = replica("old", model="chat", outdated=True)
    backend.replicas_known = [old, replica("new", model="chat", state="starting")]
    running = Running("apply", "catalog.yaml", "--yes", "--wait", home=home, served=served)
    try:
        assert "warning" in running.err.get(timeout=WAIT_S)
        assert running.err.get(timeout=WAIT_S) == "0 of 1 are ready; 1 still in their old form; starting: new"
        backend.replicas_known = [
            replica("new", model="chat"),
            msgspec.structs.replace(old, state="draining"),
        ]
        assert running.err.get(timeout=WAIT_S).startswith("all 1 wanted replicas are ready after")
        running.ends_with(0)
    finally:
        running.process.kill()
        running.process.wait()


def test_wait_says_what_is_not_ready_and_why_when_nothing_goes_on(
    served: ServedAdmin, backend: ScriptedBackend, home: Path
) -> None:
    backend.models_known = [chat(2, 1)]
    on_a_lost_node = replica("two", model="chat", state="failed")
    shards = [msgspec.structs.replace(shard, phase="lost") for shard in on_a_lost_node.shards]
    on_a_lost_node = msgspec.structs.replace(on_a_lost_node, shards=shards)
    backend.replicas_known = [replica("one", model="chat"), on_a_lost_node]
    done = ctl("apply", "catalog.yaml", "--yes", "--wait", home=home, served=served)
    assert done.returncode == 1
    last = "error: chat/default: 1 of 2 ready: 1 of 2 run; no fabric has 2 nodes with 4 free GPUs"
    assert last in done.stderr


def test_wait_ends_when_somebody_else_s_revision_rules(
    served: ServedAdmin, backend: ScriptedBackend, home: Path
) -> None:
    backend.models_known = [chat(1, 0)]
    backend.replicas_known = [replica("new", model="chat", state="starting")]
    running = Running("apply", "catalog.yaml", "--yes", "--wait", home=home, served=served)
    try:
        running.err.get(timeout=WAIT_S)
        assert "starting: new" in running.err.get(timeout=WAIT_S)
        backend.catalog.ruling = 4
        running.ends_with(1)
        assert "ops made revision 4, which rules instead of 3" in running.err.get(timeout=WAIT_S)
    finally:
        running.process.kill()
        running.process.wait()

"""The pages of the models: what runs, why what does not run does not, and the two things that can be done."""

from __future__ import annotations

import html
import re

import msgspec
import pytest

from llmgw.config.load import catalog_of
from llmgw.messages.admin import CatalogView, ExplainProfile, ExplainView, FilterTally, ModelView, ProfileView
from llmgw.messages.agent import Progress
from llmgw.messages.findings import Finding
from llmgw.server.admin.backend import AdminError
from llmgw.server.pages.addresses import model_url
from tests.ctl.scripted import ScriptedBackend, replica
from tests.pages.models import (
    BREAKOUT,
    ESCAPED,
    ESCAPES,
    SCRIPT,
    busy_replica,
    entries,
    failed_replica,
    keep_history,
    requests,
    shard,
)
from tests.pages.visitor import Visitor, words

LARGE = "/admin/models/org/chat-large"
SMALL = "/admin/models/chat-small"


def read(visitor: Visitor, path: str) -> str:
    answer = visitor.http.get(path)
    assert answer.status_code == 200, answer.text
    return words(answer.text)


def test_all_models_are_listed_with_their_states_and_rates(visitor: Visitor, backend: ScriptedBackend) -> None:
    requests(backend)
    page = visitor.http.get("/admin/models").text
    for name in ("org/chat-large", "org", "chat-small", "elsewhere"):
        assert f'href="{model_url(name)}"' in page
    said = words(page)
    assert re.search(r"org/chat-large ● ready 1 of 1 0 0 0\.69/s", said)
    assert re.search(r"chat-small Why no node has a free GPU ▲ starting 0 of 2 1 0 0/s 0/s – – 0/s", said), (
        "latencies of no request are unknown, not zero"
    )
    assert "1 static" in said


def test_a_model_is_shown_with_its_replicas_their_shards_and_what_their_engines_say(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.replicas_known[0] = busy_replica()
    answer = visitor.http.get(LARGE)
    said = words(answer.text)
    assert "● 1 of 1 ready" in said
    assert "5 in flight from here" in said
    assert "7 running, 3 waiting, KV cache 42 % used, prefix hits 61 %, 1,234/s tokens" in said
    assert "10.0.0.7:21000 , routed to" in said
    assert 'href="/admin/nodes/node02"' in answer.text
    assert 'href="/admin/replicas/chat-large-1a2b/logs?rank=1"' in answer.text
    assert "chat-small-3c4d" not in said, "only its own"
    for path in ("/api/v1/explain?model=org/chat-large", "/api/v1/replicas?model=org/chat-large"):
        assert f'href="{path}"' in answer.text


def test_what_an_engine_does_not_tell_is_unknown(visitor: Visitor) -> None:
    assert "Its engine has not told of its load" in read(visitor, LARGE)


def test_an_alias_leads_to_its_model(visitor: Visitor) -> None:
    assert "org/chat-large" in read(visitor, "/admin/models/chat")


def test_why_nothing_is_placed_is_said_with_the_filters_and_their_nodes(visitor: Visitor) -> None:
    answer = visitor.http.get(SMALL)
    said = words(answer.text)
    assert "no node has a free GPU" in said
    assert "The next try is in 12.0 s" in said
    assert "The last failure: the engine exited with code 1" in said
    assert "2 × fewer free GPUs than the profile needs" in said
    assert "chat-large-1a2b sits on 2 leaves (leaf01, leaf02), 1 tier crossed: node01, node02" in said
    assert "node03 and node04 on ib-a: one leaf (leaf02), rails aligned" in said
    assert "node05 : comes last: cable leaf01 port 3 runs at 4xDDR" in said
    assert 'href="/admin/nodes/node05"' in answer.text


def test_a_rollout_says_how_far_it_is(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.replicas_known = [
        replica("old-1", outdated=True),
        replica("old-2", outdated=True),
        replica("new-1", state="starting", replaces="old-1"),
        replica("gone", state="failed", outdated=True),
    ]
    backend.models_known[0] = ModelView(
        name="org/chat-large",
        profiles=[ProfileView(name="default", engine="sim", nodes=2, gpus_per_node=4, wanted=2, ready=2)],
    )
    said = read(visitor, LARGE)
    assert "1 of 2 run the catalog's form, 2 an earlier one; new-1 replaces old-1" in said
    assert "▲ outdated" in said


def test_a_profile_of_which_none_is_wanted_is_not_called_ready(visitor: Visitor) -> None:
    said = read(visitor, "/admin/models/org")
    assert said.count("○ scaled to 0") == 2
    assert "0 of 0 ready" not in said


def test_what_is_wrong_with_it_comes_first_and_what_is_wrong_elsewhere_does_not(
    visitor: Visitor, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ["org/chat-large", "org/chat-large/default", "chat-large-1a2b", "chat-small", "org", "node01"]
    found = [
        Finding(
            check=f"c{number}",
            severity="warning",
            where=where,
            what=f"wrong at {where}",
            remedy=f"`mend {where}`",
        )
        for number, where in enumerate(places)
    ]
    server = msgspec.structs.replace(backend.server(), problems=found)
    monkeypatch.setattr(backend, "server", lambda: server)
    said = read(visitor, LARGE)
    assert [place for place in places if f"mend {place} " in said] == places[:3]
    assert said.index("What is wrong") < said.index("Profiles")
    assert "What is wrong" not in read(visitor, "/admin/models/elsewhere")


def test_the_catalogs_limits_are_said(visitor: Visitor, backend: ScriptedBackend) -> None:
    async def view(number: int | None) -> CatalogView:
        limits = {"waiting": 50, "kv_cache": "95%", "ttft_p95": "10s"}
        profiles = [{"engine": "sim"}]
        models = [
            {"name": "org/chat-large", "limits": limits, "profiles": profiles},
            {"name": "chat-small", "profiles": profiles},
        ]
        found = catalog_of(models).model_dump(mode="json")["models"]
        return CatalogView(revision=1, at=1.0, by="ops", ruling=True, models=found)

    backend.catalog.view = view  # type: ignore[method-assign]
    assert "Limits waiting 50, kv_cache 95 %, ttft_p95 10s" in read(visitor, LARGE)
    assert "Limits" not in read(visitor, SMALL)


def test_a_download_has_a_bar_and_without_a_total_no_percentage(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    page = visitor.http.get(SMALL).text
    assert f'<progress class="bar-of" max="{10 * 2**30}" value="{5 * 2**30}" aria-label="weights">' in page
    assert "weights: 5 GiB of 10 GiB (50 %)" in words(page)

    def fetching(progress: Progress) -> str:
        shards = [shard("s", 0, phase="fetching", progress=progress)]
        backend.replicas_known = [replica("s", model="chat-small", state="starting", shards=shards)]
        return visitor.http.get(SMALL).text

    page = fetching(Progress(what="weights", done_bytes=2**30, rate_bytes_s=3e8, left_s=17.0))
    assert "<progress" not in page
    assert "weights: 1 GiB, 286 MiB/s, 17.0 s left" in words(page)
    assert "%" not in words(page)[words(page).index("weights:") :][:60]
    assert "load; 3 of 7 pieces" in words(fetching(Progress(what="load", note="3 of 7 pieces")))


def test_replicas_in_trouble_come_first(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.replicas_known = [
        replica("r-serves"),
        replica("r-old", outdated=True),
        replica("r-out", routed=False, reason="out of the rotation: no token came for 120 s"),
        replica("r-stops", state="stopping", routed=False),
        replica("r-starts", state="starting", routed=False),
        failed_replica("r-failed"),
    ]
    page = visitor.http.get(LARGE).text
    order = ["r-failed", "r-starts", "r-stops", "r-out", "r-old", "r-serves"]
    assert re.findall(r'id="replica-(r-\w+)"', page) == order
    assert "▲ out of rotation" in words(page)


def test_a_failed_replica_says_why_with_exit_code_and_last_output(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.replicas_known = [failed_replica()]
    page = visitor.http.get(LARGE).text
    said = words(page)
    assert "✕ failed" in said
    assert "the engine ended; exit code 137" in said
    assert "out of memory" in said
    assert 'action="/admin/replicas/chat-large-dead/restart"' not in page, "what ended cannot be restarted"


def test_the_last_hour_is_drawn_and_said(visitor: Visitor, backend: ScriptedBackend) -> None:
    requests(backend)
    page = visitor.http.get(LARGE).text
    assert page.count('<svg class="field"') == 3
    assert len(re.findall(r'class="line l\d" d="M[\d. ]{40,}', page)) >= 4
    said = words(page)
    for axis in ("in requests per second", "in seconds", "in tokens per second"):
        assert axis in said
    assert re.search(r"Requests, the last hour\. all: now [\d.]+/s, highest [\d.]+/s; errors \(5xx\): now", said)
    assert len(page) < 150_000
    assert "nothing in the last hour" in read(visitor, SMALL)


def test_what_happened_lately_is_there_with_the_way_to_the_rest(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    keep_history(backend, entries(50, model="org/chat-large", reason="why"))
    page = visitor.http.get(LARGE).text
    assert page.count('id="entry-') == 20
    assert 'href="/admin/history?model=org/chat-large"' in page
    assert ("history", None, None, "org/chat-large", None, 20) in backend.asked


def test_a_model_that_left_the_catalog_is_shown_while_something_of_it_runs(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.replicas_known.append(replica("gone-1", model="gone", state="stopping"))
    assert "in the catalog no more" in read(visitor, "/admin/models/gone")
    answer = visitor.http.get("/admin/models/never/was")
    assert answer.status_code == 404
    assert "There is no model &#39;never/was&#39;; known:" in answer.text


def test_a_model_with_static_endpoints_only_has_no_profiles(visitor: Visitor) -> None:
    said = read(visitor, "/admin/models/elsewhere")
    assert "https://api.example.org" in said
    assert "Profiles" not in said


@pytest.mark.parametrize("name", ["a/../b", "a/./b", "a/..", "x//y", "m:8b@q4+x"])
def test_a_models_address_survives_what_browsers_do_to_paths(
    visitor: Visitor, backend: ScriptedBackend, name: str
) -> None:
    backend.models_known.append(ModelView(name=name))
    # The client takes dot segments out, as browsers do.
    assert f"<h1>{name}</h1>" in visitor.http.get(model_url(name)).text


def scale(visitor: Visitor, path: str, **form: str) -> tuple[int, str]:
    answer = visitor.http.post(path, data={"csrf": visitor.csrf(), "profile": "default", **form})
    if answer.status_code != 303:
        return answer.status_code, answer.text
    shown = visitor.http.get(answer.headers["location"])
    return answer.status_code, shown.text


def test_a_profile_is_scaled_in_the_name_of_the_session(visitor: Visitor, backend: ScriptedBackend) -> None:
    status, page = scale(visitor, LARGE, replicas="3")
    assert status == 303
    assert backend.asked[0][:2] != ("scale",)
    assert ("scale", "org/chat-large", "default", 3, "first") in backend.asked
    assert "scale was done" in page
    assert "▲ no node could host a third" in page


def test_a_scale_that_must_be_confirmed_asks_with_the_servers_sentence_and_keeps_what_was_typed(
    visitor: Visitor, backend: ScriptedBackend
) -> None:
    backend.scale_refused = "it would stop 3 of 8 ready replicas, more than 20%"
    status, page = scale(visitor, LARGE, replicas="0")
    assert status == 409
    assert "It would stop 3 of 8 ready replicas, more than 20%." in page
    assert 'required value="0"' in page
    assert 'name="confirmed" value="yes"' in page
    assert "live.js" not in page, "what was asked is not refreshed away"
    assert [each for each in backend.asked if each[0] == "scale"] == []
    status, page = scale(visitor, LARGE, replicas="0", confirmed="yes")
    assert status == 303
    assert ("scale", "org/chat-large", "default", 0, "first", "confirmed") in backend.asked


@pytest.mark.parametrize("typed", ["", "-1", "1.5", "1001", "٣", "1_0", "9" * 40, SCRIPT])
def test_what_is_no_number_of_replicas_is_said_and_stays_in_the_field(
    visitor: Visitor, backend: ScriptedBackend, typed: str
) -> None:
    status, page = scale(visitor, LARGE, replicas=typed)
    assert status == 400
    assert "Replicas must be a whole number from 0 to 1000" in page
    assert f'required value="{html.escape(typed[:20], quote=False)}"' in page
    assert SCRIPT not in page
    assert [each for each in backend.asked if each[0] == "scale"] == []


def test_a_replica_is_restarted_and_its_models_page_says_so(visitor: Visitor, backend: ScriptedBackend) -> None:
    answer = visitor.http.post("/admin/replicas/chat-large-1a2b/restart", data={"csrf": visitor.csrf()})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"{LARGE}?said=")
    assert "restart was done" in visitor.http.get(answer.headers["location"]).text
    assert ("restart", "chat-large-1a2b", "first") in backend.asked


@pytest.mark.parametrize("path", [LARGE, "/admin/replicas/chat-large-1a2b/restart"])
def test_nothing_is_changed_by_what_another_site_sends(
    visitor: Visitor, backend: ScriptedBackend, path: str
) -> None:
    form = {"profile": "default", "replicas": "0", "confirmed": "yes"}
    csrf = visitor.csrf()
    refused = [
        visitor.http.post(path, data=form),
        visitor.http.post(path, data={**form, "csrf": "guess"}),
        visitor.http.post(path, data={**form, "csrf": csrf}, headers={"sec-fetch-site": "cross-site"}),
        visitor.http.post(path, data={**form, "csrf": csrf}, headers={"origin": "https://elsewhere.example"}),
    ]
    assert [answer.status_code for answer in refused] == [403] * 4
    assert [each for each in backend.asked if each[0] in ("scale", "restart")] == []


def test_a_replica_leads_to_its_model_and_later_to_its_history(visitor: Visitor) -> None:
    there = visitor.http.get("/admin/replicas/chat-large-1a2b")
    assert there.headers["location"] == f"{LARGE}#replica-chat-large-1a2b"
    gone = visitor.http.get("/admin/replicas/chat-large-gone")
    assert gone.headers["location"] == "/admin/history?subject=chat-large-gone"


def test_names_reasons_and_output_that_mean_harm_are_text(visitor: Visitor, backend: ScriptedBackend) -> None:
    evil = f"m{SCRIPT}{BREAKOUT}"
    shards = [
        shard(
            "r", 0, node=f"n{SCRIPT}", phase=f"failed{BREAKOUT}", reason=SCRIPT, output_tail=[SCRIPT, ESCAPES],
            progress=Progress(what=BREAKOUT, done_bytes=1, total_bytes=2, note=SCRIPT),
        )
    ]  # fmt: skip
    backend.replicas_known = [
        replica("r", model=evil, profile=SCRIPT, reason=BREAKOUT, fabric=SCRIPT, state="failed", shards=shards)
    ]
    backend.models_known = [
        ModelView(
            name=evil,
            aliases=[SCRIPT],
            source=BREAKOUT,
            static_endpoints=[SCRIPT],
            profiles=[
                ProfileView(name=BREAKOUT, engine=SCRIPT, nodes=1, gpus_per_node=1, wanted=1, reason=SCRIPT)
            ],
        )
    ]
    why = ExplainProfile(
        name=BREAKOUT, wanted=1, ready=0, summary=SCRIPT, decided=[SCRIPT], last={SCRIPT: BREAKOUT},
        refused=[FilterTally(reason=SCRIPT, nodes=[SCRIPT], details={SCRIPT: BREAKOUT})], last_failure=SCRIPT,
        feasible=[BREAKOUT], placed={SCRIPT: [SCRIPT]}, sits={SCRIPT: SCRIPT},
    )  # fmt: skip
    backend.explain = lambda model: ExplainView(model=model, profiles=[why])  # type: ignore[method-assign]
    keep_history(backend, entries(1, model=evil, subject=SCRIPT, event=BREAKOUT, reason=SCRIPT, nodes=[BREAKOUT]))
    for page in (visitor.http.get(model_url(evil)), visitor.http.get("/admin/models")):
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert not re.search(r"<script(?![^>]*\bsrc=\"/admin/static)|\sstyle=|\son[a-z]+=\"|<style", page.text)
    assert ESCAPED in visitor.http.get(model_url(evil)).text


def test_a_store_that_cannot_be_read_is_a_sentence(visitor: Visitor, backend: ScriptedBackend) -> None:
    async def history(**asked: object) -> list[object]:
        raise AdminError(503, "store", "the disk is full")

    backend.history = history  # type: ignore[assignment, method-assign]
    answer = visitor.http.get(LARGE)
    assert answer.status_code == 503
    assert "The disk is full." in answer.text

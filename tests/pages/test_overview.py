"""/admin: problems first, then what goes on, the models, the nodes and the fabrics."""

from __future__ import annotations

import re
import time

from llmgw.messages.admin import ModelView, ProfileView
from llmgw.messages.findings import Finding
from llmgw.messages.routes import Outcome
from tests.ctl.scripted import ScriptedBackend, ServedAdmin, node, replica
from tests.pages.big_fleet import big_backend
from tests.pages.fabrics import HOSTILE
from tests.pages.visitor import Visitor, words

BREAKOUT = "\"'><img src=x onerror=window.hacked=1>"


def home(visitor: Visitor) -> str:
    answer = visitor.http.get("/admin")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_problems_come_first_and_each_says_where_what_why_and_what_to_type(visitor: Visitor) -> None:
    page = home(visitor)
    order = [page.index(f'id="{section}"') for section in ("problems", "models", "nodes", "fabrics")]
    assert order == sorted(order)
    said = words(page)
    assert "What is wrong 1 error, 1 warning" in said
    assert "✕ error node02 mlx5_1 port 1 of mlx5_1 is DOWN ib-a has one rail less check the cable" in said
    assert said.index("port 1 of mlx5_1") < said.index("router-1 it is silent"), "errors first"
    assert '<a href="/admin/nodes/node02">node02</a> mlx5_1' in page


def test_what_is_to_be_typed_is_marked_as_such(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.nodes_known[0] = node(
        "node01",
        findings=[
            Finding(
                check="x", severity="error", where="node01", what="it hangs", remedy="run `llmgw doctor` there"
            )
        ],
    )
    assert "run <code>llmgw doctor</code> there" in home(visitor)


def test_hundreds_of_one_kind_are_one_problem_that_lists_its_places() -> None:
    served = ServedAdmin(big_backend(400))
    try:
        visitor = Visitor(served.url)
        visitor.log_in()
        page = home(visitor)
    finally:
        served.stop()
    assert words(page).count("fabric-port-down") == 1
    assert "40 × fabric-port-down" in words(page)
    assert page.count('<span><a href="/admin/nodes/gpu-node-') == 40
    assert len(re.findall(r'<li[^>]*><a href="/admin/nodes/gpu-node-', page)) == 400, "a tile each"


def test_a_fleet_of_400_nodes_is_a_light_page_that_comes_quickly() -> None:
    backend = big_backend(400)
    served = ServedAdmin(backend)
    try:
        visitor = Visitor(served.url)
        visitor.log_in()
        home(visitor)
        for path in ("/admin", "/admin/nodes"):
            began = time.process_time()
            answer = visitor.http.get(path)
            # Of the processor, which other work on this machine does not lengthen; it is a tenth of this.
            assert time.process_time() - began < 1.0, path
            assert len(answer.text) < 150_000, path
    finally:
        served.stop()


def test_when_nothing_is_wrong_it_says_so(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.nodes_known = [node("node01")]
    backend.problems = []
    said = words(home(visitor))
    assert "Nothing is wrong" in said
    assert "Under way" not in said


def test_what_goes_on_is_said_with_what_it_waits_for(troubled: Visitor) -> None:
    said = words(home(troubled))
    assert "The agents are upgraded to llmgw 1.0: 1 of 14 nodes done" in said
    assert "gpu-node-0002: restarting" in said
    assert "gpu-node-0005 ▲ is draining: 1 replica left, 1 of them cannot be moved" in said
    assert "model-0005: no other node has 4 free GPUs" in said


def test_a_server_that_settles_and_an_upgrade_that_is_over(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.settling = True
    backend.upgrades.last = None
    said = words(home(visitor))
    assert "The server has just started: nothing new is placed until its nodes are back" in said
    assert "The agents" not in said


def test_models_have_their_replicas_and_rates(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.recent.now = 10.0
    backend.recent.tell(
        *[
            Outcome(
                model="org/chat-large", endpoint="chat-large-1a2b", status=200, first_byte_s=0.34, total_s=2.0,
                completion_tokens=1200,
            )
        ] * 20,
        Outcome(model="org/chat-large", endpoint="chat-large-1a2b", status=503, total_s=0.1),
    )  # fmt: skip
    page = home(visitor)
    rows = {
        words(f"<main>{row}</main>").split()[0]: words(f"<main>{row}</main>")
        for row in re.findall(r"<tr>\n(<th scope=\"row\">.*?)</tr>", page, re.S)
    }
    large = rows["org/chat-large"]
    assert "● ready 1 of 1 0 0" in large
    assert re.search(r"▲ 0\.\d+/s (3[0-9]{2}) ms (3[0-9]{2}) ms", large), large
    assert '<a href="/admin/models/org/chat-large">' in page
    small = rows["chat-small"]
    assert "▲ starting 0 of 2 1 0" in small
    assert "no node has a free GPU" in small
    assert "0/s 0/s – – 0/s 0 0" in small, "the times of no request are unknown, not zero"
    assert "✕ serves nobody 1 static" in rows["elsewhere"]


def test_models_that_serve_nobody_come_first(troubled: Visitor) -> None:
    said = words(home(troubled))
    assert said.index("org/none Why it fails ✕ serves nobody") < said.index("org/half Why")
    assert said.index("org/half Why") < said.index("org/model-0")
    assert "▲ 1 missing 1 of 2 1 ▲ 3" in said


def test_nodes_say_what_they_are_in_words_beside_their_gpus(troubled: Visitor) -> None:
    said = words(home(troubled))
    for tile in (
        "gpu-node-0002 4/8 ✕ 1 broken",
        "gpu-node-0003 4/8 ✕ lost",
        "gpu-node-0004 4/8 ▲ unreachable",
        "gpu-node-0005 4/8 ▲ draining",
        "gpu-node-0006 4/16 ○ cordoned",
        "gpu-node-0007 no GPUs",
        "gpu-node-0008 4/8 ✕ 1 error",
        "gpu-node-0013 4/8 gpu-node-0014",
    ):
        assert tile in said


def test_an_empty_fleet_says_how_to_begin(visitor: Visitor, backend: ScriptedBackend) -> None:
    backend.nodes_known, backend.replicas_known, backend.models_known = [], [], []
    said = words(home(visitor))
    assert "No node has registered yet: llmgw onboard-node brings one in." in said
    assert "The catalog has no model yet: llmgw ctl apply FILE puts some in." in said


def test_what_others_named_stays_text(visitor: Visitor, backend: ScriptedBackend) -> None:
    hostile = f"{HOSTILE}{BREAKOUT}"
    found = Finding(check=hostile, severity="error", where=hostile, what=hostile, why=hostile, remedy=hostile)
    backend.nodes_known = [
        node(
            f"node{at}", reason=hostile, state=hostile, version=hostile, findings=[found], draining=True,
            drain_left=[hostile], drain_waits=[hostile], replicas=[hostile],
        )
        for at in range(5)
    ]  # fmt: skip
    backend.nodes_known.append(node(hostile))
    backend.replicas_known = [replica(hostile, model=hostile)]
    profile = ProfileView(name=hostile, engine="sim", nodes=1, gpus_per_node=1, wanted=1, reason=hostile)
    backend.models_known = [ModelView(name=hostile, profiles=[profile, profile])]
    page = home(visitor)
    assert "<script>window" not in page
    assert "<img" not in page.replace('<img src="/admin/static', "")
    assert "window.hacked" in page, "it is shown"
    assert 'href="javascript' not in page


def test_the_page_links_what_it_draws(visitor: Visitor) -> None:
    page = home(visitor)
    for path in ("server", "models", "rates", "nodes", "fabrics"):
        assert f'<a href="/api/v1/{path}">' in page
        assert visitor.http.get(f"/api/v1/{path}").status_code == 200
    assert visitor.http.get("/admin?unknown=1").status_code == 400

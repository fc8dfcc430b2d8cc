"""Views of a whole fleet are made once for all pages that are drawn at the same time."""

from __future__ import annotations

from llmgw.server.pages.remembered import remembered
from tests.ctl.scripted import ScriptedBackend, node


def test_a_view_is_made_again_when_something_happens_or_it_is_old_and_all_else_is_asked_each_time() -> None:
    now = [100.0]
    backend = ScriptedBackend()
    pages = remembered(backend, 1.0, lambda: now[0])
    first = pages.server()
    backend.nodes_known[0].findings.extend(backend.nodes_known[1].findings)
    assert pages.server() is first
    now[0] += 1.0
    later = pages.server()
    assert len(later.problems) == len(first.problems) + 1
    backend.nodes_known = [node("node07")]
    backend.news.move()
    assert pages.server() is later, "figures that move make no other view"
    backend.news.happen()
    assert [view.node_id for view in pages.nodes()] == ["node07"]
    assert pages.server().problems != later.problems
    assert pages.explain("org/chat-large") == backend.explain("org/chat-large")
    assert pages.news is backend.news


def test_views_that_may_not_be_old_are_never_kept() -> None:
    backend = ScriptedBackend()
    pages = remembered(backend, 0.0, lambda: 1.0)
    assert pages.server() is not pages.server()

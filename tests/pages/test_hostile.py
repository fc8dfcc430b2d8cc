"""Whatever stands in a name, a reason or a log line: on every page it is text, and no page fails of it."""

from __future__ import annotations

import functools
import re
from html.parser import HTMLParser
from typing import Any, Literal, get_args, get_origin, get_type_hints

import httpx
import msgspec
import pytest

from llmgw.messages.admin import Done
from tests.ctl.scripted import ScriptedBackend
from tests.pages.routes import KNOWN, Around, Walk, address

UNSEEN = "\u202e\u2066\u200b\u200d\ufeff\u00ad\x00\x1b\x85\U000e0041"
HOSTILE = {
    "tags": (
        "<hacked>\"><hacked>'><hacked hacked=1> hacked=1 onhacked='x' --></script></style></title></textarea>"
        "</select></svg><hacked><script>hacked</script><img src=x onerror=hacked>{{7*7}}{%hacked%}&lt;hacked&gt;"
    ),
    "link": "javascript:hacked(1)",
    "scheme": " \tdata:text/html,<hacked>",
    "unseen": f"a{UNSEEN}b\nc",
    "surrogates": "a\ud800b\udfff/\udc80",
    "long": "hackedhack" * 1_000,
    "empty": "",
    "dots": "../..//x?hacked=1#hacked",
}
# Names that pages are asked for by; a page of one thing is seen with all else of it changed.
IDENTITIES = {"node_id", "replica_id", "name", "names", "model", "aliases", "node", "nodes", "id", "fabric"}
LINKS = ("href", "src", "action", "formaction", "poster", "data", "xlink:href", "ping", "cite")


class Parsed(HTMLParser):
    """What a browser would make of a page, as far as it may do something."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "hacked" in tag or (tag == "script" and not (given.get("src") or "").startswith("/admin/static/")):
            self.wrong.append(f"<{tag}> {attrs}")
        for name, value in attrs:
            link = re.sub(r"[\x00-\x20]", "", value or "").lower()
            if "hacked" in name or name.startswith("on") or name == "style":
                self.wrong.append(f"<{tag}> {name}={value}")
            if name in LINKS and not link.startswith(("/", "#", "?", "data:image/")) and link != "":
                self.wrong.append(f"<{tag}> {name}={value}")

    def handle_decl(self, decl: str) -> None:
        if decl.lower() != "doctype html":
            self.wrong.append(decl)

    def handle_comment(self, data: str) -> None:
        self.wrong.append(f"<!--{data}-->")

    def handle_data(self, data: str) -> None:
        self.text += data


hints = functools.cache(get_type_hints)


def spoiled(value: Any, with_text: str, keep: frozenset[str] = frozenset(), kind: Any = None) -> Any:
    """`value` with every text replaced, but for fields named in `keep` and those that have a few words only."""
    if get_origin(kind) is Literal or any(get_origin(each) is Literal for each in get_args(kind)):
        return value
    if isinstance(value, str):
        return with_text
    if isinstance(value, msgspec.Struct):
        kinds = hints(type(value))
        changed = {
            name: getattr(value, name)
            if name in keep
            else spoiled(getattr(value, name), with_text, keep, kinds.get(name))
            for name in value.__struct_fields__
        }
        return type(value)(**changed)
    if isinstance(value, dict):
        # Keys stay apart.
        return {
            f"{with_text}{at}" if isinstance(key, str) and not keep else key: spoiled(inner, with_text, keep)
            for at, (key, inner) in enumerate(value.items())
        }
    if isinstance(value, (list, tuple)):
        return type(value)(spoiled(inner, with_text, keep) for inner in value)
    return value


def test_structs_are_spoiled_through_and_through() -> None:
    done = spoiled(Done(message="a", warnings=["b", "c"]), "x")
    assert done == Done(message="x", warnings=["x", "x"])


@pytest.fixture
def eventful(backend: ScriptedBackend) -> ScriptedBackend:
    """A control plane that has entries of everything, and whose token is named like the hostile text."""
    for number in range(3):
        backend.audit.record(
            by="first", address="10.0.0.9", method="POST", route="/api/v1/scale", subject="a/b",
            summary="replicas 3", status=200 + number * 150, message="done",
        )  # fmt: skip
    return backend


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("keep", [frozenset(), frozenset(IDENTITIES)], ids=["everything", "all but names"])
def test_no_text_of_any_view_is_more_than_text_on_any_page(
    eventful: ScriptedBackend, kind: str, keep: frozenset[str]
) -> None:
    text = HOSTILE[kind]

    def told(name: str, answer: Any) -> Any:
        # A drawing is made by us as a whole; its own tests have hostile names in it.
        return (
            answer
            if name.endswith((".svg", "metrics", ".record", ".wrong_token"))
            else spoiled(answer, text, keep)
        )

    walk = Walk(Around(eventful, told), by=spoiled("first", text) if not keep else "first")
    walk.session.said["x"] = spoiled(Done(message="a", warnings=["b"]), text)
    asked = [address(route) for route in walk.pages()]
    if not keep and kind not in ("surrogates", "empty"):
        asked += [address(route, dict.fromkeys([*KNOWN, "rest"], text)) for route in walk.pages()]
    asked += [f"{path}?said=x" for path in asked]
    seen = []

    async def body(client: httpx.AsyncClient) -> None:
        for path in asked:
            answer = await client.get(path)
            assert answer.status_code < 500, f"{path[:200]}: {answer.text[:2000]}"
            if answer.headers.get("content-type", "").startswith("text/html"):
                page = Parsed(answer.text)
                assert page.wrong == [], path[:200]
                assert "hacked49" not in answer.text
                assert not set(answer.text) & set(UNSEEN), path[:200]
                seen.append((path, answer.status_code, page.text))

    walk.run(body)
    if keep:
        unseen = [path for path, status, _ in seen if "?" not in path and status != 200]
        wrong = [path for path in unseen if "x" not in path.split("/")]
        assert wrong == [], "the pages of what there is are seen"
    if kind in ("tags", "link", "long") and not keep:
        assert any("hacked" in text for _, _, text in seen), "it is said, as text"

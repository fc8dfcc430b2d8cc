"""Documents lead to each other: each is linked from the README, and every link and anchor leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DOCUMENTS = [*TOP, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "llmgw").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text_of(path: Path) -> str:
    """The document without what stands in its blocks."""
    return BLOCK.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    found = set()
    for heading in HEADING.findall(text_of(path)):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", bare).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    wrong = []
    for link in LINK.findall(text_of(path)):
        if re.match(r"(https?|mailto):", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_every_document_is_linked_from_the_readme() -> None:
    links = {
        (ROOT / link.partition("#")[0]).resolve() for link in LINK.findall(text_of(ROOT / "README.md")) if link
    }
    assert [path.name for path in DOCUMENTS[1:] if path.resolve() not in links] == []

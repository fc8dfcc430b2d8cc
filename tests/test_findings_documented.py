"""Whoever is woken by a finding finds it in docs/operations.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from llmgw.fleet.model import NodeState

ROOT = Path(__file__).parent.parent
OPERATIONS = ROOT / "docs" / "operations.md"
KIND = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
MAKES_ONE = re.compile(r"find|found|more|error|warn|note|problem|told|add", re.IGNORECASE)


def constants(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)


def kinds(path: Path) -> set[str]:
    """The names of checks that a file makes findings of: `check=…`, or the first argument of what makes one."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "check":
                    found += constants(keyword.value)
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if node.args and MAKES_ONE.search(name):
                found += constants(node.args[0])
        elif isinstance(node, ast.Assign) and any("check" in ast.unparse(target) for target in node.targets):
            value = node.value.elts[0] if isinstance(node.value, ast.Tuple) and node.value.elts else node.value
            found += constants(value)
    return {kind for kind in found if KIND.fullmatch(kind)}


def every_kind() -> set[str]:
    """The names of all checks that the product has."""
    files = [path for path in (ROOT / "llmgw").rglob("*.py") if "finding" in path.read_text().lower()]
    found = set().union(*(kinds(path) for path in files))
    return found | {f"node-{state}" for state in NodeState if state is not NodeState.READY}


def test_every_finding_that_the_product_has_is_in_operations() -> None:
    found = every_kind()
    assert len(found) > 100, "they are found by how they are written; has that changed?"
    text = OPERATIONS.read_text()
    assert sorted(kind for kind in found if f"`{kind}`" not in text) == []


def test_every_finding_has_a_remedy() -> None:
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "llmgw").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Finding"
        and not {"remedy", None} & {keyword.arg for keyword in node.keywords}
    ]
    assert without == []

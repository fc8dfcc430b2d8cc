"""The rooms of the house: imports point down only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "llmgw"

FLOOR = {
    "cli": 4,
    **dict.fromkeys(["server", "router", "agent", "doctor", "onboarding", "sim"], 3),
    **dict.fromkeys(["engines", "hardware", "fabric", "pki", "release", "metrics"], 2),
    **dict.fromkeys(["fleet", "messages", "config"], 1),
}
# Rooms of floor 1 that see nothing else of the package, or only what is named.
GROUND = {"fleet": {"messages", "config"}, "messages": set(), "config": {"messages"}}


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: relative import")
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("llmgw.")} & set(FLOOR)


@pytest.mark.parametrize(
    "room", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    assert room in FLOOR, f"{room} stands in no row of the table of rooms"
    wrong = []
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for other in imported_rooms(path) - {room}:
            allowed = other in GROUND[room] if room in GROUND else FLOOR[other] < FLOOR[room]
            if not allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {other}")
    assert not wrong


@pytest.mark.parametrize("path", sorted((PACKAGE / "fleet").rglob("*.py")), ids=lambda path: path.name)
def test_the_core_has_no_clock_no_randomness_and_no_io(path: Path) -> None:
    forbidden = {
        "time",
        "random",
        "uuid",
        "secrets",
        "os",
        "socket",
        "asyncio",
        "pathlib",
        "subprocess",
        "datetime",
    }
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            used.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            used.add(node.module.split(".")[0])
    assert not used & forbidden

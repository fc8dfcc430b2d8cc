"""YAML text into nodes that know their lines, within limits on size, depth and aliases.

Scalars stay text: what a value means is the models' business. So `name: 405`, `version: 1.10` and
`FLAG: yes` reach a text key as they were written, and YAML 1.1's surprises (`no` as false, `12:30` as 750,
dates) reach nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

BYTES_MAX = 4 * 1024 * 1024
NODES_MAX = 200_000
"""Values in one file, each alias counted with everything behind it: the bound on `billion laughs`."""
DEPTH_MAX = 32

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TEXT_TAGS = frozenset({None, "!", "tag:yaml.org,2002:str"})
# https://yaml.org/spec/1.2.2/#51-character-set, the complement of c-printable.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# libyaml's parser where PyYAML was built with it: ten times as quick as the one in Python.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlProblem(ValueError):
    """Text that cannot be read. `str()` is a sentence without its place; `line` counts from 1, or is None."""

    def __init__(self, sentence: str, line: int | None = None) -> None:
        super().__init__(sentence)
        self.line = line


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it is written: for a value under a key, the key's line.

    `value` is text, None, a list or a mapping. `size` counts the values in it, with aliases followed.
    `empty` is True for a None that is written as nothing at all (`key:`).
    """

    line: int
    value: str | list[Node] | dict[str, Node] | None
    size: int = 1
    empty: bool = False

    def plain(self) -> Any:
        """The value as text, None, lists and dicts. Nothing is shared between its parts."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return self.value

    def child(self, step: str | int) -> Node | None:
        """The node one step down (a key or an index), or None."""
        if isinstance(self.value, dict):
            return self.value.get(str(step))
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            return self.value[step]
        return None


def read_yaml(data: bytes) -> Node | None:
    """Read one YAML document. None when there is nothing but comments and white space.

    Raises YamlProblem for what is not UTF-8, not YAML, or beyond the limits above.
    """
    if len(data) > BYTES_MAX:
        raise YamlProblem(f"larger than {BYTES_MAX // 2**20} MiB; is this the right file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlProblem(
            f"byte 0x{data[error.start]:02x} is not UTF-8; save the file with that encoding", line
        ) from None
    found = _UNPRINTABLE.search(text)
    if found:
        raise YamlProblem(
            f"the character U+{ord(found[0]):04X} does not belong into a text file; remove it",
            text.count("\n", 0, found.start()) + 1,
        )
    try:
        return _Composer(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.YAMLError as error:
        raise _problem(error, text) from None


class _Composer:
    """Events into nodes, top down."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Node | None] = {}
        self._total = 0

    def document(self) -> Node | None:
        next(self._events)  # the stream's start
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        root = self._node(next(self._events), 0)
        next(self._events)  # the document's end
        event = next(self._events)
        if isinstance(event, yaml.DocumentStartEvent):
            raise YamlProblem("a second document begins here ('---'); keep one in a file", _line(event))
        return None if root.empty else root

    def _node(self, event: Any, depth: int) -> Node:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line)
        if depth > DEPTH_MAX:
            raise YamlProblem(f"nested deeper than {DEPTH_MAX} levels", line)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, line)
        elif event.tag not in (None, "!"):
            raise YamlProblem(f"tags like {event.tag} are not read here; remove it", line)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(line, depth)
        else:
            node = self._mapping(line, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _scalar(self, event: Any, line: int) -> Node:
        self._count(1, line)
        if event.tag not in _TEXT_TAGS:
            raise YamlProblem(f"tags like {event.tag} are not read here; remove it", line)
        plain = event.implicit[0]
        if plain and event.value in _NULLS:
            return Node(line, None, empty=event.value == "")
        return Node(line, event.value)

    def _sequence(self, line: int, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return Node(line, items, self._sum(items, line))

    def _mapping(self, line: int, depth: int) -> Node:
        entries: dict[str, Node] = {}
        merged: list[Node] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = _line(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise YamlProblem("a key must be a word, not a list, a group of keys or an alias", key_line)
            key = self._scalar(event, key_line).value
            value = self._node(next(self._events), depth + 1)
            if not isinstance(key, str):
                raise YamlProblem("a ':' without a key before it", key_line)
            if key == "<<":
                merged += value.value if isinstance(value.value, list) else [value]
            elif key in entries:
                raise YamlProblem(
                    f"{key}: written twice, first on line {entries[key].line}; remove one", key_line
                )
            else:
                entries[key] = replace(value, line=key_line)
        for source in merged:
            if not isinstance(source.value, dict):
                raise YamlProblem("'<<' takes the alias of a group of keys, or a list of such aliases", line)
            for key, value in source.value.items():
                entries.setdefault(key, value)
        return Node(line, entries, self._sum(list(entries.values()), line))

    def _alias(self, anchor: str, line: int) -> Node:
        if anchor not in self._anchors:
            raise YamlProblem(f"the alias *{anchor} has no anchor &{anchor} above it", line)
        node = self._anchors[anchor]
        if node is None:
            raise YamlProblem(f"the alias *{anchor} stands inside its own anchor", line)
        self._count(node.size, line)
        return replace(node, line=line)

    def _sum(self, items: list[Node], line: int) -> int:
        size = 1 + sum(item.size for item in items)
        if size > NODES_MAX:
            raise YamlProblem(_TOO_MANY, line)
        return size

    def _count(self, nodes: int, line: int) -> None:
        self._total += nodes
        if self._total > NODES_MAX:
            raise YamlProblem(_TOO_MANY, line)


_TOO_MANY = f"more than {NODES_MAX} values, aliases counted with what they stand for; make the file smaller"


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


# libyaml's and PyYAML's words (scanner.c, parser.c, scanner.py, parser.py), and what a person does about them.
_ADVICE = (
    (
        "mapping values are not allowed",
        "a ':' that does not fit here; check the indentation, and quote a value that contains ': '",
    ),
    ("could not find expected ':'", "a key without its ':'; write `key: value`"),
    ("cannot start any token", "a value that begins with this character must be in quotes"),
    (
        "unknown escape character",
        "a '\\' that is not an escape; double it, or put the value into single quotes",
    ),
    ("unexpected end of stream", "a quote is opened and never closed"),
    ("expected ',' or ']'", "a '[' is opened and never closed, or a ',' is missing"),
    ("expected ',' or '}'", "a '{' is opened and never closed, or a ',' is missing"),
    ("sequence entries are not allowed", "a '-' that does not fit here; begin the list on a line below its key"),
    ("did not find expected key", "this line is indented unlike the ones above it; line it up"),
    ("did not find expected '-' indicator", "this line is indented unlike the list above it; line it up"),
    ("expected <block end>", "this line is indented unlike the ones above it; line it up"),
    ("maximum nesting depth", f"nested deeper than {DEPTH_MAX} levels"),
    ("duplicate anchor", "an anchor with this name stands above already; rename one"),
    ("undefined tag handle", "tags like !x!y are not read here; remove it"),
)


def _problem(error: yaml.YAMLError, text: str) -> YamlProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = str(getattr(error, "problem", None) or error).strip()
    if mark is None:
        return YamlProblem(f"not YAML: {words.splitlines()[0]}")
    lines = text.splitlines() or [""]
    line = min(int(mark.line) + 1, len(lines))
    for at in (line, line - 1):
        if at >= 1 and "\t" in lines[at - 1][: len(lines[at - 1]) - len(lines[at - 1].lstrip())]:
            return YamlProblem("a tab in the indentation; YAML wants spaces", at)
    context_mark = getattr(error, "context_mark", None)
    for theirs, ours in _ADVICE:
        if theirs in words:
            if "never closed" in ours and context_mark is not None:
                line = int(context_mark.line) + 1
            return YamlProblem(ours, line)
    return YamlProblem(f"not YAML: {words}", line)

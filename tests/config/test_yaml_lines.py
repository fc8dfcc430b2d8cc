"""YAML as text and lines: what is no YAML, and what is too much of it."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config import yaml_lines
from llmgw.config.yaml_lines import BYTES_MAX, NODES_MAX, YamlProblem, read_yaml


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds for both of PyYAML's parsers, whose words differ."""
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml here")
    loader = yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader
    monkeypatch.setattr(yaml_lines, "_LOADER", loader)


@pytest.mark.parametrize("data", [b"", b"\n", b"# only a comment\n", b"---\n", b"\xef\xbb\xbf"])
def test_nothing_is_none(data: bytes) -> None:
    assert read_yaml(data) is None


def test_values_know_the_lines_of_their_keys() -> None:
    root = read_yaml(b"a: 1\nb:\n  c:\n    - x\n    - d:\n        y\n")
    assert root is not None
    assert root.plain() == {"a": "1", "b": {"c": ["x", {"d": "y"}]}}
    node = root
    lines = []
    for step in ("b", "c", 1, "d"):
        below = node.child(step)
        assert below is not None
        lines.append(below.line)
        node = below
    assert lines == [2, 3, 5, 5]
    assert node.child("none") is None


def test_nulls_are_none_unless_quoted_and_an_empty_value_is_told_apart() -> None:
    root = read_yaml(b"a:\nb: null\nc: ~\nd: 'null'\ne: ''\n")
    assert root is not None
    assert root.plain() == {"a": None, "b": None, "c": None, "d": "null", "e": ""}
    assert [child.empty for child in root.value.values()] == [True, False, False, False, False]  # type: ignore[union-attr]


PROBLEMS = {
    "a key twice": (b"a: 1\nb: 2\na: 3\n", 3, "a: written twice, first on line 1; remove one"),
    "a tab": (b"a:\n\tb: 1\n", 2, "a tab in the indentation; YAML wants spaces"),
    "a tab after a value": (b"a: 1\n\tb: 2\n", 2, "a tab in the indentation; YAML wants spaces"),
    "a colon too many": (b"a: b: c\n", 1, "a ':' that does not fit here"),
    "an indentation too deep": (b"a: 1\n  b: 2\n", 2, "a ':' that does not fit here; check the indentation"),
    "an indentation between two": (b"a:\n  - b\n c: 1\n", 3, "this line is indented unlike the ones above it"),
    "a bracket left open": (b"a: 0\nb: [1, 2\nc: 3\n", 2, "a '[' is opened and never closed"),
    "a brace left open": (b"a: {b: 1\nc: 2\n", 1, "a '{' is opened and never closed"),
    "a quote left open": (b"a: 'x\nb: 2\n", 1, "a quote is opened and never closed"),
    "a character that needs quotes": (b"a: @x\n", 1, "must be in quotes"),
    "an escape that is none": (b'a: "\\q"\n', 1, "a '\\' that is not an escape"),
    "a dash after a key": (b"a: - b\n", 1, "a '-' that does not fit here"),
    "an alias of nothing": (b"a: *x\n", 1, "the alias *x has no anchor &x above it"),
    "an alias inside its anchor": (b"a: &x [*x]\n", 1, "the alias *x stands inside its own anchor"),
    "a tag that makes objects": (b"a: !!python/object:os.system x\n", 1, "tags like "),
    "a tag of one's own": (b"a: !x {b: c}\n", 1, "tags like !x are not read here; remove it"),
    "two documents": (b"a: 1\n---\nb: 2\n", 2, "a second document begins here ('---')"),
    "a key that is a list": (b"? [a]\n: b\n", 1, "a key must be a word"),
    "bytes that are not UTF-8": (b"a: 1\nb: \xff\n", 2, "byte 0xff is not UTF-8"),
    "UTF-16": ("a: 1\n".encode("utf-16"), 1, "byte 0xff is not UTF-8"),
    "a NUL": (b"a: 1\nb: \x00\n", 2, "the character U+0000 does not belong into a text file"),
    "an escape sequence": (b"a: \x1b[31m\n", 1, "the character U+001B does not belong into a text file"),
    "too deep": (b"a: " + b"[" * 200 + b"]" * 200, 1, "nested deeper than 32 levels"),
    "far too deep": (b"[" * 100_000, 1, "nested deeper than 32 levels"),
    "a merge of text": (b"a: {<<: b}\n", 1, "'<<' takes the alias of a group of keys"),
}


@pytest.mark.parametrize(("data", "line", "sentence"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_is_not_yaml_gets_a_sentence_with_its_line(data: bytes, line: int, sentence: str) -> None:
    with pytest.raises(YamlProblem) as caught:
        read_yaml(data)
    assert str(caught.value).startswith(sentence) or sentence in str(caught.value)
    assert caught.value.line == line


def test_aliases_of_aliases_are_counted_before_they_are_expanded() -> None:
    lines = [b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        b"a%d: &a%d [%s]" % (level, level, b", ".join([b"*a%d" % (level - 1)] * 10)) for level in range(1, 12)
    ]
    began = time.monotonic()
    with pytest.raises(YamlProblem, match=f"more than {NODES_MAX} values"):
        read_yaml(b"\n".join(lines))
    assert time.monotonic() - began < 2


def test_merge_keys_are_counted_too() -> None:
    group = b"a: &a {" + b", ".join(b"k%d: 1" % key for key in range(1000)) + b"}\n"
    merges = b"".join(b"m%d: {<<: *a}\n" % number for number in range(300))
    with pytest.raises(YamlProblem, match=f"more than {NODES_MAX} values"):
        read_yaml(group + merges)


def test_a_file_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(YamlProblem, match="larger than 4 MiB"):
        read_yaml(b"a" * (BYTES_MAX + 1))


def test_any_bytes_are_a_node_or_a_problem() -> None:
    @given(st.binary(max_size=60) | st.text("ab:-[]{}&*!|>'\"%@`#,? \n\t~<", max_size=40).map(str.encode))
    def either(data: bytes) -> None:
        try:
            node = read_yaml(data)
        except YamlProblem:
            return
        assert node is None or node.size >= 1

    either()

"""No words of Pydantic's reach a person, whatever is written under whatever key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from llmgw.config.agent import AgentConfig
from llmgw.config.base import Model
from llmgw.config.schema import key_paths
from llmgw.config.sentences import complaints, dotted, shown
from llmgw.config.server import ServerConfig

THEIRS = re.compile(
    r"input should|validation error|\[type=|pydantic|value error|unable to parse|instance of", re.I
)
ODD: list[Any] = ["", "eight", "-1", "1e400", "nan", "9" * 500, None, [], ["x"], [[]], {}, {"x": "y"}, [None]]


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """`("models[]", "name")` and a value → `{"models": [{"name": value}]}`."""
    for step in reversed(path):
        value = {step.removesuffix("[]"): [value] if step.endswith("[]") else value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("model", [ServerConfig, AgentConfig])
def test_every_odd_value_under_every_key_is_accepted_or_gets_a_sentence(model: type[Model]) -> None:
    refused = 0
    for path in key_paths(model):
        for odd in ODD:
            try:
                model.model_validate(nested(path, odd))
            except ValidationError as error:
                for complaint in complaints(model, error):
                    refused += 1
                    assert complaint.sentence
                    assert not THEIRS.search(complaint.sentence), complaint
                    assert "\n" not in complaint.sentence
                    assert len(complaint.sentence) < 1000, complaint
    assert refused > 100


def test_any_text_under_any_key_is_accepted_or_gets_a_sentence() -> None:
    paths = [(model, path) for model in (ServerConfig, AgentConfig) for path in key_paths(model)]

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(paths), st.text(max_size=30))
    def either(chosen: tuple[type[Model], tuple[str, ...]], text: str) -> None:
        model, path = chosen
        try:
            model.model_validate(nested(path, text))
        except ValidationError as error:
            told = [complaint.sentence for complaint in complaints(model, error)]
        else:
            told = []
        assert not [sentence for sentence in told if THEIRS.search(sentence)]

    either()


def test_paths_read_like_the_file() -> None:
    assert dotted(("models", 0, "profiles", 1, "env", "A")) == "models[0].profiles[1].env.A"
    assert dotted(()) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        ([1], "a list"),
        ({}, "a group of keys"),
        ("8", "8"),
        ("5s", "5s"),
        ("a\nb", r"'a\nb'"),
        (Path("x"), "'x'"),
    ],
)
def test_values_are_repeated_short_and_on_one_line(value: Any, text: str) -> None:
    assert shown(value) == text
    assert len(shown("x" * 10_000)) < 70

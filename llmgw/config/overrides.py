"""Environment variables that override keys: `LLMGW_SERVER__LISTEN`, `LLMGW_AGENT__TLS__CA`.

A part between double underscores is a key in capitals. Lists and groups are written as YAML text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgw.config.base import Model
from llmgw.config.schema import Path, shape_at
from llmgw.config.sentences import unknown_key
from llmgw.config.yaml_lines import YamlProblem, read_yaml

_NULLS = ("", "null", "~")


def apply_overrides(
    model: type[Model], data: dict[str, Any], environ: Mapping[str, str], prefix: str
) -> tuple[dict[Path, str], list[str]]:
    """Write the overrides in `environ` into `data` (what a file said, as plain values).

    `prefix` is `LLMGW_SERVER__` or `LLMGW_AGENT__`. Returns which path came from which variable, and the
    sentences for those that cannot be used.
    """
    origins: dict[Path, str] = {}
    problems: list[str] = []
    names = [name for name in environ if name.startswith(prefix)]
    # Shorter ones first, so that LLMGW_AGENT__TLS and LLMGW_AGENT__TLS__CA go together.
    for name in sorted(names, key=lambda name: (name.count("__"), name)):
        path: Path = tuple(name.removeprefix(prefix).lower().split("__"))
        problem = _apply(model, data, path, environ[name])
        if problem:
            problems.append(f"environment variable {name}: {problem}")
        else:
            origins[path] = name
    return origins, problems


def _apply(model: type[Model], data: dict[str, Any], path: Path, text: str) -> str | None:
    for depth in range(1, len(path) + 1):
        above = shape_at(model, path[: depth - 1])
        if above is None or above.model is None:
            key = ".".join(str(step) for step in path[: depth - 1])
            return f"{key} has no keys of its own; set {key} as a whole, as YAML text"
        if shape_at(model, path[:depth]) is None:
            options = [option.upper() for option in above.model.model_fields]
            return _unknown(model, path[:depth], options)
    try:
        value = _value(model, path, text)
    except YamlProblem as problem:
        return f"{problem}; the value is read as YAML, as in [a, b] or {{key: value}}"
    group = data
    for step in path[:-1]:
        below = group.get(str(step))
        if below is None:
            below = group[str(step)] = {}
        if not isinstance(below, dict):
            return None  # the file has no group there, which is said of the file
        group = below
    group[str(path[-1])] = value
    return None


def _unknown(model: type[Model], path: Path, options: list[str]) -> str:
    sentence = unknown_key(model, path, [option.lower() for option in options])
    return sentence.replace("unknown key", "no such key")


def _value(model: type[Model], path: Path, text: str) -> Any:
    """The text itself where the model wants one value (`[::1]:8080` is not a list there), else YAML."""
    shape = shape_at(model, path)
    assert shape is not None
    if shape.nested:
        node = read_yaml(text.encode("utf-8", "surrogateescape"))
        return node.plain() if node else None
    return None if shape.optional and text.strip() in _NULLS else text

"""Pydantic's errors into sentences that a person can act on: which key, what is wrong, what to write instead."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llmgw.config.base import Model, format_duration
from llmgw.config.errors import KeyedError
from llmgw.config.schema import Path, Shape, key_paths, meanings, shape_at

_SHOWN_CHARS_MAX = 60

_WANTED = {
    "text": "must be text",
    "whole number": "must be a whole number",
    "number": "must be a number",
    "true or false": "must be true or false",
    "duration": "must be a duration such as 5s, 2m or 1h30m",
    "host:port": "must be host:port, such as 127.0.0.1:8080",
    "list": "must be a list, one entry a line after '- ' or [a, b]",
    "map": "must be names with values, one `NAME: value` a line",
    "group": "must be a group of keys",
}


@dataclass(frozen=True, order=True)
class Complaint:
    """One thing that is wrong: the path of the key, and the sentence without its place."""

    path: Path
    sentence: str


def complaints(model: type[Model], error: ValidationError) -> list[Complaint]:
    """One complaint a key, in Pydantic's order, for the errors of validating `model`."""
    found: dict[Path, Complaint] = {}
    for detail in error.errors(include_url=False):
        complaint = _complaint(model, dict(detail))
        found.setdefault(complaint.path, complaint)
    return list(found.values())


def dotted(path: Path) -> str:
    """`("models", 0, "name")` → `models[0].name`; the empty string for the whole file."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def unknown_key(model: type[Model], path: Path, options: list[str] | None = None) -> str:
    """The sentence for a key that does not exist: what it may have been meant to be, or what there is."""
    group = shape_at(model, path[:-1])
    names = options if options is not None else list(group.model.model_fields) if group and group.model else []
    key = str(path[-1])
    elsewhere = [".".join(known[:-1]) or "the top of the file" for known in key_paths(model) if known[-1] == key]
    if elsewhere:
        return f"unknown key here; it belongs to {' or '.join(elsewhere[:3])}"
    near = _nearest(key, names)
    if near:
        return f"unknown key; did you mean {near}?"
    return f"unknown key; the keys here are {', '.join(names)}" if names else "unknown key; remove it"


def shown(value: Any) -> str:
    """A value as an error repeats it: short, on one line, numbers bare."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a group of keys"
    text = str(value)
    if re.fullmatch(r"-?\d{1,15}(\.\d+)?(ms|[smhd])?", text):
        return text
    return repr(text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…")


def _complaint(model: type[Model], detail: dict[str, Any]) -> Complaint:
    path = _real_path(model, tuple(detail["loc"]))
    kind, context, value = str(detail["type"]), detail.get("ctx") or {}, detail["input"]
    if kind == "value_error":
        cause = context["error"]
        if isinstance(cause, KeyedError):
            path += cause.key
        return Complaint(path, str(cause))
    if kind == "extra_forbidden":
        return Complaint(path, unknown_key(model, path))
    if kind == "missing":
        return Complaint(path, _missing(model, path))
    shape = shape_at(model, path)
    if shape and shape.kind == "duration" and isinstance(value, float):
        value = format_duration(value)  # the bounds are checked after `0s` has become 0.0
    got = f", got {shown(value)}"
    bound = _bound(kind, context, shape)
    if bound:
        return Complaint(path, bound + got)
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        word = "at least" if kind == "too_short" else "at most"
        return Complaint(
            path, f"must have {word} {limit} {_plural('entry', limit)}, has {context.get('actual_length')}"
        )
    if shape is None:
        return Complaint(path, f"cannot be used{got}")
    if shape.kind == "choice":
        near = _nearest(str(value), list(shape.choices)) if isinstance(value, str) else None
        hint = f"; did you mean {near}?" if near else ""
        return Complaint(path, f"must be {_either(shape.choices)}{got}{hint}")
    return Complaint(path, _WANTED[shape.kind] + got)


def _real_path(model: type[Model], loc: tuple[Any, ...]) -> Path:
    """Pydantic's location without what it adds for the members of a union (`int`, `str`)."""
    path: list[str | int] = []
    for step in loc:
        shape = shape_at(model, tuple(path))
        if shape is None or not shape.nested:
            break
        path.append(step)
    return tuple(path)


def _missing(model: type[Model], path: Path) -> str:
    group = shape_at(model, path[:-1])
    meaning = meanings(group.model).get(str(path[-1]), "") if group and group.model else ""
    first = re.split(r"(?<=[.;])\s", meaning)[0].rstrip(".;")
    return f"missing; add it: {first[:1].lower() + first[1:]}" if first else "missing; add it"


def _bound(kind: str, context: dict[str, Any], shape: Shape | None) -> str | None:
    words = {
        "greater_than": ("gt", "more than"),
        "greater_than_equal": ("ge", "at least"),
        "less_than": ("lt", "less than"),
        "less_than_equal": ("le", "at most"),
    }
    if kind not in words:
        return None
    key, word = words[kind]
    limit = context[key]
    return f"must be {word} {format_duration(limit) if shape and shape.kind == 'duration' else f'{limit:.15g}'}"


def _nearest(word: str, options: list[str]) -> str | None:
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).replace("-", "_").lower()
    near = difflib.get_close_matches(plain, options, n=1, cutoff=0.7)
    return near[0] if near else None


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]


def _plural(word: str, count: Any) -> str:
    return word if count == 1 else "entries"

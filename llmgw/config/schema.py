"""What the configuration models say about a key: its kind of value, its group, its meaning.

Read from the models themselves, so that errors, overrides and the reference cannot disagree with them.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from llmgw.config.addresses import HostPort
from llmgw.config.base import Duration, Model, Size
from llmgw.config.shares import Share

_DURATION = Duration.__metadata__[0]  # type: ignore[attr-defined]
_SIZE = Size.__metadata__[0]  # type: ignore[attr-defined]
_SHARE = Share.__metadata__[0]  # type: ignore[attr-defined]
_HOST_PORT = HostPort.__metadata__[0]  # type: ignore[attr-defined]

Kind = Literal[
    "text",
    "whole number",
    "number",
    "true or false",
    "duration",
    "size",
    "share",
    "host:port",
    "choice",
    "list",
    "map",
    "group",
]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Shape:
    """The kind of a value. `item` is that of a list's or a map's values, `model` that of a group."""

    kind: Kind
    optional: bool = False
    item: Shape | None = None
    model: type[Model] | None = None
    choices: tuple[str, ...] = ()

    @property
    def nested(self) -> bool:
        """True for what is written in several lines: lists, maps and groups."""
        return self.kind in ("list", "map", "group")

    @property
    def words(self) -> str:
        """For people: `whole number`, `list of text`, `one of mp, ray`."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.item is not None:
            inner = "groups" if self.item.kind == "group" else self.item.words
            return f"{'map to' if self.kind == 'map' else 'list of'} {inner}"
        return self.kind


def shape_of(field: FieldInfo) -> Shape:
    """The shape of a field's values."""
    return _shape(field.annotation, field.metadata)


def shape_at(model: type[Model], path: Path) -> Shape | None:
    """The shape of what lies at a path below a model; the model's own for the empty path, None for no such."""
    shape: Shape | None = Shape("group", model=model)
    for step in path:
        if shape is None:
            return None
        if shape.model is not None:
            field = shape.model.model_fields.get(str(step))
            shape = shape_of(field) if field else None
        else:
            shape = shape.item
    return shape


def key_paths(model: type[Model]) -> list[tuple[str, ...]]:
    """Every key below a model, in the models' order; `("models[]", "name")` is a key of a list's entries."""
    paths: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        shape = shape_of(field)
        inner = shape.model or (shape.item.model if shape.item else None)
        paths.append((name,))
        if inner is not None:
            step = name if shape.model else f"{name}[]"
            paths += [(step, *path) for path in key_paths(inner)]
    return paths


@cache
def meanings(model: type[Model]) -> dict[str, str]:
    """Key → the text under its attribute, on one line. Reading the source costs, so it is done on demand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for above, below in itertools.pairwise(body):
        if (
            isinstance(above, ast.AnnAssign)
            and isinstance(above.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[above.target.id] = " ".join(below.value.value.split())
    return found


def _shape(annotation: Any, metadata: list[Any]) -> Shape:
    if _DURATION in metadata:
        return Shape("duration")
    if _SIZE in metadata:
        return Shape("size")
    if _SHARE in metadata:
        return Shape("share")
    if _HOST_PORT in metadata:
        return Shape("host:port")
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape(args[0], list(annotation.__metadata__))
    if origin in (Union, UnionType):
        return _union([arg for arg in args if arg is not NoneType], NoneType in args)
    if origin is Literal:
        return Shape("choice", choices=tuple(str(arg) for arg in args))
    if origin is list:
        return Shape("list", item=_shape(args[0], []))
    if origin is dict:
        return Shape("map", item=_shape(args[1], []))
    if inspect.isclass(annotation) and issubclass(annotation, Model):
        return Shape("group", model=annotation)
    kinds: dict[Any, Kind] = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return Shape(kinds[annotation])


def _union(members: list[Any], optional: bool) -> Shape:
    # A number or text (a GPU's index or UUID) is text to the person who writes it.
    shape = _shape(members[0], []) if len(members) == 1 else Shape("text")
    return Shape(shape.kind, optional, shape.item, shape.model, shape.choices)

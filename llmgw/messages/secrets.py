"""Structs that carry a secret and must be able to be printed: a traceback or a log line shows all but that."""

from __future__ import annotations

import msgspec

HIDDEN = "[hidden]"


def shown_without(struct: msgspec.Struct, *secret: str) -> str:
    """What `repr` gives, with the values of the fields named `secret` left out where they are set."""
    shown = (
        f"{name}={HIDDEN if name in secret and value is not None else repr(value)}"
        for name, value in ((name, getattr(struct, name)) for name in struct.__struct_fields__)
    )
    return f"{type(struct).__name__}({', '.join(shown)})"

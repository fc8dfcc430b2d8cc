"""What is printed, logged or kept is without secrets: structs that carry one, and texts that may hold one."""

from __future__ import annotations

import re

import msgspec

HIDDEN = "[hidden]"

# Passwords in addresses, credentials in headers, private keys, assignments, and whole keys of the model API.
_SECRET_TEXT = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        HIDDEN,
    ),
    (re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"), HIDDEN),
    (
        re.compile(
            r"(?i)\b((?:[a-z0-9]+[_-])*(?:token|secret|password|api[_-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]{4,}"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(llmgw-[0-9a-f]{10})-[A-Za-z0-9_-]{20,}"), rf"\1-{HIDDEN}"),
)


def shown_without(struct: msgspec.Struct, *secret: str) -> str:
    """What `repr` gives, with the values of the fields named `secret` left out where they are set."""
    shown = (
        f"{name}={HIDDEN if name in secret and value is not None else repr(value)}"
        for name, value in ((name, getattr(struct, name)) for name in struct.__struct_fields__)
    )
    return f"{type(struct).__name__}({', '.join(shown)})"


def without_secrets(text: str) -> str:
    """A text without what looks like a secret."""
    for pattern, instead in _SECRET_TEXT:
        text = pattern.sub(instead, text)
    return text

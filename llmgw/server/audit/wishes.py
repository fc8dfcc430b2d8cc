"""What a request for a change was about, in a few words: only fields that are named here, none a secret.

A route needs nothing of its own here: its path, and whatever it has of these fields, are told by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from llmgw.config.random_words import SECRET_CHARS
from llmgw.messages.secrets import HIDDEN, without_secrets

TEXT_CHARS_MAX = 200
NAMES_SHOWN_MAX = 5
FIELDS_MAX = 100
ASKS_ONLY = frozenset({"/api/v1/catalog/plan", "/admin/playground", "/admin/playground/chat"})
"""What is no GET, and yet changes nothing. In the log is who was not let in to it."""
FORMS = "/admin/"
"""Pages take forms, and all else JSON."""
NOT_LET_IN = frozenset({401, 403})

_TOKEN = re.compile(rf"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{{{SECRET_CHARS}}}(?![A-Za-z0-9_-])")


def _plain(value: Any) -> str:
    if value is None:
        return "any"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)[:TEXT_CHARS_MAX] if isinstance(value, (str, int, float)) else "…"


def _names(value: Any) -> str:
    """A list of names, or of things that have one (a catalog's models, whose environment may hold secrets)."""
    if not isinstance(value, list):
        return _plain(value)
    names = [_plain(each.get("name") if isinstance(each, dict) else each) for each in value]
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more if names else "none"


def _files(value: Any) -> str:
    """`{node: [file, …]}`: how many, and where."""
    if not isinstance(value, dict):
        return _plain(value)
    count = sum(len(names) for names in value.values() if isinstance(names, list))
    return f"{count} of {_names(list(value))}"


SHOWN: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(
        [
            "all_pairs", "base", "busy_ok", "concurrency", "confirmed", "cordoned", "detached", "engine",
            "expires_at", "fabric", "force", "install", "model", "name", "node", "note", "priority", "profile",
            "replica", "replicas", "requests_per_minute", "revision", "rounds", "seconds", "tokens_per_minute",
            "version",
        ],
        _plain,
    ),
    **dict.fromkeys(["models", "nodes"], _names),
    "files": _files,
}  # fmt: skip
"""Fields of bodies, forms and queries that may be told, and how. `args` and `env` may hold secrets."""

_SUBJECTS = ("model", "name", "node", "replica", "fabric")


def wish_of(route: str, path_params: Mapping[str, Any], query: bytes, body: bytes) -> tuple[str, str]:
    """(subject, summary) of a request: what it was about, and what of it was wished.

    `route` is the route's form, `path_params` what its path says, `query` and `body` as they came. A body that is
    empty, cut off or unreadable tells nothing. It is read as its route reads it, whatever its content type says:
    the API takes JSON under any, and the log must tell what was done.
    """
    fields = {**_pairs(query.decode("latin-1")), **_body(body, form=route.startswith(FORMS))}
    subject = "/".join(str(value) for value in path_params.values())
    if not subject:
        of = next((name for name in _SUBJECTS if isinstance(fields.get(name), str) and fields[name]), None)
        if of is not None:
            subject = fields.pop(of)
            if of == "model" and isinstance(fields.get("profile"), str) and fields["profile"]:
                subject += f"/{fields.pop('profile')}"
        elif route.startswith("/api/v1/catalog"):
            subject = "catalog"
    # What is not said, or no, is worth no word; null is, where a limit is taken away.
    told = [
        f"{name} {shown(fields[name])}"
        for name, shown in SHOWN.items()
        if name in fields and fields[name] is not False and fields[name] != ""
    ]
    return cleaned(route, subject), cleaned(route, "; ".join(told))


def cleaned(route: str, text: str) -> str:
    """A text of an entry without secrets: somebody may give a token where its name is asked for."""
    text = without_secrets(text)
    return _TOKEN.sub(HIDDEN, text) if "/tokens" in route else text


def _body(body: bytes, *, form: bool) -> dict[str, Any]:
    if not body.strip():
        return {}
    if form:
        return _pairs(body.decode("latin-1"))
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _pairs(text: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return {}
    several: dict[str, Any] = {}
    for name, value in pairs:
        known = several.get(name)
        several[name] = value if known is None else [*(known if isinstance(known, list) else [known]), value]
    return several

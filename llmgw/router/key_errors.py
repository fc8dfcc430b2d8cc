"""The answers to a caller that may not: no key, a wrong one, a model that is not for it, more than its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmgw.router.errors import NAMES_SHOWN_MAX, ApiError

# RFC 6750 section 3: what kind of credential is asked for.
_CHALLENGE = b'www-authenticate: Bearer realm="llmgw"'
_GIVE = "send one as Authorization: Bearer KEY, x-api-key or api-key"


def refused(code: str, what: str, remedy: str) -> ApiError:
    """401. What was sent in a key's place is never repeated."""
    return ApiError(401, f"{what}; {remedy}.", type="authentication_error", code=code, headers=[_CHALLENGE])


def no_key(any_exist: bool) -> ApiError:
    """Nothing was sent that could be a key."""
    if not any_exist:
        return no_keys_yet()
    return refused("missing_api_key", "This gateway needs an API key, and the request has none", _GIVE)


def no_keys_yet() -> ApiError:
    """There is no key that could be right."""
    return refused(
        "no_api_keys",
        "This gateway needs an API key, and none has been made yet",
        "its operator makes one with llmgw ctl keys create NAME",
    )


def wrong_key() -> ApiError:
    """Not told apart: a key that never was, and one that was revoked and is forgotten."""
    return refused(
        "invalid_api_key",
        "The request's API key is not known here: it was mistyped, or revoked",
        "ask the gateway's operator for another",
    )


def expired_key() -> ApiError:
    """A key whose time is over. Only who has the key itself learns this."""
    return refused(
        "expired_api_key", "The request's API key has expired", "ask the gateway's operator for another"
    )


def several_keys() -> ApiError:
    """Headers that disagree: which of them is meant is not guessed."""
    return refused("ambiguous_api_key", "The request has several API keys that differ", "send one of them")


def model_not_allowed(model: str, names: Sequence[str]) -> ApiError:
    """403: the model is there, and not for this key."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    may = f"it may use {shown}" if names else "it may use none that is served here"
    return ApiError(
        403,
        f"This API key may not use the model {model!r}; {may}.",
        type="permission_error",
        code="model_not_allowed",
        param="model",
    )


def over_limit(code: str, what: str, wait_s: float, headers: bytes = b"") -> ApiError:
    """429: this caller's own doing, unlike a 503. `headers` are whole lines with their ends."""
    seconds = max(1, math.ceil(wait_s))
    lines = [b"retry-after: %d" % seconds, *headers.split(b"\r\n")[:-1]]
    return ApiError(429, f"{what}; try again in {seconds} s.", type="rate_limit_error", code=code, headers=lines)

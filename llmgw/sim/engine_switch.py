"""Asks a running simulated engine which faults it has, and switches them: what `llmgw sim fault` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from llmgw.config.addresses import split_host_port
from llmgw.config.errors import SentenceError

TIMEOUT_S = 10.0
_WORDS: dict[str, Any] = {"true": True, "false": False, "off": None}


class SwitchError(SentenceError):
    """No simulated engine is there, or it has no such fault."""


def read_faults(words: Sequence[str]) -> dict[str, Any]:
    """`name=value` each: a number, true, false, off, or a word. Raises SwitchError."""
    faults: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name or not value:
            raise SwitchError(
                f"{word!r} is no fault; write NAME=VALUE, such as error_rate=0.5, or ok alone for none"
            )
        faults[name.replace("-", "_")] = _value(value)
    return faults


def switch(address: str, faults: dict[str, Any] | None) -> dict[str, Any]:
    """Have the engine at `HOST:PORT` fail in these ways; None: as it was started. Returns all that is in force.

    An empty dict changes nothing. Raises SwitchError.
    """
    try:
        split_host_port(address)
    except ValueError as error:
        raise SwitchError(f"{address!r} is no address of an engine: {error}") from None
    url = f"http://{address}/sim/faults"
    try:
        with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
            if faults is None:
                answer = client.delete(url)
            else:
                answer = client.post(url, json=faults) if faults else client.get(url)
            found = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SwitchError(f"no engine answers at {address} ({error or type(error).__name__})") from None
    except ValueError:
        found = None
    if answer.status_code == 400 and isinstance(found, dict) and "error" in found:
        raise SwitchError(str(found["error"]["message"]))
    if not answer.is_success or not isinstance(found, dict):
        raise SwitchError(f"what answers at {address} is no simulated engine; real ones cannot be told to fail")
    return found


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

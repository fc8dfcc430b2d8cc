"""Logs on stderr: text for a person at a terminal, one JSON object a line for everything else.

Both structlog's loggers and the standard library's (uvicorn, SQLAlchemy) come out in the same form, and no
secret comes out at all.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from llmgw.config.errors import SentenceError
from llmgw.messages.secrets import HIDDEN, without_secrets

TEXT_CHARS_MAX = 16_384
_LEVELS = ("debug", "info", "warning", "error", "critical")

# Names of values that are secrets. `tokens`, `first_token_s` and `api_key_file` are not.
_SECRET_NAME = re.compile(
    r"(^|_)(token|secret|password|passwd|authorization|api_?key|private_key|key_pem|cookie)$", re.IGNORECASE
)
# sd-daemon(3): a line on stderr that begins with <N> has that priority in the journal, which takes it off again.
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def set_up_logs(environ: Mapping[str, str], stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (default: stderr).

    `LLMGW_LOG` chooses `text` or `json` where the terminal's presence should not, `LLMGW_LOG_LEVEL` the least
    level. Raises SentenceError when either is something else.
    """
    stream = stream or sys.stderr
    tty = stream.isatty()
    form = _one_of(environ, "LLMGW_LOG", ("text", "json"), "text" if tty else "json")
    level = _one_of(environ, "LLMGW_LOG_LEVEL", _LEVELS, "info")

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    if form == "text":
        colors = tty and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        last: list[Any] = [
            show_controls,
            structlog.dev.ConsoleRenderer(
                colors=colors,
                pad_event_to=0,
                pad_level=False,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    else:
        last = [structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer(default=str)]
        if is_journal(environ, stream):
            last.append(_with_priority)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.processors.format_exc_info,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                hide_secrets,
                *last,
            ],
        )
    )
    logging.raiseExceptions = False  # a stderr that is gone or full must not disturb what logs
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("httpx", "httpcore", "asyncio", "aiosqlite", "alembic"):
        # Their every request and statement is debugging to us.
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """True when `stream` is the journal's: JOURNAL_STREAM is its device and inode (systemd.exec(5))."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: values that are secrets by name or by look, in whatever depth, are not written.

    Texts are cut at `TEXT_CHARS_MAX`, so that one line cannot be a whole response.
    """
    for key in list(event):
        event[key] = _clean(key, event[key])
    return event


def show_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor for text: what would draw on a terminal, or begin a line of its own, is its escape.

    Paths, names and reasons come from clients, nodes and engines. Tracebacks keep their lines.
    """
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            keep = "\n\t" if key in ("exception", "stack") else "\t"
            event[key] = "".join(
                char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in value
            )
    return event


def _clean(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return HIDDEN if _SECRET_NAME.search(name) and value else scrub(value)
    if isinstance(value, Mapping):
        return {key: _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(name, inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return scrub(str(value))


def scrub(text: str) -> str:
    """A text without what looks like a secret, at most `TEXT_CHARS_MAX` long."""
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[:TEXT_CHARS_MAX]}… ({len(text) - TEXT_CHARS_MAX} more)"
    return without_secrets(text)


def _with_priority(_logger: Any, method: str, line: str) -> str:
    return f"<{_PRIORITY.get(method, 6)}>{line}"


def _one_of(environ: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = environ.get(name, "").strip().lower() or default
    if value not in choices:
        raise SentenceError(f"environment variable {name}: must be one of {', '.join(choices)}, got {value!r}")
    return value

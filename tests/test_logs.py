"""Logs: one form for all loggers, for people and for machines, and no secrets in either."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from llmgw.cli.logs import TEXT_CHARS_MAX, hide_secrets, scrub, set_up_logs
from llmgw.config.errors import SentenceError


class Terminal(io.StringIO):
    """A stderr that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_what_is_no_terminal_gets_json_from_both_kinds_of_loggers() -> None:
    stream = io.StringIO()
    set_up_logs({}, stream)
    structlog.get_logger("agent.link").info("registered", node="node01", gpus=8)
    logging.getLogger("some.library").warning("took %d s", 3)
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("agent").exception("failed")
    structlog.get_logger("agent").debug("not written")
    first, second, third = lines(stream)
    assert (first["message"], first["level"], first["logger"], first["node"], first["gpus"]) == (
        *("registered", "info", "agent.link"),
        *("node01", 8),
    )
    assert first["timestamp"].endswith("Z")
    assert (second["message"], second["level"], second["logger"]) == ("took 3 s", "warning", "some.library")
    assert "ValueError: broken" in third["exception"]


def test_a_terminal_gets_text_with_colours_unless_it_does_not_want_them() -> None:
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        stream = Terminal()
        set_up_logs(environ, stream)
        structlog.get_logger("agent").info("registered", node="node01")
        text = stream.getvalue()
        assert ("\x1b[" in text) is coloured
        assert "registered" in text
        assert "node01" in text
        assert not text.startswith("{")


def test_form_and_level_can_be_chosen() -> None:
    stream = io.StringIO()
    set_up_logs({"LLMGW_LOG": "text", "LLMGW_LOG_LEVEL": "ERROR"}, stream)
    structlog.get_logger("a").warning("below")
    structlog.get_logger("a").error("written")
    assert "below" not in stream.getvalue()
    assert "[error] written [a]" in stream.getvalue()
    with pytest.raises(SentenceError, match="LLMGW_LOG: must be one of text, json, got 'xml'"):
        set_up_logs({"LLMGW_LOG": "xml"}, stream)


def test_lines_for_the_journal_carry_their_priority() -> None:
    reading, writing = os.pipe()
    status = os.fstat(writing)
    with os.fdopen(writing, "w", buffering=1) as stream, os.fdopen(reading) as journal:
        set_up_logs({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}, stream)
        structlog.get_logger("a").error("bad")
        structlog.get_logger("a").info("good")
        set_up_logs({"JOURNAL_STREAM": "1:1"}, stream)  # inherited from somewhere else
        structlog.get_logger("b").error("bad")
        assert journal.readline().startswith('<3>{"')
        assert journal.readline().startswith('<6>{"')
        assert journal.readline().startswith('{"')


def test_secrets_by_name_are_hidden_in_whatever_depth() -> None:
    event = {
        "token": "abc",
        "admin_token": "abc",
        "api_key": "abc",
        "headers": {"Authorization": "abc", "accept": "*/*"},
        "list": [{"password": "abc"}],
        "tls": {"private_key": b"abc"},
    }
    assert "abc" not in json.dumps(hide_secrets(None, "info", dict(event)))


def test_what_only_sounds_like_a_secret_is_written() -> None:
    event = {"prompt_tokens": 3, "first_token": 0.2, "api_key_file": "/etc/key", "token_name": "ops", "key": "x"}
    assert hide_secrets(None, "info", dict(event)) == event


@pytest.mark.parametrize(
    "text",
    [
        "sent Authorization: Bearer S3CRETS3CRET to it",
        "http://user:S3CRET@host/v1",
        "GET /?token=S3CRETS3CRET&x=1",
        "env OPENAI_API_KEY=S3CRETS3CRET",
        '{"admin_token": "S3CRETS3CRET"}',
        "-----BEGIN EC PRIVATE KEY-----\nS3CRET\n-----END EC PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nS3CRET and cut off",
    ],
)
def test_secrets_by_look_are_hidden(text: str) -> None:
    assert "S3CRET" not in scrub(text)
    assert "[hidden]" in scrub(text)


def test_a_secret_in_an_exception_is_hidden_too() -> None:
    stream = io.StringIO()
    set_up_logs({}, stream)
    try:
        raise ValueError("cannot reach http://user:S3CRET@host")
    except ValueError:
        structlog.get_logger("a").exception("failed")
    assert "S3CRET" not in stream.getvalue()


def test_a_line_is_bounded_and_always_json() -> None:
    stream = io.StringIO()
    set_up_logs({}, stream)
    structlog.get_logger("a").info("x", text="a" * 10 * TEXT_CHARS_MAX, number=float("nan"), odd="\udc80", of={1})
    (line,) = lines(stream)
    assert len(line["text"]) < TEXT_CHARS_MAX + 100
    assert line["number"] == "nan"


def test_what_others_say_neither_draws_on_a_terminal_nor_begins_a_line() -> None:
    stream = Terminal()
    set_up_logs({"NO_COLOR": "1"}, stream)
    hostile = "/a\n2026-01-01\x1b[2J[info]\u202eforged"
    structlog.get_logger("audit").info(
        "asked", subject=hostile, path="/\x1b[2J", many=[hostile], of={"a": hostile}
    )
    logging.getLogger("some.library").warning("failed on %s", hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        logging.getLogger("some.library").exception("failed")
    written = stream.getvalue()
    assert all(char.isprintable() or char == "\n" for char in written)
    assert [
        line[:2] for line in written.splitlines() if not line.startswith(("20", "  ", "Trace", "Value"))
    ] == []
    assert written.count("\\u202eforged") >= 5
    assert "Traceback (most recent call last):\n" in written

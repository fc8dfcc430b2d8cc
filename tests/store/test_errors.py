"""What SQLite and the system say becomes a sentence: what happened, where, and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from llmgw.server.store.errors import StoreError, explain

PATH = Path("/srv/state/llmgw.db")


def test_a_full_disk_is_named_as_one(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "small.db")) as connection:
        connection.execute("PRAGMA max_page_count = 3")
        connection.execute("CREATE TABLE t (a)")
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert (
        str(explain(caught.value, PATH))
        == "there is no space left for /srv/state/llmgw.db; free space on /srv/state"
    )


def test_the_drivers_error_is_found_inside_sqlalchemys() -> None:
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("PRAGMA query_only = ON"))
        with pytest.raises(DBAPIError) as caught:
            connection.execute(text("CREATE TABLE t (a)"))
    assert explain(caught.value, PATH).what.startswith("/srv/state/llmgw.db cannot be written by user id")


@pytest.mark.parametrize(
    ("number", "part"),
    [
        (errno.EROFS, "mounted read-only"),
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.ENOLCK, "has no locks"),
        (errno.EACCES, "cannot be opened for writing"),
        (errno.EIO, "failed: Input/output error"),
    ],
)
def test_what_the_system_says_is_a_sentence_with_a_remedy(number: int, part: str) -> None:
    error = explain(OSError(number, os.strerror(number), str(PATH)), PATH)
    assert part in error.what
    assert str(PATH) in error.what
    assert error.remedy


def test_a_sentence_stays_the_sentence_that_it_is() -> None:
    error = StoreError("what", "remedy")
    assert explain(error, PATH) is error
    assert str(error) == "what; remedy"


def test_an_unforeseen_error_is_one_line_of_bounded_length() -> None:
    said = str(explain(RuntimeError("a\nb " + "x" * 10_000), PATH))
    assert "RuntimeError: a b xxx" in said
    assert len(said) < 500
    assert "\n" not in said

"""Output on disk: pieces, tails and rotation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgw.agent import rotation
from llmgw.agent.logs import LogError, read_piece, read_tail, streams_of
from llmgw.agent.rotation import LogKeeper, rotate, shrink
from llmgw.messages.agent import LOG_CHUNK_BYTES_MAX, STREAMS_MAX


def test_the_last_lines_are_given_with_their_offsets(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("one\ntwo\nthree\n")
    piece = read_piece(tmp_path, "engine", offset=None, lines=2)
    assert (piece.text, piece.offset, piece.next_offset) == ("two\nthree\n", 4, 14)
    assert read_piece(tmp_path, "engine", offset=14, lines=0).text == ""
    assert read_piece(tmp_path, "engine", offset=999, lines=0).offset == 14


def test_an_unfinished_last_line_is_given_too(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("one\ntwo\nthr")
    assert read_piece(tmp_path, "engine", offset=None, lines=2).text == "two\nthr"


def test_a_piece_is_bounded_and_ends_between_characters(tmp_path: Path) -> None:
    text = "ä" * LOG_CHUNK_BYTES_MAX
    (tmp_path / "engine.log").write_text("x" + text)
    first = read_piece(tmp_path, "engine", offset=0, lines=0)
    assert first.next_offset == LOG_CHUNK_BYTES_MAX - 1
    second = read_piece(tmp_path, "engine", offset=first.next_offset, lines=0)
    assert "\ufffd" not in first.text + second.text


def test_rotation_keeps_offsets_and_the_piece_before_and_says_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("ab", buffering=0) as engine:
        engine.write(b"first\n")
        assert not rotate(path, at_bytes=100)
        assert rotate(path, at_bytes=6)
        engine.write(b"second\n")
        whole = read_piece(tmp_path, "engine", offset=0, lines=0)
        assert (whole.text, whole.offset, whole.next_offset) == ("first\nsecond\n", 0, 13)
        assert read_piece(tmp_path, "engine", offset=8, lines=0).text == "cond\n"
        assert rotate(path, at_bytes=6)
        engine.write(b"third\n")
        left = read_piece(tmp_path, "engine", offset=0, lines=0)
        assert (left.offset, left.text) == (6, "second\nthird\n")
        assert read_piece(tmp_path, "engine", offset=None, lines=1).text == "third\n"
    assert path.with_name("engine.log.1").stat().st_mode & 0o777 == 0o600


def test_a_tail_is_free_of_colours_bars_and_control_characters(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_bytes(
        b"\x1b[31mERROR\x1b[0m no memory\r\n  1%\r 50%\rloaded\n\n\x1b]0;title\x07bell\x07\n\xff\n"
    )
    assert read_tail(tmp_path, "engine", 10) == ["ERROR no memory", "loaded", "bell", "\ufffd"]
    assert read_tail(tmp_path, "engine", 1) == ["\ufffd"]
    assert read_tail(tmp_path, "nothing", 10) == []


@pytest.mark.parametrize("stream", ["../shard", "", "a/b", "engine.log", "Engine\n", "x" * 100])
def test_a_stream_is_a_name_and_never_a_path(tmp_path: Path, stream: str) -> None:
    with pytest.raises(LogError, match="is not the name of an output stream"):
        read_piece(tmp_path, stream, offset=0, lines=0)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("engine.log*"))


def test_a_flood_between_two_looks_is_cut_to_its_end_and_the_loss_shows(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("ab", buffering=0) as engine:
        for number in range(1000):
            engine.write(b"line %03d\n" % number)  # 9 bytes each
        assert rotate(path, at_bytes=90, keep_bytes=90)
        assert size_of(tmp_path) < 90 + 90 + 30
        left = read_piece(tmp_path, "engine", offset=45, lines=0)
        assert (left.offset, left.text[:9]) == (9000 - 90, "line 990\n")
        engine.write(b"after\n")
        assert read_piece(tmp_path, "engine", offset=left.next_offset, lines=0).text == "after\n"
        assert read_piece(tmp_path, "engine", offset=None, lines=2).text == "line 999\nafter\n"


def test_what_is_written_while_a_file_is_cut_is_a_gap_and_never_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.log"
    copy = rotation._copy
    with path.open("ab", buffering=0) as engine:

        def slow_copy(*args: object) -> None:
            copy(*args)  # type: ignore[arg-type]
            engine.write(b"lost\n")

        monkeypatch.setattr(rotation, "_copy", slow_copy)
        engine.write(b"before\n")
        assert rotate(path, at_bytes=5, keep_bytes=100)
        engine.write(b"after\n")
    before = read_piece(tmp_path, "engine", offset=0, lines=0)
    assert (before.text, before.next_offset) == ("before\n", 7)
    after = read_piece(tmp_path, "engine", offset=7, lines=0)
    assert (after.offset, after.text, after.next_offset) == (12, "after\n", 18)
    assert read_piece(tmp_path, "engine", offset=None, lines=9).text == "after\n"
    assert read_piece(tmp_path, "engine", offset=18, lines=0).text == ""


def test_of_a_shard_that_has_ended_only_the_last_output_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with path.open("ab", buffering=0) as engine:
        engine.write(b"a" * 50 + b"\n")
        rotate(path, at_bytes=10, keep_bytes=100)
        engine.write(b"b" * 20 + b"\n")
    shrink(path, keep_bytes=100)
    assert size_of(tmp_path) > 72  # little enough
    shrink(path, keep_bytes=30)
    left = read_piece(tmp_path, "engine", offset=0, lines=0)
    assert (left.offset, left.text) == (42, "a" * 8 + "\n" + "b" * 20 + "\n")
    shrink(path, keep_bytes=10)
    left = read_piece(tmp_path, "engine", offset=0, lines=0)
    assert (left.offset, left.text) == (62, "b" * 9 + "\n")


def test_a_file_that_somebody_else_empties_loses_what_was_in_it_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    keeper = LogKeeper(tmp_path)
    with path.open("ab", buffering=0) as engine:
        engine.write(b"one\ntwo\n")
        keeper.tend()
        os.truncate(path, 0)  # as logrotate's copytruncate does
        engine.write(b"3\n")
        keeper.tend()
        piece = read_piece(tmp_path, "engine", offset=4, lines=0)
        assert (piece.offset, piece.text, piece.next_offset) == (8, "3\n", 10)


def test_offsets_that_an_earlier_agent_wrote_are_read(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("new\n")
    (tmp_path / "engine.log.1").write_text("old\n")
    (tmp_path / "engine.log.base").write_text("100")
    piece = read_piece(tmp_path, "engine", offset=0, lines=0)
    assert (piece.offset, piece.text, piece.next_offset) == (96, "old\nnew\n", 104)


def test_a_key_that_an_engine_prints_is_masked_wherever_a_piece_begins_or_ends(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("api_key='s3cr3t', tp=2\nloaded\n")
    whole = read_piece(tmp_path, "engine", offset=0, lines=0, secret="s3cr3t")
    assert whole.text == "api_key='******', tp=2\nloaded\n"
    assert whole.next_offset == log.stat().st_size
    for offset in range(30):
        piece = read_piece(tmp_path, "engine", offset=offset, lines=0, secret="s3cr3t")
        assert piece.text == whole.text[offset:]
    assert read_tail(tmp_path, "engine", 5, secret="s3cr3t")[0] == "api_key='******', tp=2"
    rotate(log, at_bytes=1)
    log.write_text("again s3cr3t\n")
    assert "s3cr3t" not in read_piece(tmp_path, "engine", offset=0, lines=0, secret="s3cr3t").text


def test_a_piece_that_ends_within_the_key_shows_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.agent.logs.LOG_CHUNK_BYTES_MAX", 12)
    (tmp_path / "engine.log").write_text("api_key='s3cr3t'\n")
    first = read_piece(tmp_path, "engine", offset=0, lines=0, secret="s3cr3t")
    second = read_piece(tmp_path, "engine", offset=first.next_offset, lines=0, secret="s3cr3t")
    assert first.text + second.text == "api_key='******'\n"


def test_a_shards_streams_are_those_that_were_written_to_within_a_bound(tmp_path: Path) -> None:
    assert streams_of(tmp_path / "none") == []
    for name in ("engine.log", "engine.log.1", "ray-head.log", "Not A Stream.log", "shard.json"):
        (tmp_path / name).write_text("x")
    assert streams_of(tmp_path) == ["engine", "ray-head"]
    for number in range(2 * STREAMS_MAX):
        (tmp_path / f"sidecar{number:02}.log").write_text("x")
    assert len(streams_of(tmp_path)) == STREAMS_MAX

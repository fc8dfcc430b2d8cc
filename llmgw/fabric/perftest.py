"""The result of perftest's programs (ib_write_bw and its sisters), read from their table by its heading.

`[MB/sec]` always meant MiB/s; perftest says `[MiB/sec]` since March 2024 (commit 1d202bb), and `[Gb/sec]` is 10⁹.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from llmgw.fabric.records import printable

MIB_BITS = 8 * 1024 * 1024
ERROR_LINES_MAX = 4
ERROR_CHARS_MAX = 300

_GBPS_OF_UNIT = {"MiB/s": MIB_BITS / 1e9, "Gb/s": 1.0}
_UNITS = {"mb/sec": "MiB/s", "mib/sec": "MiB/s", "gb/sec": "Gb/s"}
_COLUMN = re.compile(r"((?:BW|MsgRate|CPU|tps) ?(?:peak|average|Port\d|Util)?|#?[A-Za-z_]+)(?:\s*\[([^\]]*)\])?")
_WAITING = "Waiting for client to connect"
_ERROR = re.compile(
    r"Couldn't|Unable to|Failed|failed|not found|Did not detect|state is|timed out|timeout|refused|mismatch|"
    r"[Ee]rror|Cannot|can't|No such|not support|denied|Invalid|invalid|unrecognized|check if driver|[Ff]atal"
)
# These end a run that has already printed rows; other complaints may stand beside a good result.
_FATAL = re.compile(
    r"Completion with error|Failed status|Failed to complete|wr_id .* syndrome|Segmentation fault"
)
_HARMLESS = re.compile(r"\s*(?:Conflicting CPU frequency|WARNING:|-{5,}|\*{5,}|#bytes)")
# With these its whole help follows, in which half of the words of other complaints stand.
_USAGE = re.compile(r"unrecognized option|invalid option|Invalid Command|requires an argument")
# Older versions print two messages on one line.
_JOINED = re.compile(r"(?<=\S) (?=(?:Unable to|Couldn't|Failed to) )")


class Bandwidth(msgspec.Struct):
    """`gbps` None: there is no result, and `error` has perftest's own words. `unit_read` is what the rate was in.

    `bidirectional`: the figure is the sum of both directions, and is not to be compared with one link's rate.
    `unit_assumed`: the JSON of perftest names no unit; it prints MiB/s unless --report_gbits was given.
    """

    gbps: float | None
    message_bytes: int | None
    unit_read: str | None
    error: str | None
    bidirectional: bool = False
    unit_assumed: bool = False
    read: bool = True
    """False: this is no output of perftest at all."""
    problems: list[str] = []


class _Row(msgspec.Struct):
    message_bytes: int
    average: float
    unit: str


def read_bandwidth(text: str) -> Bandwidth:
    """The client's result of the largest message, the last row where a size was run again. Never raises."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    bidirectional = "Bidirectional" in text
    rows = _rows(_client_part(text))
    words = _own_words(text, _FATAL if rows else _ERROR)
    if rows and not words:
        largest = max(row.message_bytes for row in rows)
        row = [row for row in rows if row.message_bytes == largest][-1]
        return _result(row, bidirectional)
    if not words:
        words = _own_words(text, re.compile(r"\S"))
        heading = "#bytes" in text or "BW Test" in text or _WAITING in text
        if heading:
            words = "perftest printed its heading and no result: it was ended, or its other end was"
        elif words:
            words = f"this is no output of perftest: {words}"
        else:
            words = "there is nothing to read; save what ib_write_bw prints, its standard error included"
        return Bandwidth(None, None, None, words, bidirectional, read=heading)
    return Bandwidth(None, None, None, words, bidirectional)


def _client_part(text: str) -> str:
    """Where both ends wrote into one stream: the parts without a server's banner, if a table is in them."""
    if _WAITING not in text:
        return text
    # The banner stands before everything that its server prints.
    before = text.partition(_WAITING)[0]
    return before if _rows(before) else text


def _rows(text: str) -> list[_Row]:
    """The rows below each heading, read by its columns; remarks in between are passed over."""
    size_at = average_at = None
    columns = 0
    unit = ""
    rows = []
    for line in text.splitlines():
        if "#bytes" in line:
            heads = [(match[1].strip(), match[2]) for match in _COLUMN.finditer(line)]
            names = [name for name, _ in heads]
            columns = len(names)
            size_at = names.index("#bytes")
            average_at = next((at for at, name in enumerate(names) if name == "BW average"), None)
            unit = _UNITS.get((heads[average_at][1] or "").lower(), "") if average_at is not None else ""
            continue
        if size_at is None or average_at is None or not unit:
            continue
        cells = line.split()
        if len(cells) > max(size_at, average_at) and len(cells) <= columns:
            size, average = _int(cells[size_at]), _float(cells[average_at])
            if size is not None and average is not None:
                rows.append(_Row(size, average, unit))
    return rows


def _result(row: _Row, bidirectional: bool, assumed: bool = False) -> Bandwidth:
    gbps = round(row.average * _GBPS_OF_UNIT[row.unit], 3)
    if gbps <= 0:
        words = f"perftest printed {row.average:g} as its average, which is no result (its clock went wrong)"
        return Bandwidth(None, row.message_bytes, row.unit, words, bidirectional, assumed)
    problems = []
    if bidirectional:
        problems.append("the figure is the sum of both directions: do not compare it with the rate of one link")
    if assumed:
        problems.append("JSON of perftest names no unit; MiB/s is assumed, as without --report_gbits")
    return Bandwidth(gbps, row.message_bytes, row.unit, None, bidirectional, assumed, problems=problems)


def _from_json(text: str) -> Bandwidth:
    """`--out_json`: one result, or a list of them. It prints no unit."""
    try:
        said = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError):
        words = "the JSON of perftest was cut: it does not end"
        return Bandwidth(None, None, None, words, read='"results"' in text)
    results = said.get("results") if isinstance(said, dict) else None
    rows = [
        _Row(size, float(average), "MiB/s")
        for one in (results if isinstance(results, list) else [results])
        if isinstance(one, dict)
        and isinstance(size := one.get("MsgSize"), int)
        and isinstance(average := one.get("BW_average"), int | float)
    ]
    if not rows:
        return Bandwidth(None, None, None, "this JSON has no result of perftest in it", read=False)
    info = said.get("test_info") if isinstance(said, dict) else None
    bidirectional = isinstance(info, dict) and "Bidirectional" in str(info.get("test", ""))
    return _result(max(rows, key=lambda row: row.message_bytes), bidirectional, assumed=True)


def _own_words(text: str, pattern: re.Pattern[str]) -> str | None:
    """The lines that say what went wrong, as perftest wrote them."""
    if _USAGE.search(text):
        pattern = _USAGE
    found: list[str] = []
    for line in text.splitlines():
        if pattern.search(line) and not _HARMLESS.match(line):
            found.extend(part.strip() for part in _JOINED.split(line.strip()))
    words: Sequence[str] = list(dict.fromkeys(found))[:ERROR_LINES_MAX]
    return printable("; ".join(words), ERROR_CHARS_MAX) or None


def _int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e12 else None

"""What a model's source is: files to fetch by URL, a path on the node, or a name that the engine resolves itself.

Pure: text in, facts out. The name that a fetched file gets below a node's weights folder is decided here, so that
server and agent agree on it, and so that an operator without a network knows where to put it by hand.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

FETCHED_SCHEMES = ("https", "http", "file")
PART_SUFFIX = ".part"
PART_RECORD_SUFFIX = ".part.json"
FETCHED_RECORD_SUFFIX = ".fetched.json"
URL_CHARS_MAX = 2000
SPLIT_FILES_MAX = 999
# The kernel allows 255 bytes a name; the longest suffix must fit behind it.
_SEGMENT_BYTES_MAX = 255 - len(FETCHED_RECORD_SUFFIX)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
# llama.cpp's `llama_split_path`: it opens the other files of a split model beside the first one.
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# Presigned addresses of S3, Azure and Google, and the usual ways to carry a token.
_SECRET = re.compile(
    r"token|secret|passw|signature|credential|api[-_]?key|access[-_]?key|^sig$|^key$|^auth", re.IGNORECASE
)
_CHECKSUM = re.compile(r"^sha256:[0-9a-f]{64}$")


class SourceError(ValueError):
    """A source that cannot be meant. The message is a sentence and never repeats a secret."""


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch: `url`, and `name`, its path below the weights folder."""

    url: str
    name: str

    @property
    def shown(self) -> str:
        """The URL as logs and sentences may show it: without its query."""
        return shown_url(self.url)

    @property
    def local_path(self) -> str | None:
        """The path that a `file://` URL names; None for the others."""
        parts = urlsplit(self.url)
        return unquote(parts.path) if parts.scheme == "file" else None


@dataclass(frozen=True)
class Source:
    """`files` are those of a `url`, in the order in which they belong together; the first is what is loaded."""

    kind: Literal["none", "url", "path", "name"]
    text: str
    files: tuple[RemoteFile, ...] = ()


def read_source(text: str) -> Source:
    """Sort a source. Raises SourceError for a URL that is none, or that carries a secret."""
    if not text:
        return Source("none", text)
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() in FETCHED_SCHEMES:
        return Source("url", text, tuple(_remote_file(url) for url in split_files(text)))
    if scheme is None and (text.startswith("/") or re.match(r"\.\.?(/|$)", text)):
        return Source("path", text)
    return Source("name", text)


def shown_url(url: str) -> str:
    """A URL without user, password, query and fragment: what logs and sentences may show."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def split_files(url: str) -> list[str]:
    """All files of a split model by the URL (or path) of one of them, the first first; else the one alone."""
    address, mark, query = url.partition("?")
    split = _SPLIT.search(address)
    if split is None or split[1] == "00000" or not 1 <= int(split[2]) <= SPLIT_FILES_MAX:
        return [url]
    base = address[: split.start()]
    return [f"{base}-{number:05d}-of-{split[2]}.gguf{mark}{query}" for number in range(1, int(split[2]) + 1)]


def checksum_problem(checksum: str, source: Source) -> str | None:
    """Why a model cannot have this checksum, as a sentence; None when it can."""
    if not _CHECKSUM.match(checksum):
        return (
            f"{checksum[:100]!r} is not a checksum; write sha256: and the 64 digits that `sha256sum FILE` prints"
        )
    if source.kind != "url":
        return "a checksum is of a file that llmgw fetches, and source is no https://, http:// or file:// URL"
    if len(source.files) > 1:
        return f"a checksum is of one file, and source names a model in {len(source.files)} files; leave it out"
    return None


def _remote_file(url: str) -> RemoteFile:
    if len(url) > URL_CHARS_MAX or not url.isprintable() or " " in url:
        raise SourceError(
            f"the source is a URL with spaces or control characters, or longer than {URL_CHARS_MAX} characters"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SourceError("the source is a URL whose host or port cannot be read; check it") from None
    # From here on nothing repeats the URL until it is known to carry no secret: errors end up in logs.
    if "@" in parts.netloc:
        raise SourceError(
            "the source is a URL with a user or password, which would show up in logs and in the process list; "
            "put a token into a file and name it under weights.token_files in agent.yaml"
        )
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    secret = next((name for name in names if _SECRET.search(name)), None)
    if secret is not None:
        raise SourceError(
            f"the source is a URL with {secret[:40]!r} in its query, which looks like a secret; put a token "
            "into a file and name it under weights.token_files in agent.yaml"
        )
    shown = shown_url(url)
    if parts.fragment:
        raise SourceError(f"the source {shown} has a #fragment, which no server is sent; remove it")
    scheme = parts.scheme.lower()
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise SourceError(f"the source {shown} names another host; write file:///absolute/path")
        if parts.query:
            raise SourceError(
                f"the source {shown} has a query, which a file has not; write file:///absolute/path"
            )
        place = ["file"]
    elif not parts.hostname:
        raise SourceError(f"the source {shown} names no host; write https://host/path/file.gguf")
    else:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        default = {"https": 443, "http": 80}[scheme]
        place = [scheme, host if port in (None, default) else f"{host}:{port}"]
    segments = [unquote(segment) for segment in parts.path.split("/")[1:]]
    _check_segments(segments, shown)
    if parts.query:
        # Another query may be another file; the name stays one that people recognise.
        segments.insert(-1, "query-" + hashlib.sha256(parts.query.encode()).hexdigest()[:12])
    return RemoteFile(url=url, name="/".join([*place, *segments]))


def _check_segments(segments: list[str], shown: str) -> None:
    """The path becomes a path on the node's disk: nothing in it may lead elsewhere."""
    if not segments or not segments[-1]:
        raise SourceError(f"the source {shown} names no file; write https://host/path/file.gguf")
    for segment in segments:
        if segment in ("", ".", "..") or "/" in segment or not segment.isprintable():
            raise SourceError(f"the source {shown} has an empty part, dots or control characters in its path")
        if len(segment.encode()) > _SEGMENT_BYTES_MAX:
            raise SourceError(
                f"the source {shown} has a part of more than {_SEGMENT_BYTES_MAX} bytes in its path"
            )
    if segments[-1].endswith((PART_SUFFIX, PART_RECORD_SUFFIX, FETCHED_RECORD_SUFFIX)):
        raise SourceError(f"the source {shown} ends like the files that llmgw keeps beside a download; rename it")

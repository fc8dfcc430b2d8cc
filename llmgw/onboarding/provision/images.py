"""The image a VM starts from: found, kept, and verified by its checksum each time it is used.

Kept images are called after their content (`debian-12-generic-amd64-<first 12 hex digits>.qcow2`), so that a
newer one never takes the place of one that another run reads. Their whole checksum lies beside them, with the
addresses that they came from.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urljoin, urlsplit

from llmgw.config.sources import shown_url
from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.fetch import NotThere, Unreachable, fetch_file, fetch_text
from llmgw.onboarding.provision.wanted import Checksum, Wanted

FOLDER: Final = "var/lib/vz/llmgw-images"
"""Beside Proxmox's own templates: that disk is meant for images. No storage lists it."""
_SUMS: Final[tuple[tuple[str, Literal["sha256", "sha512"]], ...]] = (
    ("SHA512SUMS", "sha512"),
    ("SHA256SUMS", "sha256"),
)
RECORDED_MAX: Final = 50
"""Addresses that one content is known to come from."""
_NAME: Final = re.compile(r"[^A-Za-z0-9._+-]+")
# sha512sum(1): digest, a space, a space or an asterisk, the name.
_SUM_LINE: Final = re.compile(r"\\?([0-9a-fA-F]{64,128}) [ *](.+)")

Tell = Callable[[str, int, int | None], None]
"""(what is going on, bytes done, all bytes if that is known)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the image is: `path` is its place on this host; `url` is fetched into it when it is not there."""

    path: Path
    checksum: Checksum
    url: str | None = None
    note: str = ""


def find(wanted: Wanted, root: Path) -> Source:
    """What will be used, without changing anything. Raises ProvisionError."""
    if "://" not in wanted.image:
        return _file(Path(wanted.image), wanted.checksum)
    folder = root / FOLDER
    if wanted.checksum is not None:
        return _kept_or_url(folder, wanted.image, wanted.checksum)
    try:
        return _kept_or_url(folder, wanted.image, _published(wanted.image))
    except Unreachable as reason:
        kept = _newest(folder, wanted.image)
        if kept is None:
            raise ProvisionError(
                f"{reason} No image of that address is kept in {folder}: give --image FILE with --image-sha512, "
                "for example one that was brought here by hand."
            ) from None
        return Source(kept.path, kept.checksum, None, f"{reason} The image kept as {kept.path.name} is used.")


def bring(source: Source, tell: Tell) -> None:
    """Have the image at its path, verified. Raises ProvisionError; what is kept and whole stays."""
    if not source.path.is_file():
        if source.url is None:
            raise ProvisionError(f"The image {source.path} is gone; run this again.")
        name = source.path.name
        fetch_file(
            source.url, source.path, source.checksum, lambda done, all_: tell(f"fetching {name}", done, all_)
        )
        _record(source.path, source.checksum, source.url)
        return
    found = digest_of(source.path, source.checksum.kind, tell)
    if found == source.checksum.hex:
        if source.url is not None:
            _record(source.path, source.checksum, source.url)
        return
    if source.path.parent.name == Path(FOLDER).name:
        remedy = f"the kept file is damaged: rm {source.path} and run this again"
    else:
        remedy = "bring the file here again, or correct the checksum"
    raise ProvisionError(
        f"The image {source.path} has {source.checksum.kind} {found} and should have {source.checksum.hex}; "
        f"{remedy}."
    )


def digest_of(path: Path, kind: str, tell: Tell) -> str:
    """The digest of a file in hex, read in pieces. Raises ProvisionError."""
    digest, done = hashlib.new(kind), 0
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            while chunk := file.read(4 * 2**20):
                digest.update(chunk)
                done += len(chunk)
                tell(f"verifying {path.name}", done, total)
    except OSError as error:
        raise ProvisionError(f"The image {path} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()


def read_sums(text: str, name: str, kind: Literal["sha256", "sha512"]) -> Checksum | None:
    """The checksum of a file in a list as sha512sum(1) writes it; None when it is not in there."""
    length = {"sha256": 64, "sha512": 128}[kind]
    for line in text.splitlines():
        found = _SUM_LINE.fullmatch(line.strip())
        if found is not None and found[2].removeprefix("./") == name and len(found[1]) == length:
            return Checksum(kind, found[1].lower())
    return None


def _file(path: Path, checksum: Checksum | None) -> Source:
    path = path.absolute()
    try:
        there = path.is_file()
    except OSError:  # a name that no file can have
        there = False
    if not there:
        raise ProvisionError(f"--image {path}: there is no such file; give a cloud image (.qcow2 or raw).")
    if "," in str(path) or any(not char.isprintable() for char in str(path)):
        raise ProvisionError(f"--image {str(path)!r}: qm takes no commas in a path; rename it.")
    if checksum is None:
        for name, kind in _SUMS:
            try:
                checksum = read_sums((path.parent / name).read_text(errors="replace"), path.name, kind)
            except OSError:
                continue
            if checksum is not None:
                break
    if checksum is None:
        raise ProvisionError(
            f"--image {path}: nothing says what it must contain: give --image-sha512 (or --image-sha256), or put "
            f"the SHA512SUMS that it came with into {path.parent}."
        )
    return Source(path, checksum)


def _published(url: str) -> Checksum:
    """What the list of checksums beside an image says."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    for sums, kind in _SUMS:
        try:
            text = fetch_text(urljoin(url, sums))
        except NotThere:
            continue
        if checksum := read_sums(text, name, kind):
            return checksum
    raise ProvisionError(
        f"--image {shown_url(url)}: there is no SHA512SUMS or SHA256SUMS beside it that names {name}; give "
        "--image-sha512."
    )


def _stem(url: str) -> tuple[str, str]:
    name = _NAME.sub("-", unquote(urlsplit(url).path).rpartition("/")[2]).lstrip(".-")[:100]
    stem, dot, suffix = name.rpartition(".")
    return (stem, f".{suffix}") if dot else (name, "")


def _kept_or_url(folder: Path, url: str, checksum: Checksum) -> Source:
    stem, suffix = _stem(url)
    return Source(folder / f"{stem}-{checksum.hex[:12]}{suffix}", checksum, url)


def _newest(folder: Path, url: str) -> Source | None:
    stem, suffix = _stem(url)
    pattern = re.compile(rf"{re.escape(stem)}-[0-9a-f]{{12}}{re.escape(suffix)}")
    try:
        kept = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
        for path in sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True):
            for kind in ("sha512", "sha256"):
                record = path.with_name(f"{path.name}.{kind}")
                text = record.read_text(errors="replace") if record.is_file() else ""
                if _came_from(url) in text.splitlines() and (found := read_sums(text, path.name, kind)):
                    return Source(path, found)
    except OSError:
        return None
    return None


def _came_from(url: str) -> str:
    """The line of a record for an address, which sha512sum(1) skips; a query may hold a secret."""
    query = urlsplit(url).query
    return f"# {shown_url(url)}" + (f"?{hashlib.sha256(query.encode()).hexdigest()[:12]}" if query else "")


def _record(path: Path, checksum: Checksum, url: str) -> None:
    """Have an image's checksum and this address of it on record. Raises ProvisionError."""
    record = path.with_name(f"{path.name}.{checksum.kind}")
    part = record.with_name(f".{record.name}.{os.getpid()}.part")
    try:
        known = record.read_text(errors="replace").splitlines() if record.is_file() else []
        addresses = [line for line in known if line.startswith("# ") and line != _came_from(url)]
        lines = [*addresses[-RECORDED_MAX:], _came_from(url), f"{checksum.hex}  {path.name}"]
        if lines != known:
            part.write_text("".join(f"{line}\n" for line in lines))
            part.replace(record)
    except OSError as error:
        raise ProvisionError(f"{record} cannot be written: {error.strerror}.") from None
    finally:
        part.unlink(missing_ok=True)

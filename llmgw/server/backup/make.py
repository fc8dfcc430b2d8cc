"""Makes a backup: one tar file with a manifest first, beside a server that runs or does not."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmgw.server.backup.authority_folder import packed
from llmgw.server.backup.errors import BackupError
from llmgw.server.backup.manifest import AUTHORITY, DATABASE, MANIFEST, REVOKED, SMALL_BYTES_MAX, Manifest, Member
from llmgw.server.backup.new_file import new_file
from llmgw.server.backup.sealed import seal
from llmgw.server.backup.snapshot import snapshot
from llmgw.server.store.store import DATABASE_NAME


def back_up(
    state: Path,
    file: Path,
    *,
    now: float,
    revocations: Path | None = None,
    authority: Path | None = None,
    passphrase: str = "",
    progress: Callable[[float], None] = lambda share: None,
) -> Manifest:
    """Write the state of the server of that state folder into `file` (new, 0600); returns its manifest.

    `revocations` is the authority's list that the server reads, taken along when it is there. `authority` is the
    authority's folder, taken along under the passphrase. `now` is seconds since the epoch. `progress` is told the
    share of the database that is copied. Raises BackupError or StoreError; there is no file then.
    """
    # What can be refused is, before anything takes time.
    sealed = None if authority is None else seal(packed(authority), passphrase)
    with new_file(file) as out, snapshot(state / DATABASE_NAME, file.absolute().parent, progress) as copy:
        small = {REVOKED: _list(revocations), AUTHORITY: sealed}
        content = {name: data for name, data in small.items() if data is not None}
        manifest = Manifest(
            llmgw=copy.version,
            schema=copy.schema,
            catalog_revision=copy.catalog_revision,
            made_at=now,
            files={DATABASE: _member(copy.file)}
            | {name: Member(len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()},
        )
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2), now)
            copy.file.seek(0)
            tar.addfile(_entry(DATABASE, manifest.files[DATABASE].bytes, now), copy.file)
            for name, data in content.items():
                _add(tar, name, data, now)
    return manifest


def _list(path: Path | None) -> bytes | None:
    try:
        data = None if path is None else path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BackupError(
            f"the revocation list {path} cannot be read ({error.strerror}); run this as the server's user or root"
        ) from None
    if data is not None and len(data) > SMALL_BYTES_MAX:
        raise BackupError(f"{path} is larger than {SMALL_BYTES_MAX} bytes, so it is no revocation list; mend it")
    return data


def _member(file: io.BufferedRandom) -> Member:
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Member(file.tell(), digest)


def _entry(name: str, size: int, now: float) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(now)
    return entry


def _add(tar: tarfile.TarFile, name: str, data: bytes, now: float) -> None:
    tar.addfile(_entry(name, len(data), now), io.BytesIO(data))

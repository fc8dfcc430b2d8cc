"""The authority's folder as bytes, and back: what was issued and revoked since the backup is never forgotten."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import tarfile
from pathlib import Path

from llmgw.pki.authority import CA, CA_KEY, ISSUED, RENEWAL, RENEWAL_KEY, REVOKED, Authority
from llmgw.pki.errors import PkiError
from llmgw.pki.files import locked, sync_folder, write_atomic
from llmgw.pki.revocation import read_list
from llmgw.server.backup.errors import BackupError, cannot_write
from llmgw.server.backup.manifest import SMALL_BYTES_MAX

_LOCK = ".lock"
_PRIVATE = {CA_KEY, RENEWAL_KEY}
_KNOWN = re.compile(
    "|".join([*map(re.escape, (CA, CA_KEY, RENEWAL, RENEWAL_KEY, REVOKED)), rf"{ISSUED}/[0-9a-f]{{40}}\.pem"])
)


def packed(folder: Path) -> bytes:
    """The authority's files, keys among them, as a tar. Raises BackupError when there is no authority."""
    try:
        Authority.open(folder)
        with locked(folder / _LOCK):
            names = sorted(
                name
                for path in folder.rglob("*")
                if path.is_file() and _KNOWN.fullmatch(name := str(path.relative_to(folder)))
            )
            content = {name: (folder / name).read_bytes() for name in names}
    except PkiError as error:
        raise BackupError(str(error)) from None
    except OSError as error:
        raise BackupError(
            f"the authority's {error.filename or folder} cannot be read ({error.strerror}); run this as its owner"
        ) from None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    if buffer.tell() > SMALL_BYTES_MAX:
        raise BackupError(
            f"the authority's folder {folder} is larger than {SMALL_BYTES_MAX} bytes; copy it by hand"
        )
    return buffer.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """Relative name → content. Raises BackupError for what no authority's folder holds."""
    content = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for entry in tar:
                file = tar.extractfile(entry) if entry.isreg() and _KNOWN.fullmatch(entry.name) else None
                if file is None:
                    raise BackupError(f"the authority in this backup holds {entry.name[:80]!r}; nothing was used")
                content[entry.name] = file.read()
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise BackupError(f"the authority in this backup cannot be read ({error}); nothing was used") from None
    if not {CA, CA_KEY} <= set(content):
        raise BackupError("the authority in this backup lacks its root; nothing was used")
    return content


def put_back(content: dict[str, bytes], folder: Path, kept_as: Path) -> bool:
    """Make `folder` the authority of `content`; one with the same root that is there goes to `kept_as` first.

    What that one issued and revoked since is taken over: a list put back would let revoked nodes in again.
    Returns whether one was there. Raises BackupError, also for an authority with another root, which is never
    replaced. What a killed run left is completed or removed first: it holds keys, and may hold the only list.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _after_a_kill(folder)
        if (folder / CA).exists():
            with locked(folder / _LOCK):
                return _replace(_merged(content, folder), folder, kept_as)
        if folder.exists() and any(entry.name != _LOCK for entry in folder.iterdir()):
            raise BackupError(
                f"{folder} is not empty and holds no authority; move it away, or name another with --pki"
            )
        return _replace(content, folder, kept_as)
    except PkiError as error:
        raise BackupError(str(error)) from None
    except OSError as error:
        raise cannot_write(error, folder) from None
    finally:
        shutil.rmtree(_partial(folder), ignore_errors=True)


def _partial(folder: Path) -> Path:
    """Where the new folder is written."""
    return folder.with_name(f".{folder.name}.restore-partial")


def _whole(folder: Path) -> Path:
    """Its name from when all of it is written until it has its own: two renames cannot be one step."""
    return folder.with_name(f".{folder.name}.restore-whole")


def _after_a_kill(folder: Path) -> None:
    if _partial(folder).exists():
        shutil.rmtree(_partial(folder))
    whole = _whole(folder)
    if not whole.exists():
        return
    if folder.exists():
        shutil.rmtree(whole)
        return
    # Killed between the two renames: what the authority that was there had revoked is in this one.
    os.rename(whole, folder)
    sync_folder(folder.parent)


def _merged(content: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    if (folder / CA).read_bytes() != content[CA]:
        raise BackupError(
            f"{folder} holds another authority than the backup, and nodes may trust it; move it away first, or "
            "name another folder with --pki"
        )
    merged = dict(content)
    for path in (folder / ISSUED).glob("*.pem"):
        merged.setdefault(f"{ISSUED}/{path.name}", path.read_bytes())
    return merged


def _replace(content: dict[str, bytes], folder: Path, kept_as: Path) -> bool:
    beside, whole = _partial(folder), _whole(folder)
    beside.mkdir(mode=0o700)
    (beside / ISSUED).mkdir(mode=0o700)
    for name, data in content.items():
        write_atomic(beside / name, data, 0o600 if name in _PRIVATE else 0o644)
    there = folder.exists()
    if (folder / REVOKED).exists():
        _keep_newer_list(folder / REVOKED, beside)
    if there:
        owner = folder.stat()
        if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
            for path in (beside, *beside.rglob("*")):
                os.chown(path, owner.st_uid, owner.st_gid)
        # The server's group may pass through it, to the list.
        os.chmod(beside, stat.S_IMODE(owner.st_mode))
    os.rename(beside, whole)
    sync_folder(folder.parent)
    if there:
        os.rename(folder, kept_as)
    os.rename(whole, folder)
    sync_folder(folder.parent)
    return there


def _keep_newer_list(in_force: Path, beside: Path) -> None:
    # Lists only grow, with their numbers: the higher one holds what the other does, and more.
    roots = [Authority.open(beside).root]
    kept = read_list(in_force, roots)
    if not (beside / REVOKED).exists() or read_list(beside / REVOKED, roots).number < kept.number:
        write_atomic(beside / REVOKED, in_force.read_bytes(), 0o644)

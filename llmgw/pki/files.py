"""Files of certificates and keys: atomic writes, a lock, bounded reads, and key pairs replaced as one.

A certificate and its key are two files, so replacing them has a gap. The new key waits beside the old one
as `<key>.next` until the certificate is in place, and a reader that meets the gap closes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from llmgw.pki.errors import PkiError

FILE_BYTES_MAX = 16 * 1024 * 1024
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_atomic(path: Path, data: str | bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Put `data` at `path` with `mode`, whole or not at all, also when the host loses power. Raises OSError.

    `owner` is whose it is (user and group id) from the first moment on; None: this process's.
    """
    raw = data.encode() if isinstance(data, str) else data
    waiting = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    fd = os.open(waiting, _OPEN_NEW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(raw)
            file.flush()
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(waiting, path)
    except BaseException:
        waiting.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_bounded(path: Path, what: str, remedy: str) -> bytes:
    """The file's bytes, at most `FILE_BYTES_MAX`.

    `what` names it in sentences ("the agent's certificate"), `remedy` ends them. Raises PkiError.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise PkiError(f"There is no {what} at {path}. {remedy}") from None
    except OSError as error:
        raise PkiError(f"The {what} at {path} cannot be read: {error.strerror}. {remedy}") from None
    if len(data) > FILE_BYTES_MAX:
        raise PkiError(f"{path} is larger than {FILE_BYTES_MAX} bytes, so it is no {what}. {remedy}")
    return data


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` alone; waits for others. It ends with the process, so it is never stale."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def load_certificates(path: Path, what: str, remedy: str) -> list[x509.Certificate]:
    """All certificates of a PEM file, the leaf first. Raises PkiError."""
    data = read_bounded(path, what, remedy)
    try:
        certificates = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise PkiError(f"{path} holds no certificate in PEM form, but should be the {what}. {remedy}") from None
    return certificates


def load_key(path: Path, what: str, remedy: str) -> PrivateKeyTypes:
    """The private key of a PEM file. Raises PkiError; a key with a passphrase is refused."""
    data = read_bounded(path, what, remedy)
    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        raise PkiError(
            f"The {what} at {path} is protected by a passphrase, which nobody is there to type. "
            f"Take the passphrase off (openssl pkey -in {path} -out NEW) and keep the file at mode 0600."
        ) from None
    except ValueError:
        raise PkiError(f"{path} holds no private key in PEM form, but should be the {what}. {remedy}") from None


def belongs_to(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """True when `certificate` certifies the public half of `key`."""
    spki = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*spki) == certificate.public_key().public_bytes(*spki)


def install_pair(
    cert_path: str | Path,
    key_path: str | Path,
    cert_pem: str,
    key_pem: str,
    owner: tuple[int, int] | None = None,
) -> None:
    """Replace a certificate (0644) and its key (0600) so that a crash at any point leaves a usable pair.

    Readers call `finish_install` first. `owner` (user and group id): who reads the key, by default this process's
    user. Raises OSError.
    """
    cert, key = Path(cert_path), Path(key_path)
    if cert == key:
        write_atomic(cert, key_pem + cert_pem, 0o600, owner)
        return
    write_atomic(_next(key), key_pem, 0o600, owner)
    write_atomic(cert, cert_pem, 0o644)
    os.replace(_next(key), key)
    sync_folder(key.parent)


def finish_install(cert_path: str | Path, key_path: str | Path) -> None:
    """Finish an `install_pair` that was cut off after the certificate; otherwise change nothing."""
    key, waiting = Path(key_path), _next(Path(key_path))
    if not waiting.exists():
        return
    try:
        certificate = load_certificates(Path(cert_path), "certificate", "")[0]
        if belongs_to(load_key(waiting, "key", ""), certificate):
            os.replace(waiting, key)
            sync_folder(key.parent)
    except (PkiError, OSError):
        return  # whoever loads the pair next says what is wrong with it


def _next(key: Path) -> Path:
    return key.with_name(key.name + ".next")

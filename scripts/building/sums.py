"""SHA256SUMS, as `sha256sum --check` reads it, and a signature beside each file of a release."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from llmgw.release.files import ReleaseError, read_name
from llmgw.release.signature import digest, sign
from scripts.building.problem import BuildError

SUMS = "SHA256SUMS"


def write_sums(folder: Path) -> Path:
    """Write SHA256SUMS over every file of `folder` but signatures and itself. Raises BuildError for none."""
    files = [path for path in sorted(folder.iterdir()) if path.name != SUMS and path.suffix != ".sig"]
    lines = [f"{digest(path).hex()}  {path.name}\n" for path in files if path.is_file()]
    if not lines:
        raise BuildError(f"{folder} holds no files, so there are no checksums to write.")
    (folder / SUMS).write_text("".join(lines))
    return folder / SUMS


def sign_files(key: Ed25519PrivateKey, folder: Path) -> list[Path]:
    """Write FILE.sig for every file of a release in `folder`. Returns the signatures.

    Raises BuildError when there is none: whoever signs nothing would release unsigned files.
    """
    signatures = []
    for path in sorted(folder.iterdir()):
        try:
            read_name(path.name)
        except ReleaseError:
            continue
        signature = path.with_name(path.name + ".sig")
        signature.write_text(sign(key, path))
        signatures.append(signature)
    if not signatures:
        raise BuildError(f"{folder} holds no file of a release, so nothing was signed; scripts/build makes some.")
    return signatures


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The key that signs releases: Ed25519 in PEM, readable by its owner alone. Raises BuildError."""
    try:
        mode = path.stat().st_mode
        pem = path.read_bytes()
    except OSError as error:
        raise BuildError(f"The key {path} cannot be read ({error.strerror}).") from None
    if mode & 0o077:
        raise BuildError(f"The key {path} can be read by others than its owner: chmod 600 {path}")
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise BuildError(
            f"{path} holds no private key of Ed25519 in PEM without a password; scripts/sign new-key makes one."
        )
    return key


def write_new_key(folder: Path) -> tuple[Path, Path]:
    """Make a key: release-key.pem (0600) and release.pub in `folder`; BuildError rather than replace one."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    secret, shown = folder / "release-key.pem", folder / "release.pub"
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, mode, content in ((secret, 0o600, private), (shown, 0o644, public)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                made.append(path)
                file.write(content)
    except OSError as error:
        # One without the other, or beside that of another key, would sign what nobody can verify.
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise BuildError(
                f"{error.filename} is there already; a new key would make its releases worthless."
            ) from None
        raise BuildError(f"{folder} cannot take a key ({error.strerror}).") from None
    return secret, shown

"""Signatures of releases: Ed25519 (RFC 8032) over a file's name and its SHA-256.

The name is signed too: no old version's file can be passed off as a newer one, nor one kind as another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from llmgw.release.files import ReleaseError, read_name

_CONTEXT = b"llmgw release file 1\n"


def statement(name: str, sha256: bytes) -> bytes:
    """What is signed for a file of that name whose content has this digest (32 bytes)."""
    return _CONTEXT + name.encode() + b"\n" + sha256.hex().encode() + b"\n"


def digest(path: Path) -> bytes:
    """SHA-256 of a file, read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def sign(key: Ed25519PrivateKey, path: Path) -> str:
    """The text of `FILE.sig`: one line of base64. Raises ReleaseError for a name no release has, OSError."""
    read_name(path.name)
    return base64.b64encode(key.sign(statement(path.name, digest(path)))).decode() + "\n"


def read_public_key(pem: bytes, where: str) -> Ed25519PublicKey:
    """A public key of Ed25519 in PEM, from `where`. Raises ReleaseError."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ReleaseError(
            f"{where} holds no public key of Ed25519 in PEM (it begins with -----BEGIN PUBLIC KEY-----)."
        )
    return key


def verify(key: Ed25519PublicKey, name: str, sha256: bytes, signature: str) -> None:
    """Raise ReleaseError unless `signature` (the text of `FILE.sig`) was made with that key for that file."""
    read_name(name)
    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), statement(name, sha256))
    except (InvalidSignature, binascii.Error, ValueError):
        raise ReleaseError(
            f"The signature of {name} was not made with the release key for this content: the file was "
            "changed, renamed, or signed by somebody else. Nothing of it was used."
        ) from None

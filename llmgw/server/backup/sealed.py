"""Bytes under a passphrase: AES-256-GCM with a key of scrypt (RFC 7914), parameters and salt in front.

`cryptography` does both; what stands here is only the frame around them.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from llmgw.server.backup.errors import BackupError

PASSPHRASE_CHARS_MIN = 10
_MAGIC = b"llmgw sealed 1\n"
_HEAD = struct.Struct(f">{len(_MAGIC)}sBBB16s12s")  # magic, log2 n, r, p, salt, nonce
# 128 MiB and some tenths of a second for each guess (OWASP's password storage cheat sheet).
_LOG2_N, _R, _P = 17, 8, 1
# What a forged file may make us spend: 1 GiB.
_LOG2_N_MAX, _R_MAX, _P_MAX = 20, 8, 4


def seal(plain: bytes, passphrase: str) -> bytes:
    """`plain`, to be read with the passphrase only. Raises BackupError for one that is too short."""
    if len(passphrase) < PASSPHRASE_CHARS_MIN:
        raise BackupError(
            f"the passphrase has {len(passphrase)} characters; whoever has the file can try as many as they "
            f"like, so take at least {PASSPHRASE_CHARS_MIN}"
        )
    salt, nonce = os.urandom(16), os.urandom(12)
    head = _HEAD.pack(_MAGIC, _LOG2_N, _R, _P, salt, nonce)
    return head + AESGCM(_key(passphrase, salt, _LOG2_N, _R, _P)).encrypt(nonce, plain, head)


def unseal(sealed: bytes, passphrase: str) -> bytes:
    """What was sealed. Raises BackupError when passphrase or content is not the one of then."""
    if len(sealed) < _HEAD.size:
        raise BackupError("the authority in this backup is cut off; take another backup")
    magic, log2_n, r, p, salt, nonce = _HEAD.unpack_from(sealed)
    if magic != _MAGIC or not (1 <= log2_n <= _LOG2_N_MAX and 1 <= r <= _R_MAX and 1 <= p <= _P_MAX):
        raise BackupError("the authority in this backup was sealed by another version of llmgw; use that one")
    try:
        return AESGCM(_key(passphrase, salt, log2_n, r, p)).decrypt(
            nonce, sealed[_HEAD.size :], sealed[: _HEAD.size]
        )
    except InvalidTag:
        raise BackupError(
            "the authority in this backup does not open: the passphrase is another one, or the file was changed"
        ) from None


def _key(passphrase: str, salt: bytes, log2_n: int, r: int, p: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=2**log2_n, r=r, p=p).derive(passphrase.encode())

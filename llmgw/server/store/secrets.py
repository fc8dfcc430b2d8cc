"""Secrets of tokens and keys: how one is made, what is stored of it, and how one that arrives is recognised."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
_HASH = re.compile(r"^[0-9a-f]{64}$")


def hash_secret(secret: str) -> str:
    """SHA-256 of a token's secret, or of a whole key, in hex.

    A plain hash is enough because the secret is 256 random bits that no person chose: there is no list of
    likely secrets to try, and trying all is hopeless however fast the hash. A slow, salted hash protects weak
    passwords, and would cost every request tens of milliseconds here.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matching_token(hashes: Mapping[str, str], secret: str) -> str | None:
    """The name whose hash (name → hash) is that of `secret`, or None. All are compared, in constant time."""
    presented = hash_secret(secret)
    found = None
    for name, stored in hashes.items():
        if hmac.compare_digest(stored, presented):
            found = name
    return found


def name_problem(name: str, what: str) -> str | None:
    """Why `name` is no name of a `what` (token, key), as a sentence; None when it is one."""
    if _NAME.fullmatch(name):
        return None
    return (
        f"{name[:80]!r} is not a {what} name; it begins with a letter or digit and goes on with letters, digits "
        "and . _ @ -, at most 64"
    )


def is_secret_hash(value: str) -> bool:
    """Whether this looks like what `hash_secret` returns."""
    return _HASH.match(value) is not None

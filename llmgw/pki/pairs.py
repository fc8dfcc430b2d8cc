"""A certificate and its key on disk: checked before they are used.

OpenSSL's own words name neither file nor remedy.
"""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path

from cryptography import x509

from llmgw.pki.certificates import day, kind_of
from llmgw.pki.errors import PkiError
from llmgw.pki.files import belongs_to, finish_install, load_certificates, load_key


def harden(context: ssl.SSLContext) -> None:
    """Nothing below TLS 1.2."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2


def check_pair(
    cert: str, key: str, cert_name: str, key_name: str, kind: str, remedy: str, now: float | None
) -> None:
    """Raise PkiError unless the files are a certificate of that kind, its key, and in force at `now`."""
    leaf = matching_leaf(cert, key, cert_name, key_name, kind, remedy)
    check_in_force(leaf, f"{cert} ({cert_name})", remedy, time.time() if now is None else now)


def matching_leaf(cert: str, key: str, cert_name: str, key_name: str, kind: str, remedy: str) -> x509.Certificate:
    """The certificate in the files. Raises PkiError unless of that kind, or foreign, and the key its own."""
    finish_install(cert, key)
    leaf = load_certificates(Path(cert), f"certificate ({cert_name})", remedy)[0]
    if not belongs_to(load_key(Path(key), f"key ({key_name})", remedy), leaf):
        raise PkiError(
            f"The key {key} ({key_name}) does not belong to the certificate {cert} ({cert_name}). {remedy}"
        )
    try:
        found: str = kind_of(leaf)
    except PkiError:
        found = "foreign"
    if found not in (kind, "foreign"):
        raise PkiError(
            f"{cert} ({cert_name}) is a {found} certificate where a {kind} certificate belongs. {remedy}"
        )
    return leaf


def check_in_force(leaf: x509.Certificate, where: str, remedy: str, at: float) -> None:
    """Raise PkiError unless a certificate is valid at that time."""
    begin, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    if at >= end:
        raise PkiError(f"The certificate {where} expired on {day(end)}. {remedy}")
    if at < begin:
        raise PkiError(
            f"The certificate {where} holds from {day(begin)} on, and this host's clock says {day(at)}. "
            "Set the clock (timedatectl status)."
        )


def load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Have a context show this pair. Raises PkiError."""
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise PkiError(f"OpenSSL takes neither {cert} nor {key}: {error}. Copy both files again.") from None


def file_signature(path: str) -> tuple[int, int, int] | None:
    """What changes whenever the file does; None where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size

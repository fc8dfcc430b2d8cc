"""The address of the admin API for programs on the server's own host: one that can be dialled, and that its
certificate names. What is listened on may be neither."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from llmgw.config.addresses import is_loopback, join_host_port, split_host_port
from llmgw.pki.certificates import alternative_names
from llmgw.pki.errors import PkiError
from llmgw.pki.files import load_certificates

_OF_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def address_on_this_host(bound: str, cert: str | None) -> str:
    """The URL for a listener bound to `host:port`. `cert` is the file of its certificate; None: plain HTTP."""
    host, port = split_host_port(bound)
    own = _OF_ANY.get(host, host)
    if cert is None:
        return f"http://{join_host_port(own, port)}"
    chosen = _named(host, own, _read(cert)[:1])
    return f"https://{join_host_port(chosen, port)}"


def authority_of(cert: str, authority: str) -> str | None:
    """`authority`, absolute, where the certificate leads back to it by the intermediates in its file; else None:
    it is another's, as a rule one that hosts trust anyway."""
    chain, roots = _read(cert), _read(authority)
    if chain and any(_issued(chain[-1], root) for root in roots):
        return str(Path(authority).absolute())
    return None


def _named(host: str, own: str, leaf: list[x509.Certificate]) -> str:
    """Of a certificate's names the one that leads to what listens at `host`."""
    names = [name for one in leaf for name in alternative_names(one)]
    if own in names:
        return own
    near = [name for name in names if is_loopback(name)] if is_loopback(own) else []
    # Of other names nobody knows whether they lead to an address that is loopback's alone.
    far = [name for name in names if not is_loopback(name) and not name.startswith("*")]
    return next(iter([*near, *([] if is_loopback(host) else far), own]))


def _issued(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    if certificate == root:
        return True
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _read(path: str) -> list[x509.Certificate]:
    """What cannot be read is said by whoever serves with it."""
    try:
        return load_certificates(Path(path), "certificate", "")
    except PkiError:
        return []

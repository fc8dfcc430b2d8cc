"""The files that an operator carries to a node or a server, named as `agent.yaml` and `server.yaml` expect."""

from __future__ import annotations

import os
from pathlib import Path

from llmgw.pki.authority import IssuedCertificate
from llmgw.pki.certificates import Kind
from llmgw.pki.errors import PkiError
from llmgw.pki.files import install_pair, load_certificates, write_atomic
from llmgw.pki.records import record_of

_NAMES: dict[Kind, tuple[str, str]] = {
    "client": ("agent.pem", "agent-key.pem"),
    "server": ("server.pem", "server-key.pem"),
}


def default_folder(pki: Path, kind: Kind, name: str) -> Path:
    """Where a certificate goes when nobody says: `clients/node01` or `servers/gw.lan` below the authority."""
    return pki / f"{kind}s" / name.replace(":", "_")


def check_folder(folder: Path, kind: Kind, name: str | None) -> None:
    """Refuse a folder that holds the certificate of somebody else, before anything is issued.

    `name` is the node id of a client; for servers None, whose hosts may change. Raises PkiError.
    """
    cert = folder / _NAMES[kind][0]
    if not cert.exists():
        return
    held = record_of(load_certificates(cert, "certificate", "Move it away, or name another folder.")[0], 0.0, {})
    if held.kind != kind or (name is not None and held.name != name):
        raise PkiError(
            f"{cert} is the certificate of {held.name} ({held.kind}), which is not overwritten; "
            "name another folder with --out."
        )


def write_files(issued: IssuedCertificate, folder: Path) -> dict[str, str]:
    """Write certificate, key (0600) and root into `folder` (made 0700). Returns {"ca", "cert", "key"} as paths.

    Raises PkiError when the folder cannot be written.
    """
    cert_name, key_name = _NAMES[issued.kind]
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chmod(folder, 0o700)
        install_pair(folder / cert_name, folder / key_name, issued.cert_pem, issued.key_pem)
        write_atomic(folder / "ca.pem", issued.ca_pem, 0o644)
    except OSError as error:
        raise PkiError(
            f"The certificate was issued but cannot be written to {folder}: {error.strerror or error}. "
            f"Revoke it (llmgw ctl cert revoke {issued.serial}) and issue it again with another --out."
        ) from None
    return {"ca": str(folder / "ca.pem"), "cert": str(folder / cert_name), "key": str(folder / key_name)}

"""TLS contexts that trust what this machine trusts, wherever its distribution keeps that.

A build that holds its own OpenSSL looks where the machine that it was built on keeps certificates.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat, Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS
)


def system_context(bundles: Sequence[str] = BUNDLES) -> ssl.SSLContext:
    """A client's context that verifies servers against the machine's roots.

    Where OpenSSL's own places are empty, and neither SSL_CERT_FILE nor SSL_CERT_DIR names others, the first of
    `bundles` that exists is taken.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    named = {paths.openssl_cafile_env, paths.openssl_capath_env} & os.environ.keys()
    if not named and paths.cafile is None and not _holds_anything(paths.capath):
        for bundle in bundles:
            if os.path.isfile(bundle):
                context.load_verify_locations(bundle)
                break
    return context


def _holds_anything(folder: str | None) -> bool:
    try:
        return folder is not None and bool(os.listdir(folder))
    except OSError:
        return False

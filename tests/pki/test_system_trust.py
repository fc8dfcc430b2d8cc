"""Which authorities are trusted for servers that are not our own."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from llmgw.pki.authority import Authority
from llmgw.pki.system_trust import system_context


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An OpenSSL that was built for another distribution: none of its places is here."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    (tmp_path / "empty").mkdir()
    paths = ssl.DefaultVerifyPaths(
        None, str(tmp_path / "empty"), "SSL_CERT_FILE", "/no/cert.pem", "SSL_CERT_DIR", str(tmp_path / "empty")
    )
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    # And so its contexts have nothing in them.
    monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def names(context: ssl.SSLContext) -> list[str]:
    return [
        value for root in context.get_ca_certs() for ((key, value),) in root["subject"] if key == "commonName"
    ]


@pytest.mark.usefixtures("elsewhere")
def test_the_roots_of_this_distribution_are_found(authority: Authority, tmp_path: Path) -> None:
    bundles = ["/nowhere/ca.pem", str(tmp_path / "pki" / "ca.pem")]
    assert len(names(system_context(bundles))) == 1
    assert system_context(bundles).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.usefixtures("elsewhere")
def test_a_place_that_the_user_names_is_the_only_one(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mine.pem"))
    assert names(system_context([str(tmp_path / "pki" / "ca.pem")])) == []

"""A release's file is taken only with a signature of its own name and content."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llmgw.release.files import Kind, ReleaseError, name_of, read_name
from llmgw.release.signature import digest, read_public_key, sign, verify

KEY = Ed25519PrivateKey.generate()


def test_a_name_says_what_a_file_is() -> None:
    for kind in Kind:
        name = name_of(kind, "1.2.3rc1", "aarch64", "cp312")
        found = read_name(name)
        assert (found.kind, found.version) == (kind, "1.2.3rc1")
        assert found.machine == (None if kind is Kind.WHEEL else "aarch64")
        assert found.python == ("cp312" if kind is Kind.WHEELS else None)


@pytest.mark.parametrize(
    "name", ["llmgw", "", "llmgw-1.2.3-linux-sparc", "../llmgw-1.2.3-linux-x86_64", "llmgw-1.2.3-linux-x86_64\n"]
)
def test_another_name_gets_a_sentence(name: str) -> None:
    with pytest.raises(ReleaseError, match="no file of a release"):
        read_name(name)


def test_a_signature_holds_for_one_name_and_one_content(tmp_path: Path) -> None:
    path = tmp_path / name_of(Kind.SINGLE, "1.2.3", "x86_64")
    path.write_bytes(b"program")
    text = sign(KEY, path)
    public = read_public_key(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "x")
    verify(public, path.name, digest(path), text)
    newer = name_of(Kind.SINGLE, "9.0.0", "x86_64")
    for name, content, signature in [
        (newer, digest(path), text),
        (path.name, bytes(32), text),
        (path.name, digest(path), "AAAA"),
        (path.name, digest(path), "not base64"),
        (path.name, digest(path), ""),
    ]:
        with pytest.raises(ReleaseError, match="Nothing of it was used"):
            verify(public, name, content, signature)
    other = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(ReleaseError, match="signed by somebody else"):
        verify(other, path.name, digest(path), text)


def test_what_is_no_key_gets_a_sentence() -> None:
    with pytest.raises(ReleaseError, match=r"/etc/llmgw/release\.pub holds no public key"):
        read_public_key(b"-----BEGIN PUBLIC KEY-----\nrubbish\n", "/etc/llmgw/release.pub")

"""Images: fetched, verified each time, kept by their content, and never believed without a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmgw.onboarding.provision import fetch
from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.image_format import disk_bytes_of
from llmgw.onboarding.provision.images import read_sums
from llmgw.onboarding.provision.wanted import MIB, Checksum
from llmgw.pki.authority import Authority
from tests.onboarding.proxmox.host import ProxmoxHost, qcow2
from tests.onboarding.proxmox.programs import GIB

NAME = "debian-12-generic-amd64.qcow2"


class Mirror:
    """An https server with an image and its SHA512SUMS; `files` may be changed, `asked` is what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.redirects: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.cut_after: int | None = None
        self.endless = False
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                if self.path in mirror.redirects:
                    self.send_response(302)
                    self.send_header("location", mirror.redirects[self.path])
                    self.end_headers()
                    return
                body = mirror.files.get(self.path)
                self.send_response(200 if body is not None else 404)
                if mirror.endless and self.path.endswith("qcow2"):
                    self.end_headers()
                    with contextlib.suppress(OSError):
                        for _ in range(64):
                            self.wfile.write(bytes(2**20))
                    return
                self.send_header("content-length", str(len(body or b"")))
                for name, value in mirror.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write((body or b"")[: mirror.cut_after if self.path.endswith("qcow2") else None])

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.ca, context = _certificate(folder)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"https://localhost:{self._server.server_address[1]}"
        self.put(qcow2(2 * GIB))

    def put(self, image: bytes) -> str:
        """Publish an image; its sha512."""
        digest = hashlib.sha512(image).hexdigest()
        self.files = {
            f"/latest/{NAME}": image,
            "/latest/SHA512SUMS": f"{'0' * 128}  other.qcow2\n{digest}  {NAME}\n".encode(),
        }
        return digest

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    authority = Authority.create(folder / "mirror-pki", permit_dns=["localhost"], now=time.time())
    issued = authority.issue_server(["localhost"], time.time())
    for name, text in (("ca", authority.ca_pem), ("cert", issued.cert_pem), ("key", issued.key_pem)):
        (folder / f"mirror-{name}.pem").write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "mirror-cert.pem", folder / "mirror-key.pem")
    return folder / "mirror-ca.pem", context


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    made = Mirror(tmp_path)
    yield made
    made.close()


def kept(host: ProxmoxHost) -> list[str]:
    return sorted(path.name for path in (host.root / "var/lib/vz/llmgw-images").glob("*"))


def fetching(
    host: ProxmoxHost, mirror: Mirror, *more: str, name: str = f"/latest/{NAME}"
) -> tuple[int, str, str]:
    """Run with the mirror's image: exit code, stdout, stderr."""
    done = host.run(
        "--image", mirror.url + name, *more, image=False, environment={"SSL_CERT_FILE": str(mirror.ca)}
    )
    return done.returncode, done.stdout, done.stderr


def test_an_image_is_fetched_once_and_kept_by_its_content(host: ProxmoxHost, mirror: Mirror) -> None:
    digest = hashlib.sha512(mirror.files[f"/latest/{NAME}"]).hexdigest()
    code, out, err = fetching(host, mirror, "-o", "json")
    assert code == 0, err
    (image, record) = kept(host)
    assert (image, record) == (f"debian-12-generic-amd64-{digest[:12]}.qcow2", f"{image}.sha512")
    assert json.loads(out)["image"].endswith(f"var/lib/vz/llmgw-images/{image}")
    assert f"fetching {image}: 4.0 KiB of 4.0 KiB, 100 %" in err
    mirror.asked.clear()
    _, _, again = fetching(host, mirror, "--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8")
    assert f"verifying {image}" in again
    assert mirror.asked == ["/latest/SHA512SUMS"]


def test_a_newer_image_is_fetched_beside_the_old_one(host: ProxmoxHost, mirror: Mirror) -> None:
    assert fetching(host, mirror)[0] == 0
    mirror.put(qcow2(3 * GIB))
    code, _, err = fetching(host, mirror, "--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8")
    assert code == 0, err
    assert len(kept(host)) == 4


def test_without_the_mirror_the_kept_image_serves(host: ProxmoxHost, mirror: Mirror) -> None:
    assert fetching(host, mirror)[0] == 0
    mirror.close()
    code, _, err = fetching(host, mirror, "--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8")
    assert code == 0, err
    assert "is used" in err


def test_without_the_mirror_no_other_addresses_image_of_that_name_serves(
    host: ProxmoxHost, mirror: Mirror
) -> None:
    mirror.files = {path.replace("/latest/", "/testing/"): body for path, body in mirror.files.items()}
    assert fetching(host, mirror, name=f"/testing/{NAME}")[0] == 0
    mirror.close()
    more = ("--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8")
    code, _, err = fetching(host, mirror, *more)
    assert code == 1
    assert "No image of that address is kept" in err


def test_an_image_whose_record_was_lost_is_known_again_once_it_is_verified(
    host: ProxmoxHost, mirror: Mirror
) -> None:
    assert fetching(host, mirror)[0] == 0
    record = host.root / "var/lib/vz/llmgw-images" / kept(host)[1]
    known = record.read_text()
    record.unlink()
    assert (
        fetching(host, mirror, "--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8", "--dry-run")[0] == 0
    )
    assert not record.exists()
    assert fetching(host, mirror, "--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8")[0] == 0
    assert record.read_text() == known
    record.write_bytes(b"\xff\xfe")
    mirror.close()
    code, _, err = fetching(host, mirror, "--vmid", "107", "--name", "node07", "--ip", "127.0.55.7/8")
    assert code == 1
    assert "No image of that address is kept" in err


def test_without_the_mirror_and_a_kept_image_it_says_how_to_bring_one(host: ProxmoxHost, mirror: Mirror) -> None:
    mirror.close()
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert "SHA512SUMS cannot be fetched (Connection refused)" in err
    assert "give --image FILE with --image-sha512" in err


def test_a_kept_image_that_was_damaged_is_not_used(host: ProxmoxHost, mirror: Mirror) -> None:
    assert fetching(host, mirror)[0] == 0
    path = host.root / "var/lib/vz/llmgw-images" / kept(host)[0]
    path.write_bytes(path.read_bytes() + b"x")
    code, _, err = fetching(host, mirror, "--vmid", "106", "--name", "node06", "--ip", "127.0.55.6/8")
    assert code == 1
    assert f"the kept file is damaged: rm {path} and run this again" in err


def test_an_image_with_another_content_than_published_is_not_kept(host: ProxmoxHost, mirror: Mirror) -> None:
    mirror.files[f"/latest/{NAME}"] = qcow2(4 * GIB)
    before = host.state()
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert "Nothing of it was kept" in err
    assert not kept(host)
    assert host.state() == before


def test_a_connection_that_ends_early_leaves_nothing(host: ProxmoxHost, mirror: Mirror) -> None:
    mirror.cut_after = 1000
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert "run this again" in err
    assert not kept(host)


def test_a_source_without_a_length_does_not_fill_the_hosts_disk(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.endless = True
    monkeypatch.setenv("SSL_CERT_FILE", str(mirror.ca))
    monkeypatch.setattr(fetch, "ROOM_EVERY_BYTES", 2**20)
    looked: list[object] = []

    def filling(_folder: object) -> SimpleNamespace:
        looked.append(1)
        return SimpleNamespace(f_bavail=10 * GIB if len(looked) < 3 else 100 * MIB, f_frsize=1)

    monkeypatch.setattr(fetch.os, "statvfs", filling)
    target = tmp_path / "kept/x.qcow2"
    with pytest.raises(ProvisionError, match=r"has 100\.0 MiB free and the image needs more"):
        fetch.fetch_file(f"{mirror.url}/latest/{NAME}", target, Checksum("sha256", "0" * 64), lambda *_: None)
    assert not list(target.parent.iterdir())


def test_what_a_killed_fetch_left_is_removed_by_the_next_one(host: ProxmoxHost, mirror: Mirror) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = host.root / "var/lib/vz/llmgw-images"
    folder.mkdir(parents=True)
    (folder / f".old-0123456789ab.qcow2.{ended.pid}.part").write_text("half")
    other = folder / f".other-0123456789ab.qcow2.{os.getpid()}.part"
    other.write_text("another run's")
    code, _, err = fetching(host, mirror)
    assert code == 0, err
    assert list(folder.glob(".*")) == [other]


def test_a_checksum_on_the_command_line_rules(host: ProxmoxHost, mirror: Mirror) -> None:
    digest = hashlib.sha256(mirror.files[f"/latest/{NAME}"]).hexdigest()
    code, _, err = fetching(host, mirror, "--image-sha256", digest)
    assert code == 0, err
    assert "/latest/SHA512SUMS" not in mirror.asked
    code, _, err = fetching(host, mirror, "--image-sha256", "0" * 64, "--vmid", "106", "--name", "node06")
    assert code == 1


def test_a_redirect_to_plain_http_is_not_followed(host: ProxmoxHost, mirror: Mirror) -> None:
    mirror.redirects["/latest/SHA512SUMS"] = "http://localhost/latest/SHA512SUMS"
    mirror.redirects["/latest/SHA256SUMS"] = "http://localhost/latest/SHA256SUMS"
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert "leads from https to plain http, which is not followed" in err


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("https://[x/y", "leads to what is no address"),
        ("file:///etc/passwd", "leads to file://, which is not followed"),
        ("https://a..b/y", "is no address"),
        ("/latest/SHA512SUMS", "leads on more than 5 times"),
    ],
)
def test_a_redirect_to_nowhere_is_a_sentence(
    host: ProxmoxHost, mirror: Mirror, location: str, sentence: str
) -> None:
    mirror.redirects["/latest/SHA512SUMS"] = location
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert sentence in err
    assert "Traceback" not in err


def test_a_list_that_is_packed_otherwise_than_it_says_is_refused(host: ProxmoxHost, mirror: Mirror) -> None:
    mirror.headers["content-encoding"] = "gzip"
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert "it is packed, and not as it says" in err
    assert "Traceback" not in err


def test_an_image_without_published_checksums_is_refused(host: ProxmoxHost, mirror: Mirror) -> None:
    del mirror.files["/latest/SHA512SUMS"]
    code, _, err = fetching(host, mirror)
    assert code == 1
    assert f"there is no SHA512SUMS or SHA256SUMS beside it that names {NAME}; give --image-sha512" in err


def test_a_mirror_of_a_strange_authority_is_not_believed(host: ProxmoxHost, mirror: Mirror) -> None:
    done = host.run("--image", f"{mirror.url}/latest/{NAME}", image=False)
    assert done.returncode == 1
    assert "its certificate is not believed" in done.stderr


def test_a_dry_run_fetches_checksums_only_and_prints_how_to_fetch_the_rest(
    host: ProxmoxHost, mirror: Mirror
) -> None:
    code, out, err = fetching(host, mirror, "--dry-run")
    assert code == 0, err
    assert mirror.asked == ["/latest/SHA512SUMS"]
    assert not kept(host)
    assert out.startswith("curl --fail --location --create-dirs --output ")
    assert "sha512sum --check" in out


def test_an_image_that_names_another_file_is_refused(host: ProxmoxHost) -> None:
    image = host.folder / "backed.qcow2"
    image.write_bytes(qcow2(2 * GIB, backing=200))
    digest = hashlib.sha512(image.read_bytes()).hexdigest()
    told = host.refusal("--image", str(image), "--image-sha512", digest)
    assert "refers to another file" in told
    assert not host.changes()


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x1f\x8b" + bytes(1000)])
def test_what_is_no_disk_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(ProvisionError, match="neither a qcow2 file nor a raw disk"):
        disk_bytes_of(path)


def test_a_qcow2_file_that_is_called_raw_is_refused(tmp_path: Path) -> None:
    """Proxmox goes by the name, and the VM would have a disk that no firmware can read."""
    path = tmp_path / "image.raw"
    path.write_bytes(qcow2(GIB))
    with pytest.raises(ProvisionError, match=r"is a qcow2 file with another name; call it \.qcow2"):
        disk_bytes_of(path)
    assert disk_bytes_of(path.rename(tmp_path / "image.img")) == GIB


def test_a_raw_disk_is_known_by_its_boot_record(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(510) + b"\x55\xaa" + bytes(4096))
    assert disk_bytes_of(path) == 4608


def test_lists_of_checksums_are_read_as_sha512sum_writes_them() -> None:
    digest = "ab" * 64
    for line in (
        f"{digest}  x.qcow2",
        f"{digest} *x.qcow2",
        f"{digest}  ./x.qcow2",
        f"{digest.upper()}  x.qcow2",
    ):
        found = read_sums(f"# note\n{'0' * 64}  x.qcow2\n{line}\n", "x.qcow2", "sha512")
        assert found is not None
        assert found.hex == digest
    assert read_sums(f"{digest}  xx.qcow2\n", "x.qcow2", "sha512") is None

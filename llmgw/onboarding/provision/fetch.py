"""Fetching over https: a list of checksums, or an image into a file, counted and hashed while it comes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx

from llmgw.config.sizes import size_words
from llmgw.config.sources import shown_url
from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.wanted import Checksum

TIMEOUT_S: Final = 30.0
REDIRECTS_MAX: Final = 5
SUMS_BYTES_MAX: Final = 2**20
SUMS_TIMEOUT_S: Final = 60.0
IMAGE_BYTES_MAX: Final = 256 * 2**30
ROOM_EVERY_BYTES: Final = 64 * 2**20
RESERVE_BYTES: Final = 512 * 2**20
"""What must be left on the disk of kept images, which is the host's own."""


class Unreachable(ProvisionError):
    """A source that gave no answer: the network, a name, a proxy. The host may simply have no way out."""


class NotThere(ProvisionError):
    """A source that answers, and not with a file."""


def fetch_text(url: str) -> str:
    """A small file. Raises NotThere, Unreachable or another ProvisionError."""
    with _opened(url) as response:
        text = b""
        deadline_s = time.monotonic() + SUMS_TIMEOUT_S
        try:
            for chunk in response.iter_bytes():
                text += chunk
                if len(text) > SUMS_BYTES_MAX:
                    raise ProvisionError(f"{shown_url(url)} is no list of checksums: it is too long.")
                if time.monotonic() > deadline_s:
                    raise Unreachable(f"{shown_url(url)} has not come to its end for {SUMS_TIMEOUT_S:g} s.")
        except httpx.DecodingError:
            raise ProvisionError(
                f"{shown_url(url)} is no list of checksums: it is packed, and not as it says."
            ) from None
        except (httpx.TransportError, OSError) as error:
            raise Unreachable(f"The connection to {_host(url)} was lost ({_reason(error)}).") from None
    return text.decode("utf-8", "replace")


def fetch_file(url: str, target: Path, checksum: Checksum, tell: Callable[[int, int | None], None]) -> None:
    """Fetch into `target` (through a file beside it), verified and synced. `tell(done_bytes, total_bytes)`.

    Raises Unreachable or ProvisionError; nothing is left behind then, nor when the process is asked to end.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    digest = hashlib.new(checksum.kind)
    done = checked = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        with _opened(url) as response, part.open("wb") as file:
            length = response.headers.get("content-length", "")
            total = int(length) if length.isdigit() and len(length) < 16 else None
            _require_room(target.parent, total or 0)
            for chunk in response.iter_raw(2**20):
                done += len(chunk)
                if done > IMAGE_BYTES_MAX:
                    raise ProvisionError(f"{shown_url(url)} does not end; it is no image.")
                if done >= checked + ROOM_EVERY_BYTES:
                    # Not every source tells its length, and a host whose own disk is full loses its cluster.
                    checked = done
                    _require_room(target.parent, 0)
                file.write(chunk)
                digest.update(chunk)
                tell(done, total)
            file.flush()
            os.fsync(file.fileno())
        if total is not None and done != total:
            raise Unreachable(f"{shown_url(url)} ended after {done} of {total} bytes; run this again.")
        if digest.hexdigest() != checksum.hex:
            raise ProvisionError(
                f"{shown_url(url)} has {checksum.kind} {digest.hexdigest()} and should have {checksum.hex}: it "
                "was changed on its way or at its source. Nothing of it was kept; run this again, or check the "
                "checksum."
            )
        part.replace(target)
    except httpx.TransportError as error:
        raise Unreachable(
            f"The connection to {_host(url)} was lost ({_reason(error)}); run this again."
        ) from None
    except OSError as error:
        raise ProvisionError(f"The image cannot be kept in {target.parent}: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Parts of fetches that were killed, or ended with the power: they are large, and nobody sees them."""
    for path in target.parent.glob(".*.part"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)


def _require_room(folder: Path, wanted_bytes: int) -> None:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if free < wanted_bytes + RESERVE_BYTES:
        needs = size_words(wanted_bytes) if wanted_bytes else "more"
        raise ProvisionError(
            f"{folder} has {size_words(free)} free and the image needs {needs}, and {size_words(RESERVE_BYTES)} "
            "must be left: make room there."
        )


@contextlib.contextmanager
def _opened(url: str) -> Iterator[httpx.Response]:
    """A 200's answer behind all redirects; https never leads to plain http."""
    at = url
    with _client() as client:
        for _ in range(REDIRECTS_MAX + 1):
            try:
                request = client.build_request("GET", at, headers={"accept-encoding": "identity"})
                response = client.send(request, stream=True)
            except (httpx.TransportError, OSError) as error:
                raise Unreachable(f"{shown_url(at)} cannot be fetched ({_reason(error)}).") from None
            except (httpx.InvalidURL, ValueError) as error:  # ValueError: names that IDNA cannot write
                raise ProvisionError(f"{shown_url(at)} is no address ({error}); check it.") from None
            with contextlib.closing(response):
                if response.status_code in (301, 302, 303, 307, 308) and "location" in response.headers:
                    at = _led_to(at, response.headers["location"])
                    continue
                if response.status_code != 200:
                    raise NotThere(f"{shown_url(at)} answers {response.status_code}; check the address.")
                yield response
                return
    raise ProvisionError(f"{shown_url(url)} leads on more than {REDIRECTS_MAX} times; give the last address.")


def _client() -> httpx.Client:
    try:
        return httpx.Client(timeout=TIMEOUT_S, verify=ssl.create_default_context())
    except (httpx.InvalidURL, ValueError, ImportError):  # ImportError: SOCKS needs a package of its own
        raise ProvisionError(
            "The proxy in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY or NO_PROXY cannot be used: give an address such as "
            "http://proxy.internal:3128, or unset it."
        ) from None


def _led_to(at: str, location: str) -> str:
    """Where a redirect leads. Raises ProvisionError."""
    try:
        to = urljoin(at, location)
        scheme = urlsplit(to).scheme
    except ValueError:
        raise ProvisionError(f"{shown_url(at)} leads to what is no address; give another.") from None
    if scheme not in ("https", "http"):
        raise ProvisionError(f"{shown_url(at)} leads to {scheme}://, which is not followed.")
    if scheme == "http" and urlsplit(at).scheme == "https":
        raise ProvisionError(f"{shown_url(at)} leads from https to plain http, which is not followed.")
    return to


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not believed: {cause.verify_message}"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return f"no answer for {TIMEOUT_S:g} s"
    return str(error) or type(error).__name__

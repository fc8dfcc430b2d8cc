"""Finds the server that `ctl` talks to, and the token for it: options, environment, or the state on this host.

The server writes `<state>/admin.json` (0600): `{"url": "http://127.0.0.1:8081", "token": "…"}`, and with TLS
under an authority of its own also `"ca": "/path/ca.pem"`. A running `llmgw demo` writes
`~/.cache/llmgw/demo.json`: `{"state": "/path/of/its/state", "pid": 4711}`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmgw.config.errors import SentenceError

ADMIN_FILE = "admin.json"
FILE_BYTES_MAX = 64 * 1024
HOW_TO_NAME = "name one with --server URL or LLMGW_CTL_SERVER, or its state folder with LLMGW_STATE"


class FindError(SentenceError):
    """No server, or no token for it."""


@dataclass(frozen=True)
class Target:
    """A server: `url` without a slash at its end, and in words where that and the token came from."""

    url: str
    token: str
    ca: str | None
    url_from: str
    token_from: str


@dataclass(frozen=True)
class Wanted:
    """What the command line says; None is not given."""

    server: str | None = None
    token: str | None = None
    token_file: str | None = None
    ca: str | None = None


def find_server(wanted: Wanted, environ: Mapping[str, str], cwd: Path, home: Path) -> Target:
    """The server and token to use. Raises FindError with a sentence that says how to name one.

    The address: `--server`, `LLMGW_CTL_SERVER`, then the first state folder that has an `admin.json`:
    `LLMGW_STATE`, `./llmgw-state`, `/var/lib/llmgw`, that of a running `llmgw demo`.
    """
    url_from = "--server" if wanted.server else "LLMGW_CTL_SERVER"
    named = wanted.server or environ.get("LLMGW_CTL_SERVER")
    local: dict[str, Any] | None = None
    try:
        local_from, local = find_local(environ, cwd, home)
    except FindError:
        # Only the address is looked for here; a token may be named even so.
        if not named:
            raise
        local_from = ""
    url = checked_url(named, url_from) if named else checked_url(local["url"] if local else "", local_from)
    if not named:
        url_from = local_from
    elif local and local["url"].rstrip("/") != url:
        local = None
    token, token_from = _token(wanted, environ, local, local_from, url)
    ca = wanted.ca or environ.get("LLMGW_CTL_CA") or (local.get("ca") if local else None)
    return Target(url, token, ca, url_from, token_from)


def checked_url(text: str, origin: str) -> str:
    """`text` without a slash at its end, if a token may be sent there. Raises FindError."""
    from llmgw.config.addresses import is_loopback

    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # a bracket without its other half, or a port that is none
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isprintable() or " " in text:
        raise FindError(f"{text!r} ({origin}) is not an address; write for example https://gateway:8081")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise FindError(f"the address of {origin} carries a password, a query or a fragment; leave them out")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise FindError(
            f"{text} ({origin}) would carry the token in the clear; use https://, or a tunnel "
            f"(ssh -L 8081:127.0.0.1:{port or 80} {parts.hostname}) and --server http://127.0.0.1:8081"
        )
    return text.rstrip("/")


def find_local(environ: Mapping[str, str], cwd: Path, home: Path) -> tuple[str, dict[str, Any]]:
    """(path, content) of the `admin.json` of a server on this host. Raises FindError."""
    if state := environ.get("LLMGW_STATE"):
        path = cwd / state / ADMIN_FILE
        content = _read(path)
        if content is None:
            raise FindError(
                f"LLMGW_STATE is {state}, but there is no {ADMIN_FILE} in it; has its server started?"
            )
        return str(path), content
    looked: list[str] = []
    standing = [Path("/var/lib/llmgw") / ADMIN_FILE]
    # Whom sudo leaves in a folder that they may not enter has no server there.
    if os.access(cwd, os.X_OK):
        standing.insert(0, cwd / "llmgw-state" / ADMIN_FILE)
    demo = _demo(home)
    for path in [*standing, demo] if demo else standing:
        content = _read(path)
        if content is not None:
            return _short(path, cwd), content
        looked.append(_short(path.parent, cwd))
    raise FindError(
        f"no server was found on this host (looked into {', '.join(looked)}); start one with llmgw server or "
        f"llmgw demo, or {HOW_TO_NAME}"
    )


def _demo(home: Path) -> Path | None:
    """Where the running demo keeps its `admin.json`, if one runs."""
    try:
        content = json.loads((home / ".cache" / "llmgw" / "demo.json").read_text()[:FILE_BYTES_MAX])
        state, pid = content["state"], content.get("pid")
        if pid is not None:
            os.kill(int(pid), 0)
        return Path(state) / ADMIN_FILE
    except PermissionError:  # the process is there, and another user's
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _read(path: Path) -> dict[str, Any] | None:
    """The checked content of an `admin.json`; None if there is none. Raises FindError if it cannot be used."""
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            raw = file.read(FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise FindError(
            f"{path} may not be read by this user; run as the server's user or root, or {HOW_TO_NAME}"
        ) from None
    except OSError as error:
        raise FindError(f"{path} cannot be read ({error.strerror}); {HOW_TO_NAME}") from None
    # A folder that others may write into (/tmp) could hold somebody else's file, and so their server.
    if owner not in (0, os.geteuid()) and os.geteuid() != 0:
        raise FindError(f"{path} belongs to another user; {HOW_TO_NAME}")
    try:
        content = json.loads(raw)
    except ValueError:
        content = None
    keys = ("url", "token")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in keys):
        raise FindError(f"{path} is not what a server writes; start the server again, or {HOW_TO_NAME}")
    return content


def _token(
    wanted: Wanted, environ: Mapping[str, str], local: dict[str, Any] | None, local_from: str, url: str
) -> tuple[str, str]:
    if wanted.token:
        return _checked_token(wanted.token, "--token")
    if wanted.token_file:
        return _checked_token(_token_file(Path(wanted.token_file)), wanted.token_file)
    if token := environ.get("LLMGW_CTL_TOKEN"):
        return _checked_token(token, "LLMGW_CTL_TOKEN")
    if local:
        return _checked_token(local["token"], local_from)
    raise FindError(
        f"there is no token for {url}; put one into LLMGW_CTL_TOKEN, or into a file for --token-file "
        "(llmgw ctl token create NAME on the server's host makes one)"
    )


def _token_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                print(f"warning: {path} can be read by others; chmod 600 {path}", file=sys.stderr)
            return file.read(FILE_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError as error:
        raise FindError(f"the token file {path} cannot be read ({error.strerror})") from None


def _checked_token(token: str, origin: str) -> tuple[str, str]:
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token or not 0 < len(token) <= 512:
        raise FindError(f"what {origin} holds is not a token; a token is one word without spaces")
    return token, origin


def _short(path: Path, cwd: Path) -> str:
    return f"./{path.relative_to(cwd)}" if path.is_relative_to(cwd) else str(path)

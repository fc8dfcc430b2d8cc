"""Asks the admin API: one request, JSON back, and a sentence for whatever goes wrong.

Proxy variables in the environment are ignored; redirects are not followed; certificates are judged by
the system's store or by the authority that was named, never not at all.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from llmgw.cli.ctl.failures import StrangeError, answer_failure, not_ours, transport_failure
from llmgw.cli.ctl.find import FindError, Target
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    import httpx

    from llmgw.messages.admin import ServerView

CONNECT_TIMEOUT_S = 5.0
# The server itself waits for an agent when it is asked for an engine's output.
READ_TIMEOUT_S = 60.0
PIECE_BYTES = 256 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024

Shape = TypeVar("Shape")


class NoNameError(SentenceError):
    """A name that cannot be sent."""


class AdminClient:
    """The admin API of one server. Use as a context manager."""

    def __init__(self, target: Target, *, patience_s: float | None = None) -> None:
        """`patience_s`: the longest that anything may take, where that is less than usual."""
        import httpx

        self.target = target
        self._patience_s = patience_s
        verify = _tls_context(target) if target.url.startswith("https:") else False
        try:
            self._http = self._client(target, verify)
        except httpx.InvalidURL:
            raise FindError(f"{target.url} ({target.url_from}) is not an address") from None

    @staticmethod
    def _client(target: Target, verify: ssl.SSLContext | bool) -> httpx.Client:
        import httpx

        return httpx.Client(
            base_url=f"{target.url}/",
            headers={"authorization": f"Bearer {target.token}", "accept": "application/json"},
            verify=verify,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            follow_redirects=False,
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **parameters: str | int | None) -> Any:
        """The answer as lists, dicts, strings and numbers. Parameters that are None are left out."""
        return self._ask("GET", path, {name: value for name, value in parameters.items() if value is not None})

    def post(self, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = READ_TIMEOUT_S) -> Any:
        """The answer to a change, for which the server takes less than `timeout_s`."""
        return self._ask("POST", path, {}, body, timeout_s)

    def put_file(self, path: str, file: Path, told: Callable[[int], None]) -> Any:
        """The answer to a file's content, sent in pieces; `told` hears how many bytes are on their way. Raises
        OSError when the file cannot be read.
        """
        import httpx

        def pieces() -> Iterator[bytes]:
            sent = 0
            with file.open("rb") as opened:
                while piece := opened.read(PIECE_BYTES):
                    yield piece
                    sent += len(piece)
                    told(sent)

        asked = f"PUT /api/v1/{path}"
        try:
            request = self._http.build_request(
                "PUT",
                f"api/v1/{path}",
                content=pieces(),
                headers={"content-type": "application/octet-stream", "content-length": str(file.stat().st_size)},
            )
            return self._answer(request, asked)
        except httpx.HTTPError as error:
            raise transport_failure(error, self.target, asked) from error

    def delete(self, path: str, **parameters: str | int) -> Any:
        """The answer to a removal."""
        return self._ask("DELETE", path, dict(parameters))

    def _ask(
        self,
        method: str,
        path: str,
        parameters: dict[str, str | int],
        body: Any = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Any:
        import httpx
        import msgspec

        asked = f"{method} /api/v1/{path}"
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            content = None if body is None else msgspec.json.encode(body)
            request = self._http.build_request(
                method,
                f"api/v1/{path}",
                params=parameters or None,
                content=content,
                headers=headers,
                timeout=self._patience_s or httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            )
            return self._answer(request, asked)
        except (UnicodeEncodeError, httpx.InvalidURL):
            raise NoNameError("a name on the command line holds bytes that are not text") from None
        except httpx.HTTPError as error:
            raise transport_failure(error, self.target, asked) from error

    def _answer(self, request: httpx.Request, asked: str) -> Any:
        import msgspec

        response = self._http.send(request, stream=True)
        try:
            raw = self._read(response)
        finally:
            response.close()
        content_type = response.headers.get("content-type", "")
        if not response.is_success:
            location = response.headers.get("location", "")
            raise answer_failure(response.status_code, raw, content_type, location, self.target, asked)
        try:
            return msgspec.json.decode(raw)
        except msgspec.MsgspecError:
            raise not_ours(response.status_code, content_type, self.target) from None

    def _read(self, response: httpx.Response) -> bytes:
        raw = bytearray()
        for chunk in response.iter_bytes():
            raw += chunk
            if len(raw) > ANSWER_BYTES_MAX:
                raise not_ours(response.status_code, "an answer without end", self.target)
        return bytes(raw)


def segment(name: str) -> str:
    """A name as one part of a path. Raises NoNameError for what none can hold: a server reads an escaped slash as
    one, too, and would call the path unknown."""
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise NoNameError(f"{name!r} is not a name")
    return quote(name, safe="")


def node_segment(name: str) -> str:
    """A node id as one part of a path. Raises NoNameError for what is none, such as a name with a slash."""
    from llmgw.messages.agent import NODE_ID_PATTERN

    if not re.fullmatch(NODE_ID_PATTERN, name):
        raise NoNameError(
            f"{name[:80]!r} is not a node id: lower-case letters, digits, '-' and '.', at most 63; "
            "llmgw ctl nodes lists them"
        )
    return name


def shaped(value: Any, shape: type[Shape]) -> Shape:
    """An answer as its message type, for a table. Raises StrangeError when the server speaks another version."""
    import msgspec

    try:
        # JSON has text for keys, also where the message has numbers.
        return msgspec.convert(value, type=shape, str_keys=True)
    except msgspec.ValidationError as error:
        raise StrangeError(
            f"the server's answer is not what this version of llmgw expects ({error}); compare llmgw --version "
            "on both hosts, or use -o json"
        ) from None


def server_view(api: AdminClient) -> ServerView:
    """What the server says of itself. Raises SentenceError, StrangeError when it is another version's."""
    from llmgw.messages.admin import ServerView

    return shaped(api.get("server"), ServerView)


def _tls_context(target: Target) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=target.ca)
    except ssl.SSLError:
        raise FindError(
            f"{target.ca} holds no certificate; give the authority's ca.pem to --ca or LLMGW_CTL_CA"
        ) from None
    except OSError as error:
        raise FindError(f"the authority's certificate {target.ca} cannot be read ({error.strerror})") from None

"""The agents' endpoint: `/agent/v1/…` over mutual TLS. Proves identity, bounds bodies, and asks the hub."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.fleet.observe import Enrolment
from llmgw.messages.agent import (
    BODY_BYTES_MAX,
    POLL_WAIT_S,
    Commands,
    Inventory,
    Poll,
    Refusal,
    Register,
    Renew,
    Renewed,
    Report,
)
from llmgw.messages.clip import clip
from llmgw.messages.upgrade import ReadRelease
from llmgw.pki.certificates import day
from llmgw.pki.errors import PkiError
from llmgw.pki.peer import Peer, peer_from_der
from llmgw.pki.renewal import Renewer
from llmgw.pki.revocation import RevocationList
from llmgw.release.files import ReleaseError
from llmgw.release.versions import understand_each_other
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError
from llmgw.server.peer_protocol import client_cert_der
from llmgw.server.seams import Clock
from llmgw.server.upgrades.upgrades import Upgrades

log = structlog.get_logger("agents")

NOTE_EVERY_S = 60.0
NOTED_MAX = 4096

Message = TypeVar("Message", Register, Poll, Report, Renew, ReadRelease)


class AgentsApi:
    """The five calls. Each checks the certificate of the connection anew (revocation is at once)."""

    def __init__(
        self,
        hub: Hub,
        *,
        clock: Clock,
        upgrades: Upgrades,
        revocations: RevocationList | None,
        renewer: Renewer | None,
        server_version: str,
        removed_at: Callable[[str], float | None] = lambda node_id: None,
    ) -> None:
        self._hub = hub
        self._clock = clock
        self._upgrades = upgrades
        self._revocations = revocations
        self._renewer = renewer
        self._server_version = server_version
        self._removed_at = removed_at
        self._noted: dict[tuple[str, str], float] = {}
        """(node or address, code) → when it was last written into the log."""
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {
            kind: msgspec.json.Decoder(kind) for kind in (Register, Poll, Report, Renew, ReadRelease)
        }

    def app(self) -> Starlette:
        """The ASGI application, for a listener that demands a client certificate."""

        def route(path: str, answer: Callable[[Request, Peer], Awaitable[msgspec.Struct | bytes]]) -> Route:
            async def endpoint(request: Request) -> Response:
                begun = self._clock.monotonic()
                response, refused = await self._guarded(request, answer)
                self._hub.calls.answered(path, self._clock.monotonic() - begun, refused)
                return response

            return Route(f"/agent/v1/{path}", endpoint, methods=["POST"])

        async def nowhere(request: Request, _: Exception) -> Response:
            return _refuse(404, "no_such_call", f"{request.method} {request.url.path} is no call of agents")

        async def wrong_method(request: Request, _: Exception) -> Response:
            return _refuse(405, "method", f"{request.url.path} takes POST, not {request.method}")

        return Starlette(
            routes=[
                route("register", self._register),
                route("poll", self._poll),
                route("report", self._report),
                route("renew", self._renew),
                route("release", self._release),
            ],
            exception_handlers={404: nowhere, 405: wrong_method},
        )

    async def _register(self, request: Request, peer: Peer) -> msgspec.Struct:
        message = clip(await self._read(request, Register, peer), peer.node_id)
        if message.node_id != peer.node_id:
            raise HubError(
                403,
                "identity",
                f"the certificate is {peer.node_id!r}'s, but the message claims to be {message.node_id!r}; "
                "set node_id to the certificate's name, or issue a certificate for this node",
            )
        if peer.address is None:
            raise HubError(
                403,
                "no_address",
                f"the certificate of {peer.node_id} carries no address; issue it again with --address",
            )
        self._check_version(message)
        _check_inventory(message.inventory)
        registered = self._hub.register(message, Enrolment(peer.address, peer.not_after), self._server_version)
        await self._hub.remembered()
        return registered

    async def _poll(self, request: Request, peer: Peer) -> msgspec.Struct:
        message = await self._read(request, Poll, peer)
        self._check_session(message.session, peer)
        return Commands(commands=await self._hub.poll(message.session, message.acked, POLL_WAIT_S))

    async def _report(self, request: Request, peer: Peer) -> msgspec.Struct:
        message = clip(await self._read(request, Report, peer), peer.node_id)
        self._check_session(message.session, peer)
        if message.inventory is not None:
            _check_inventory(message.inventory)
        return await self._hub.report(message)

    async def _renew(self, request: Request, peer: Peer) -> msgspec.Struct:
        message = await self._read(request, Renew, peer)
        if self._renewer is None:
            raise HubError(
                501,
                "no_renewal",
                "this server holds no renewal authority; set agents.tls.renewal_cert and renewal_key, or issue "
                "the node's certificate by hand",
            )
        cert_pem = self._renewer.renew(message.csr_pem, peer, self._clock.wall())
        log.info("certificate renewed", node=peer.node_id)
        return Renewed(cert_pem=cert_pem)

    async def _release(self, request: Request, peer: Peer) -> bytes:
        message = await self._read(request, ReadRelease, peer)
        self._check_session(message.session, peer)
        return await self._upgrades.piece(peer.node_id, message)

    def _check_version(self, message: Register) -> None:
        sentence = version_refusal(message.node_id, message.version, self._server_version)
        if sentence is not None:
            self._hub.refuse_version(message.node_id, sentence)
            raise HubError(409, "version", sentence)

    def _check_session(self, session: str, peer: Peer) -> None:
        if self._hub.node_of(session) != peer.node_id:
            raise HubError(403, "identity", f"this session is not {peer.node_id}'s")
        self._hub.certificate_shown(peer.node_id, peer.not_after)

    async def _guarded(
        self, request: Request, answer: Callable[[Request, Peer], Awaitable[msgspec.Struct | bytes]]
    ) -> tuple[Response, str | None]:
        """The answer, and the code of a refusal."""
        peer = None
        try:
            peer = self._prove(request)
            said = await answer(request, peer)
            if isinstance(said, bytes):
                return Response(said, media_type="application/octet-stream"), None
            return Response(msgspec.json.encode(said), media_type="application/json"), None
        except HubError as error:
            self._note(request, peer, error)
            return _refuse(error.status, error.code, error.message), error.code
        except ClientDisconnect:
            return Response(status_code=499), None
        except PkiError as error:
            self._note(request, peer, HubError(403, "certificate", str(error)))
            return _refuse(403, "certificate", str(error)), "certificate"
        except Exception:
            log.exception("a call of an agent failed", path=request.url.path)
            return _refuse(500, "internal", "the server failed on this call; its log says why"), "internal"

    def _note(self, request: Request, peer: Peer | None, error: HubError) -> None:
        """Say a refusal here too, where an operator looks; agents try for ever, so not each time."""
        if error.status == 410 or error.code == "older_life":
            return  # the first is part of every restart, the second the hub tells
        client = request.client.host if request.client is not None else "?"
        refused, now = (peer.node_id if peer is not None else client, error.code), self._clock.monotonic()
        if now - self._noted.get(refused, -NOTE_EVERY_S) < NOTE_EVERY_S:
            return
        if len(self._noted) >= NOTED_MAX:
            self._noted.clear()
        self._noted[refused] = now
        log.warning("refused", call=request.url.path, client=client, certificate=refused[0], reason=error.message)

    def _prove(self, request: Request) -> Peer:
        der = client_cert_der(request.scope)
        if der is None:
            raise HubError(403, "no_certificate", "this connection carries no client certificate")
        peer = peer_from_der(der)
        self._admit(peer)
        return peer

    def _admit(self, peer: Peer) -> None:
        refusal = self._revocations.refusal(peer) if self._revocations is not None else None
        if refusal is not None:
            raise HubError(403, "revoked", refusal)
        removed_at = self._removed_at(peer.node_id)
        if removed_at is not None and peer.is_of_before(removed_at):
            raise HubError(
                403,
                "removed",
                f"{peer.node_id} was removed on {day(removed_at)}, and its certificate is of before that. To let "
                f"it in again: llmgw ctl cert issue-client {peer.node_id} --address {peer.address or 'IP'}",
            )

    async def _read(self, request: Request, kind: type[Message], peer: Peer) -> Message:
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > BODY_BYTES_MAX:
                raise HubError(413, "too_large", f"the message is larger than {BODY_BYTES_MAX} bytes")
            parts.append(part)
        # A body may come as slowly as its sender likes: nobody gets in, or a new certificate, who was revoked or
        # removed meanwhile.
        self._admit(peer)
        try:
            message: Message = self._decoders[kind].decode(b"".join(parts))
        except RecursionError:
            raise HubError(
                400, "malformed", f"the {kind.__name__.lower()} message is nested too deeply to be read"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HubError(
                400, "malformed", f"the {kind.__name__.lower()} message is malformed: {error}"
            ) from None
        return message


def version_refusal(node_id: str, version: str, server_version: str) -> str | None:
    """Why an agent of that version is not let in; None when it is."""
    try:
        if understand_each_other(version, server_version):
            return None
    except ReleaseError as error:
        return f"the agent of {node_id} says a version that cannot be told apart: {error}"
    return (
        f"the agent of {node_id} is llmgw {version} and this server is {server_version}: a server understands "
        "agents one minor version older and newer; bring the node to the server's version"
    )


def _check_inventory(inventory: Inventory) -> None:
    adapters = [(port.adapter, port.port) for port in inventory.ports]
    for adapter, port in adapters:
        if adapters.count((adapter, port)) > 1:
            raise HubError(400, "malformed", f"port {port} of adapter {adapter} is listed twice")
    uuids = [gpu.uuid for gpu in inventory.gpus]
    if len(set(uuids)) != len(uuids):
        raise HubError(400, "malformed", "a GPU is listed twice: two have the same UUID")


def _refuse(status: int, code: str, message: str) -> Response:
    return Response(
        msgspec.json.encode(Refusal(code=code, message=message)),
        status_code=status,
        media_type="application/json",
    )

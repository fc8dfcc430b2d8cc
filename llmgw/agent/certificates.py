"""The agent's own certificate: renewed at half its life, and never a key without its certificate on disk."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from llmgw.agent.conversation import Backoff, Transport, TransportError
from llmgw.agent.loop import CALL_TIMEOUT_S
from llmgw.agent.spec_store import write_whole
from llmgw.config.agent import AgentTls
from llmgw.messages.agent import Refusal, Renew, Renewed

log = structlog.get_logger("agent")

RETRY_BASE_S = 60.0
RETRY_MAX_S = 3600.0
# Certificates live for months; a clock that was set wrong is noticed within the hour.
LOOK_MAX_S = 3600.0


class CertificateError(Exception):
    """A certificate that cannot be used; the message is a sentence."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its certificate (chain), as they are written together."""

    key_pem: str
    cert_pem: str


def check_pair(key_pem: bytes, cert_pem: bytes) -> None:
    """Raise CertificateError unless the certificate was made for the key."""
    try:
        certificate = x509.load_pem_x509_certificates(cert_pem)[0]
        key = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, IndexError) as exc:
        raise CertificateError(f"the certificate or its key cannot be read: {exc}") from None
    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if certificate.public_key().public_bytes(*spki) != key.public_key().public_bytes(*spki):
        raise CertificateError("the certificate was not made for this key")


def save_pair(tls: AgentTls, pair: Pair) -> None:
    """Put a new key and certificate in place of the old. Raises OSError. Blocking.

    Two files cannot be replaced at once. So the pair is first written whole beside the key; whoever starts
    after a crash finds it there and finishes the job (`finish_saving`).
    """
    write_whole(_pending(tls), msgspec.json.encode(pair), mode=0o600)
    _install(tls, pair)


def finish_saving(tls: AgentTls) -> bool:
    """Finish what a crash interrupted; True when there was something. Raises OSError or CertificateError."""
    pending = _pending(tls)
    try:
        pair = msgspec.json.decode(pending.read_bytes(), type=Pair)
    except FileNotFoundError:
        return False
    except msgspec.MsgspecError as exc:
        raise CertificateError(f"{pending} is damaged ({exc}); delete it, and issue a new certificate") from None
    check_pair(pair.key_pem.encode(), pair.cert_pem.encode())
    _install(tls, pair)
    return True


def _pending(tls: AgentTls) -> Path:
    key = Path(tls.key)
    return key.with_name(f".{key.name}.pair")


def _install(tls: AgentTls, pair: Pair) -> None:
    write_whole(Path(tls.key), pair.key_pem.encode(), mode=0o600)
    write_whole(Path(tls.cert), pair.cert_pem.encode(), mode=0o644)
    os.unlink(_pending(tls))


class CertificateKeeper:
    """Renews this node's certificate over the connection that it proves.

    `make_csr` gives (key_pem, csr_pem) for a node id, `renew_after` the epoch second at which half of a
    certificate's life is over (it may raise CertificateError); `reload` has the link use the new files;
    `now_s` is the wall clock.
    """

    def __init__(
        self,
        *,
        tls: AgentTls,
        node_id: str,
        transport: Transport,
        make_csr: Callable[[str], tuple[str, str]],
        renew_after: Callable[[str], float],
        reload: Callable[[], Awaitable[None]],
        now_s: Callable[[], float],
        randomness: random.Random,
    ) -> None:
        self._tls = tls
        self._node_id = node_id
        self._transport = transport
        self._make_csr = make_csr
        self._renew_after = renew_after
        self._reload = reload
        self._now_s = now_s
        self._random = randomness

    async def run(self) -> None:
        """Renew whenever half of the life is over; failures are tried again, later and later. Never returns."""
        backoff = Backoff(RETRY_BASE_S, RETRY_MAX_S, self._random)
        while True:
            try:
                due_s = self._renew_after(await asyncio.to_thread(Path(self._tls.cert).read_text))
                if self._now_s() < due_s:
                    await asyncio.sleep(min(LOOK_MAX_S, max(0.1, due_s - self._now_s())))
                    continue
                await self.renew()
            except (TransportError, CertificateError, OSError, ValueError) as exc:
                log.error("the certificate could not be renewed", node=self._node_id, why=str(exc))
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                log.info("certificate renewed", node=self._node_id, cert=self._tls.cert)

    async def renew(self) -> None:
        """Renew now. Raises TransportError, CertificateError or OSError; the old pair stays valid then."""
        key_pem, csr_pem = await asyncio.to_thread(self._make_csr, self._node_id)
        body = msgspec.json.encode(Renew(csr_pem=csr_pem))
        status, answer = await self._transport.call("/agent/v1/renew", body, CALL_TIMEOUT_S)
        try:
            if status != 200:
                refusal = msgspec.json.decode(answer, type=Refusal)
                raise CertificateError(f"the server refuses to renew: {refusal.message}")
            cert_pem = msgspec.json.decode(answer, type=Renewed).cert_pem
        except msgspec.MsgspecError:
            raise CertificateError(f"the server answered {status} to the renewal, unreadably") from None
        check_pair(key_pem.encode(), cert_pem.encode())
        await asyncio.to_thread(save_pair, self._tls, Pair(key_pem=key_pem, cert_pem=cert_pem))
        await self._reload()

"""The agent's own certificate: renewed at half its life, over the connection that proves it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from llmgw.agent.conversation import Backoff, Transport, TransportError
from llmgw.agent.loop import CALL_TIMEOUT_S
from llmgw.messages.agent import Refusal, Renew, Renewed

log = structlog.get_logger("agent")

RETRY_BASE_S = 5.0
AGAIN_AFTER_S = 60.0
RETRY_MAX_S = 3600.0
# Certificates live for months; a clock that was set wrong is noticed within the hour.
LOOK_MAX_S = 3600.0


class CertificateError(Exception):
    """A certificate that cannot be used; the message is a sentence."""


class CertificateKeeper:
    """Renews this node's certificate, which `read` (blocking) gives in PEM as it lies there.

    `make_csr` gives (key_pem, csr_pem) for a node id; `renew_after` the epoch second at which half of a
    certificate's life is over; `install` (blocking) puts (cert_pem, key_pem) in the old ones' place, so that a
    crash at any moment leaves a pair that fits; `reload` has the link use the new files; `now_s` is the wall
    clock. `renew_after` and `install` raise CertificateError with a sentence.
    """

    def __init__(
        self,
        *,
        node_id: str,
        transport: Transport,
        read: Callable[[], str],
        make_csr: Callable[[str], tuple[str, str]],
        renew_after: Callable[[str], float],
        install: Callable[[str, str], None],
        reload: Callable[[], Awaitable[None]],
        now_s: Callable[[], float],
        randomness: random.Random,
    ) -> None:
        self._node_id = node_id
        self._transport = transport
        self._read = read
        self._make_csr = make_csr
        self._renew_after = renew_after
        self._install = install
        self._reload = reload
        self._now_s = now_s
        self._random = randomness

    async def run(self) -> None:
        """Renew whenever half of the life is over; failures are tried again, later and later. Never returns."""
        backoff = Backoff(RETRY_BASE_S, RETRY_MAX_S, self._random)
        while True:
            try:
                due_s = self._renew_after(await asyncio.to_thread(self._read))
                if self._now_s() < due_s:
                    await asyncio.sleep(min(LOOK_MAX_S, max(0.1, due_s - self._now_s())))
                    continue
                await self.renew()
            except (TransportError, CertificateError, OSError, ValueError) as exc:
                log.error("the certificate could not be renewed", node=self._node_id, why=str(exc))
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                log.info("certificate renewed", node=self._node_id)
                # A clock that is far ahead finds the new one due at once, again and again.
                await asyncio.sleep(AGAIN_AFTER_S)

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
        await asyncio.to_thread(self._install, cert_pem, key_pem)
        await self._reload()

"""Keeps the agent's metrics listener up. What is wrong with it is a finding: no engine depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from pathlib import Path

import structlog

from llmgw.agent.metrics.exposition import AgentMetrics
from llmgw.agent.metrics.http import HEAD_BYTES_MAX, MetricsHttp
from llmgw.config.agent_metrics import MetricsEndpoint
from llmgw.config.listeners import ListenError, bound_address, open_listeners
from llmgw.messages.findings import Finding
from llmgw.pki.errors import PkiError
from llmgw.pki.listener import ListenerCertificate

log = structlog.get_logger("agent")

RETRY_S = 15.0
HANDSHAKE_S = 5.0
TOKEN_CHARS_MIN = 16
_TOKEN_BYTES_MAX = 4096


class MetricsListener:
    """One agent's. `run` returns only by being cancelled."""

    def __init__(self, settings: MetricsEndpoint, metrics: AgentMetrics) -> None:
        self._settings = settings
        token = (lambda: read_token(Path(settings.token_file or ""))) if settings.token_file is not None else None
        self._http = MetricsHttp(metrics.text, token)
        self._problem: str | None = None
        self._certificate: ListenerCertificate | None = None

    async def run(self) -> None:
        """Listen; where that cannot be, try again for ever."""
        while True:
            try:
                await self._serve()
            except (ListenError, PkiError) as error:
                if self._problem is None:
                    log.error("the agent's metrics are not served", reason=str(error))
                self._problem = str(error)
            await asyncio.sleep(RETRY_S)

    def findings(self) -> list[Finding]:
        """Why Prometheus gets no answer, if it does not. From any thread."""
        found = list(self._certificate.findings()) if self._certificate is not None else []
        if self._problem is not None:
            found.append(
                Finding(
                    check="metrics-listener",
                    severity="warning",
                    where=f"metrics.listen {self._settings.listen}",
                    what=self._problem,
                    why="Prometheus cannot scrape this agent; engines are not concerned",
                    remedy="correct metrics in agent.yaml, or what it names; it is tried again by itself",
                )
            )
        return found

    async def _serve(self) -> None:
        """Serve until cancelled. Raises ListenError and PkiError."""
        context = await asyncio.to_thread(self._context)
        async with contextlib.AsyncExitStack() as stack:
            for sock in open_listeners(self._settings.listen, "metrics.listen"):
                server = await asyncio.start_server(
                    self._http.answer,
                    sock=sock,
                    ssl=context,
                    limit=HEAD_BYTES_MAX,
                    ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
                )
                await stack.enter_async_context(server)
                scheme = "https" if context is not None else "http"
                log.info("metrics", url=f"{scheme}://{bound_address(sock)}/metrics")
            self._problem = None
            await asyncio.get_running_loop().create_future()

    def _context(self) -> ssl.SSLContext | None:
        """A context that shows the certificate's files as they are at each handshake."""
        tls = self._settings.tls
        if tls is None:
            return None
        certificate = ListenerCertificate(tls.cert, tls.key, ("metrics.tls.cert", "metrics.tls.key"))
        self._certificate = certificate

        def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            certificate.refresh(time.time())
            if certificate.context is not context:
                connection.context = certificate.context

        context = certificate.context
        context.sni_callback = newest
        return context


def read_token(path: Path) -> str:
    """The first line of the file. Raises OSError, and ValueError for one that must not be used."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise ValueError(f"others than its owner may read {path}; chmod 600 {path}")
        data = file.read(_TOKEN_BYTES_MAX)
    line = data.split(b"\n", 1)[0].strip().decode("latin-1")
    if len(line) < TOKEN_CHARS_MIN:
        raise ValueError(f"the token in {path} is shorter than {TOKEN_CHARS_MIN} characters")
    return line

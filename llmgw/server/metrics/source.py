"""What a scrape of the server reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmgw.messages.findings import Finding
from llmgw.pki.expiry import CertificateEnd
from llmgw.server.hub import Hub
from llmgw.server.loop_watch import LoopPause
from llmgw.server.router_worker import RouterView
from llmgw.server.usage_book import TokenTally


@dataclass(frozen=True)
class Source:
    """The hub, the certificates in the server's files, its findings, loop and routers. `started_at` is in seconds
    since the epoch."""

    hub: Hub
    certificates: Callable[[], list[CertificateEnd]]
    findings: Callable[[], list[Finding]]
    loop_pause: Callable[[], LoopPause] = LoopPause
    routers: Callable[[], list[RouterView]] = list
    tokens: Callable[[], Mapping[str, TokenTally]] = dict
    started_at: float = 0.0

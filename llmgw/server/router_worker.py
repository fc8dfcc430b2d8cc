"""One router process as the server knows it: its link, its process if this server started it, what it said."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmgw.messages.router_files import RouterFiles
from llmgw.messages.routes import Hello, KeyShare, Telemetry
from llmgw.server.router_link import RouterLink
from llmgw.server.router_slots import lives, lock_holder

SILENT_AFTER_S = 2.0
"""One that lives greets within milliseconds, and one that ends is gone as soon after it has closed its socket."""
QUIET_AFTER_S = 10.0
"""One that is connected tells twice a second what it does (`router.limits.TELEMETRY_S`), busy or not."""


@dataclass(frozen=True, kw_only=True)
class RouterView:
    """A worker for people and metrics. `state`: serving, finishing (it accepts no more), silent or starting.

    `requests` are those that ended in it and in those of its name before, since this server started; `spans_…`
    count traces likewise. `settings` stands for what it was started with, where whoever started it said so.
    """

    name: str
    pid: str
    state: str
    listen: str = ""
    version: str = ""
    settings: str = ""
    requests: int = 0
    in_flight: int = 0
    spans_sent: int = 0
    spans_dropped: int = 0


class Worker:
    """A worker from the moment it is started or found until its process has ended."""

    def __init__(
        self,
        state: Path,
        name: str,
        *,
        on_hello: Callable[[Worker, Hello], None],
        on_telemetry: Callable[[Worker, Telemetry], None],
        on_lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.files = RouterFiles(state, name)
        self.process: subprocess.Popen[bytes] | None = None
        """Set when this server started it."""
        self.started_at = 0.0
        """On the event loop's clock."""
        self.router_id: str | None = None
        """By which the hub knows it."""
        self.greeted = False
        self.leaving = False
        """It was told to finish, or said that it does."""
        self.requests = 0
        self.in_flight = 0
        self.spans_sent = self.spans_dropped = 0
        self.key_parts: dict[str, KeyShare] = {}
        """Its parts of the keys' limits; what is missing is divided evenly."""
        self._on_telemetry = on_telemetry
        self._on_lost = on_lost
        self._clock = clock
        self._unheard_since = clock()
        """Since its last message, or since its link was lost."""
        self.link = RouterLink(
            state,
            worker=name,
            on_hello=lambda hello: self._greeted(hello, on_hello),
            on_telemetry=self._telemetry,
            on_lost=self._lost,
        )
        self._task: asyncio.Task[None] | None = None

    def count_on(self, before: Worker) -> None:
        """It has the name of one that has ended: its counts go on from there, since counters never fall."""
        self.requests += before.requests
        self.spans_sent += before.spans_sent
        self.spans_dropped += before.spans_dropped

    def begin_anew(self) -> None:
        """Another process has the name, and greets: nothing that holds for the one before holds for it."""
        self.leaving = False
        self.in_flight = 0
        self.key_parts = {}
        if self.process is not None and self.process.poll() is not None:
            self.process = None

    def follow(self) -> None:
        """Talk to it from now on."""
        self._task = asyncio.create_task(self.link.run(), name=f"link to {self.name}")

    async def forget(self) -> None:
        """Talk to it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def ended(self) -> bool:
        """True when its process is over. One that is starting may not have its lock yet."""
        over = self.process is not None and self.process.poll() is not None
        if self.link.connected or lives(self.files):
            return False
        return over or self.process is None or self.greeted

    def finish(self, drain_s: float) -> None:
        """Have it accept no more, and end when its requests have, after `drain_s` at the latest."""
        self.leaving = True
        self.link.send_stop(drain_s)

    def shares(self, version: str) -> bool:
        """True for one that serves, as this version does, and so has a part of what all hold together."""
        hello = self.link.hello
        return hello is not None and hello.software_version == version and not self.leaving

    @property
    def pid(self) -> str:
        """As text: of one that is silent, what its lock says."""
        if self.link.hello is not None:
            return str(self.link.hello.pid)
        return str(self.process.pid) if self.process is not None else lock_holder(self.files)

    def view(self) -> RouterView:
        """What people see of it."""
        hello = self.link.hello
        if hello is None:
            return RouterView(
                name=self.name,
                pid=self.pid,
                state=self._unheard(),
                requests=self.requests,
                in_flight=self.in_flight,
                spans_sent=self.spans_sent,
                spans_dropped=self.spans_dropped,
            )
        return RouterView(
            name=self.name,
            pid=self.pid,
            state=self._heard(),
            listen=hello.listen,
            version=hello.software_version,
            settings=hello.settings,
            requests=self.requests,
            in_flight=self.in_flight,
            spans_sent=self.spans_sent,
            spans_dropped=self.spans_dropped,
        )

    def _heard(self) -> str:
        """What one is that is connected: a process that was stopped, or that hangs, keeps its connections."""
        if self._clock() - self._unheard_since >= QUIET_AFTER_S:
            return "silent"
        return "finishing" if self.leaving else "serving"

    def _unheard(self) -> str:
        """What one is that is not connected."""
        if self.process is not None and not self.greeted:
            return "starting"  # its program is loaded, however long that takes
        if self._clock() - self._unheard_since >= SILENT_AFTER_S:
            return "silent"
        return "finishing" if self.leaving else "starting"

    def _greeted(self, hello: Hello, on_hello: Callable[[Worker, Hello], None]) -> None:
        self._unheard_since = self._clock()
        on_hello(self, hello)

    def _lost(self) -> None:
        self._unheard_since = self._clock()
        self._on_lost()

    def _telemetry(self, message: Telemetry) -> None:
        self._unheard_since = self._clock()
        self.requests += len(message.outcomes) + message.dropped
        self.in_flight = sum(message.in_flight.values())
        self.spans_sent += message.spans_sent
        self.spans_dropped += message.spans_dropped
        self._on_telemetry(self, message)

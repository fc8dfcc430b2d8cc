"""A new program on trial: it is settled once a server has taken its registration and it has stayed, and taken
back if no server would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from llmgw.agent.upgrade.marker import Marker, is_new, point_back, read_marker, write_marker
from llmgw.messages.upgrade import LastUpgrade

log = structlog.get_logger("agent")

REFUSED_LIMIT_S = 60.0
"""A server that answers and takes no registration for so long is taken to mind this version. One that is away
says nothing about it."""
STAY_S = 30.0
"""One that ends sooner after its registration is started again as one on trial, and counts against itself."""
UNHEARD_LIMIT_S = 1800.0
"""When no server answers for so long, it may be this version that does not get through to one, and nobody could
tell it to go back then. If it is the server, nothing is lost."""


class Trial:
    """What became of the last upgrade. `now_s` is monotonic; `later` calls something after so many seconds, and
    `restart` ends this process, to be started again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now_s: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        restart: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._now_s = now_s
        self._later = later
        self._restart = restart
        self._staying = False
        self._marker = _believed(read_marker(folder))
        self._refused_since: float | None = None
        self._unheard_since: float | None = None

    def last(self) -> LastUpgrade | None:
        """For the registration; None when this agent was never upgraded."""
        marker = self._marker
        if marker is None:
            return None
        return LastUpgrade(
            upgrade_id=marker.upgrade_id,
            sha256=marker.sha256,
            version=marker.version,
            outcome=marker.outcome,
            reason=marker.reason,
        )

    def registered(self) -> None:
        """A server has taken the registration: when this process stays, this is the program to go back to."""
        self._refused_since = self._unheard_since = None
        if self._marker is not None and self._marker.outcome == "trial" and not self._staying:
            self._staying = True
            self._later(STAY_S, self._settle)

    def _settle(self) -> None:
        self._staying = False
        marker = self._marker
        if marker is None or marker.outcome != "trial":
            return
        kept = read_marker(self._folder)
        if kept is None or kept.upgrade_id != marker.upgrade_id:
            return  # another upgrade has begun since, and leaves its own
        settled = replace(marker, outcome="settled")
        try:
            write_marker(self._folder, settled)
        except OSError as error:
            # Tried again with the next registration; until then a crash counts against the new program.
            log.error("that this version has settled cannot be written", error=error.strerror)
            return
        self._marker = settled
        log.info("this version has settled", version=settled.version)

    def refused(self, sentence: str) -> None:
        """A server has answered, and would not take the registration."""
        now = self._now_s()
        self._unheard_since = None
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since >= REFUSED_LIMIT_S:
            self._go_back("the server refused", sentence)

    def unheard(self, sentence: str) -> None:
        """No server has answered the registration."""
        now = self._now_s()
        self._refused_since = None
        if self._unheard_since is None:
            self._unheard_since = now
        if now - self._unheard_since >= UNHEARD_LIMIT_S:
            self._go_back(f"{UNHEARD_LIMIT_S / 60:.0f} min long no server was reached by", sentence)

    def _go_back(self, why: str, sentence: str) -> None:
        marker = self._marker
        if marker is None or marker.outcome != "trial":
            return
        try:
            point_back(marker)
            marker = replace(marker, outcome="back", reason=f"{why} llmgw {marker.version}: {sentence}")
            write_marker(self._folder, marker)
        except OSError as error:
            log.error("the version from before cannot be put back", error=str(error))
            return
        self._marker = marker
        log.error("going back to the version from before", old=marker.old, reason=marker.reason)
        self._restart()


def _believed(marker: Marker | None) -> Marker | None:
    """The marker, as far as it agrees with the program that is there: another may have been put there by hand."""
    if marker is None or is_new(marker) == (marker.outcome != "back"):
        return marker
    if marker.outcome == "trial":
        return replace(
            marker, outcome="back", reason="the switch was interrupted before the program was replaced"
        )
    return None

"""Becomes another release: fetches it, proves it with this node's own key, installs it beside the program that
runs, asks it whether it takes this node's configuration, switches over, and ends to be started again as the
new one.

Until the switch nothing has changed on the node. Engines do not notice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from llmgw.agent.conversation import Clock, Transport
from llmgw.agent.upgrade.download import download
from llmgw.agent.upgrade.marker import Marker, read_marker, remove_marker, write_marker, write_whole
from llmgw.agent.upgrade.program import run_program
from llmgw.messages.upgrade import SENTENCE_CHARS_MAX, TELL_EVERY_S, Upgrade, UpgradeTold
from llmgw.release import install, settle
from llmgw.release.files import ReleaseError, read_name
from llmgw.release.layout import PROGRAM, VERSIONS
from llmgw.release.signature import read_public_key, verify
from llmgw.release.versions import is_older

log = structlog.get_logger("agent")

EXIT_RESTART: Final = 75
"""An agent that ends with this wants to be started again (llmgw-agent.service: RestartForceExitStatus)."""
INSTALLED_BELOW_ENV: Final = "LLMGW_INSTALLED_BELOW"
"""The folder below which install.sh has put the program, `/` on a machine. Whoever sets it (the unit does)
promises to run settle.sh before each start and after each end, to start the program by its symlink, and to do so
again after EXIT_RESTART."""
SETTLE: Final = "settle.sh"
INSTALL_TIMEOUT_S = 900.0
CHECK_TIMEOUT_S = 60.0
CONFIRM_TIMEOUT_S = 5.0

Tell = Callable[[UpgradeTold], Awaitable[None]]
"""Has the server told in the next report, and returns when it was, or a few seconds have passed."""


def state_folder(environ: Mapping[str, str], work_dir: str) -> Path:
    """Where marker, script and downloads lie: what ExecStartPre in the unit names, else below the work dir."""
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(given if os.path.isabs(given) else work_dir) / "upgrade"


class Upgrader:
    """Carries out `Upgrade`. `root` is the value of INSTALLED_BELOW_ENV, `oldest` the oldest version that is
    taken at all, `check` what follows the new
    program's name on the command line that has it look at this node's configuration, `restart` ends this
    process with EXIT_RESTART.
    """

    def __init__(
        self,
        *,
        folder: Path,
        root: str | None,
        release_key: Path,
        oldest: str | None,
        version: str,
        check: Sequence[str],
        environ: Mapping[str, str],
        transport: Transport,
        session: Callable[[], str | None],
        clock: Clock,
        restart: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._root = None if root is None else root.rstrip("/")
        self._release_key = release_key
        self._oldest = oldest
        self._version = version
        self._check = list(check)
        self._environ = environ
        self._transport = transport
        self._session = session
        self._clock = clock
        self._restart = restart
        self._last_step: asyncio.Task[None] | None = None

    async def carry_out(self, upgrade: Upgrade, tell: Tell) -> None:
        """Go as far as it goes, telling how; does not raise. Cancelled before the switch, it leaves nothing
        running.
        """
        latest = UpgradeTold(request_id=upgrade.request_id, stage="downloading")

        async def say(stage: str, sentence: str = "", done_bytes: int | None = None) -> None:
            nonlocal latest
            latest = UpgradeTold(
                request_id=upgrade.request_id,
                stage=stage,
                done_bytes=done_bytes,
                sentence=sentence[:SENTENCE_CHARS_MAX],
            )
            if stage != "downloading":
                log.info("upgrade", to=upgrade.name, stage=stage, reason=sentence or None)
            await tell(latest)

        async def repeat() -> None:
            while True:
                await self._clock.sleep(TELL_EVERY_S)
                await tell(latest)

        if self._last_step is not None and not self._last_step.done():
            return  # it is about to end, for an upgrade of another session
        repeating = asyncio.create_task(repeat())
        try:
            await self._go(upgrade, say)
        except ReleaseError as error:
            await say("refused", str(error))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            await say("refused", f"{where}{error.strerror or error}")
        finally:
            repeating.cancel()
            await asyncio.gather(repeating, return_exceptions=True)

    async def _go(self, upgrade: Upgrade, say: Callable[..., Awaitable[None]]) -> None:
        old = self._may_switch()
        await asyncio.to_thread(self._prove, upgrade)
        version = read_name(upgrade.name).version
        if self._oldest is not None and is_older(version, self._oldest):
            raise ReleaseError(
                f"{upgrade.name} is older than oldest_release in this node's agent.yaml ({self._oldest}), which "
                "no option of an upgrade changes"
            )
        if is_older(version, self._version) and not upgrade.allow_downgrade:
            raise ReleaseError(
                f"{upgrade.name} is older than llmgw {self._version}, which runs here; say --allow-downgrade "
                "if it is meant"
            )
        new = f"{self._root}{VERSIONS}/{version}-{upgrade.sha256[:12]}"
        if old == f"{new}/bin/llmgw" and os.access(old, os.X_OK):
            if version != self._version:
                raise ReleaseError(
                    f"{self._program} is llmgw {version} already, and this agent still llmgw {self._version}: it "
                    "was replaced by other means and the agent not restarted since; systemctl restart llmgw-agent"
                )
            await say("already")
            return
        path = self._folder / "download" / upgrade.sha256
        await say("downloading", done_bytes=0)
        await self._fetch(upgrade, path, say)
        await say("installing")
        words = ("--prepare", str(path), upgrade.name, upgrade.sha256)
        said = await self._install(*words, timeout_s=INSTALL_TIMEOUT_S)
        path.unlink(missing_ok=True)
        if said != f"prepared {new}":
            raise ReleaseError(f"{upgrade.name} was installed as {said!r} instead of in {new}")
        await say("checking")
        await self._ask_new(new, upgrade.name)
        # From here on it is carried through, whatever becomes of the session that asked for it.
        marker = Marker(
            upgrade_id=upgrade.request_id,
            sha256=upgrade.sha256,
            version=version,
            program=self._program,
            old=old,
            new=new,
        )
        self._last_step = asyncio.create_task(self._switch(marker, say))
        await asyncio.shield(self._last_step)

    async def _fetch(self, upgrade: Upgrade, path: Path, say: Callable[..., Awaitable[None]]) -> None:
        told: set[asyncio.Task[None]] = set()
        told_at = self._clock.now()

        def tell(have: int) -> None:
            nonlocal told_at
            if self._clock.now() - told_at < 1.0:
                return
            told_at = self._clock.now()
            task = asyncio.ensure_future(say("downloading", done_bytes=have))
            told.add(task)
            task.add_done_callback(told.discard)

        try:
            await download(
                upgrade,
                path,
                transport=self._transport,
                session=self._session,
                clock=self._clock,
                tell=tell,
            )
        finally:
            for task in told:
                task.cancel()

    async def _switch(self, marker: Marker, say: Callable[..., Awaitable[None]]) -> None:
        await say("switching")
        before = read_marker(self._folder)
        try:
            await asyncio.to_thread(self._leave_way_back, marker)
        except OSError as error:
            raise ReleaseError(
                f"{error.filename or self._folder} cannot be written: {error.strerror}; nothing was switched"
            ) from None
        try:
            await self._install("--switch", marker.new, timeout_s=CHECK_TIMEOUT_S * 2)
        except ReleaseError:
            if before is None:
                remove_marker(self._folder)
            else:
                write_marker(self._folder, before)
            raise
        log.info("ending to come back as another version", version=marker.version, program=marker.new)
        self._restart()

    def _leave_way_back(self, marker: Marker) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._folder / SETTLE, settle.script())
        write_marker(self._folder, marker)

    # What may be refused.

    @property
    def _program(self) -> str:
        return f"{self._root}{PROGRAM}"

    def _may_switch(self) -> str:
        """Where the program's symlink points. Raises ReleaseError when this agent does not run from there."""
        if self._root is None:
            raise ReleaseError(
                "this agent was not started by its unit llmgw-agent.service, so that nobody would start another "
                "version of it; install the node with llmgw onboard-node, or replace its program by hand"
            )
        program = self._program
        try:
            old = os.readlink(program)
        except OSError:
            raise ReleaseError(
                f"{program} is no symlink to a version below {self._root}{VERSIONS}, so that no other can "
                "take its place; install the node again with llmgw onboard-node"
            ) from None
        return old

    def _prove(self, upgrade: Upgrade) -> None:
        try:
            pem = self._release_key.read_bytes()
        except FileNotFoundError:
            raise ReleaseError(
                f"this node has no release key ({self._release_key}), so that it can prove no release; put the "
                "public key there with llmgw onboard-node --release-key, or set release_key in agent.yaml"
            ) from None
        except OSError as error:
            raise ReleaseError(f"the release key {self._release_key} cannot be read: {error.strerror}") from None
        key = read_public_key(pem, str(self._release_key))
        # The name and the digest are what was signed: before a byte is fetched it is known whether it may be.
        verify(key, upgrade.name, bytes.fromhex(upgrade.sha256), upgrade.signature)

    # The programs that are asked.

    async def _install(self, *words: str, timeout_s: float) -> str:
        """What install.sh said last. Raises ReleaseError with its sentence."""
        arguments = ["/bin/sh", "-s", "--", *words, self._root or "/"]
        ended = await run_program(arguments, self._environ, timeout_s, given=install.script())
        if ended.exit_code != 0:
            raise ReleaseError(ended.last_words or f"install.sh ended with {ended.exit_code} and said nothing")
        return ended.output.strip().rpartition("\n")[2]

    async def _ask_new(self, new: str, name: str) -> None:
        """Whether the new program takes this node's configuration. Raises ReleaseError."""
        ended = await run_program([f"{new}/bin/llmgw", *self._check], self._environ, CHECK_TIMEOUT_S)
        if ended.exit_code != 0:
            raise ReleaseError(
                f"{name} does not take this node's configuration: "
                f"{ended.last_words or f'it ended with {ended.exit_code} and said nothing'}"
            )

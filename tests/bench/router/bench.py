"""The gateway's CPU time, latency and memory beside nginx's and other routers', and what its features cost.

All targets pass requests on to the same engines, on one core; engines, load and the bench have the other. Rounds
are interleaved over the targets. CPU time an operation can be compared on a machine that others use too, requests
a second cannot.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from llmgw.config.errors import SentenceError
from tests.bench.figures import Figures
from tests.bench.router.features import feature_costs
from tests.bench.router.gateway import Gateway
from tests.bench.router.goals import DIRECT, OURS
from tests.bench.router.many_streams import many_streams
from tests.bench.router.measurement import Measurement
from tests.bench.router.peers import PACKAGES, Nginx, Peer, install
from tests.bench.router.processes import Cores, cpu_time, wait_until
from tests.bench.router.report import fill, markdown, write_markdown
from tests.bench.router.suites import SUITES, Setting, Suite
from tests.bench.router.targets import Place, Target
from tests.bench.router.tools import Engines, Load, build

OTHERS = ("many-streams", "features")
"""Suites of the gateway alone, once a run."""
QUIET_S = 5.0
TARGETS = (DIRECT, OURS, "nginx", *(package.name for package in PACKAGES))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, how long, and where the peers are."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load in one measurement")
    names = ", ".join([*(suite.name for suite in SUITES), *OTHERS])
    parser.add_argument("--only", metavar="SUITE,…", help=f"only these suites: {names}")
    parser.add_argument("--targets", metavar="NAME,…", help=f"only these: {', '.join(TARGETS)}")
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument("--peers", type=Path, metavar="DIR", help="an environment that has the peers' packages")
    peers.add_argument("--install", type=Path, metavar="DIR", help="the same, made first; not in the repository")
    parser.add_argument("--held", type=int, default=2000, help="open streams whose memory is measured")
    parser.add_argument("--streams", type=int, default=10_000, help="open streams over two workers")
    parser.add_argument("--leavers", type=int, default=500, help="clients that leave, for each way of leaving")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the tables there too, or between its marks"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with configurations and logs")


def run(options: argparse.Namespace) -> Figures:
    """Measure and return the figures. Ends the program with a sentence when it cannot begin."""
    try:
        with _folder(options.keep) as folder:
            bench = _Bench(options, folder)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
            figures = Figures(f"router: {options.rounds} rounds, {options.seconds:g} s a measurement")
            bench.run()
            fill(figures, bench.measurements, bench.versions, bench.notes)
            if options.markdown is not None:
                write_markdown(options.markdown, markdown(figures, bench.versions))
            return figures
    except SentenceError as error:
        raise SystemExit(str(error)) from None


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="llmgw-bench-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._suites = _chosen(options.only, [*(suite.name for suite in SUITES), *OTHERS], "--only")
        self._names = _chosen(options.targets, list(TARGETS), "--targets")
        self.measurements: list[Measurement] = []
        self.versions: dict[str, str] = {}
        self.notes: list[str] = []
        """Sentences: what was left out, and what the machine is not good enough for."""

    def run(self) -> None:
        environment = self._options.peers
        if self._options.install is not None:
            environment = self._options.install.absolute()
            self._note(*install(environment))
        tools = build(self._folder)
        cores = Cores.of_this_machine()
        if cores.tools == cores.gateway:
            self._note("This machine has one core: targets and tools share it, and latencies mean little.")
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cores.tools})
        try:
            with ExitStack() as stack:
                engines = Engines(tools.engine, cores.tools, self._folder)
                stack.callback(engines.stop)
                place = Place(self._folder, cores, tuple(engines.ports))
                setting = Setting(
                    self._folder,
                    engines,
                    Load(tools.load, cores.tools, self._folder),
                    self._options.seconds,
                    self._options.held,
                    self._options.leavers,
                )
                targets = self._started(stack, place, environment)
                self._rounds(setting, targets, place)
                self._note(*(counted(target) for target in targets if isinstance(target, Gateway)))
                if "features" in self._suites and OURS in self._names:
                    self.measurements += feature_costs(setting, place, self._options.rounds, self._say)
                if "many-streams" in self._suites and OURS in self._names:
                    found, notes = many_streams(setting, place, self._options.streams)
                    self._keep(found)
                    self._note(*notes)
        finally:
            os.sched_setaffinity(0, before)

    def _started(self, stack: ExitStack, place: Place, environment: Path | None) -> list[Target]:
        every: list[Target] = [Target(DIRECT), Gateway(), Nginx(), *(Peer(p, environment) for p in PACKAGES)]
        targets = []
        for target in every:
            if target.name not in self._names:
                continue
            stack.callback(target.stop)
            try:
                target.start(place)
            except SentenceError as error:
                self._note(str(error))
                continue
            self._say(f"{target.name} {target.version} serves")
            self.versions[target.name] = target.version
            targets.append(target)
        return targets

    def _rounds(self, setting: Setting, targets: list[Target], place: Place) -> None:
        suites = [suite for suite in SUITES if suite.name in self._suites]
        for number in range(self._options.rounds):
            for suite in suites:
                for target in list(targets):
                    if target.slow and suite.name != "request":
                        continue
                    if suite.once and number:
                        continue
                    if not target.pids and suite.name not in ("request", "rate", "paced"):
                        continue
                    self._keep(self._measured(setting, suite, target, number))
                    try:
                        self._settle(setting, target, place)
                    except SentenceError as error:
                        self._note(str(error))
                        targets.remove(target)

    def _measured(self, setting: Setting, suite: Suite, target: Target, number: int) -> Measurement:
        try:
            found = suite.measure(setting, target)
        except (SentenceError, OSError) as error:
            found = Measurement(failed=str(error))
        found.suite, found.target, found.round = suite.name, target.name, number
        return found

    def _settle(self, setting: Setting, target: Target, place: Place) -> None:
        """What still works for clients that have gone would be measured with the next target."""

        def quiet() -> bool:
            before = cpu_time(target.pids).total_s
            time.sleep(0.1)
            return not setting.engines.counts()["active"] and cpu_time(target.pids).total_s - before < 0.05

        if not wait_until(quiet, QUIET_S):
            self._say(f"{target.name} is started again: it still worked {QUIET_S:g} s after its clients had gone")
            target.stop()
            shutil.rmtree(place.folder / target.name, ignore_errors=True)
            target.start(place)

    def _keep(self, found: Measurement) -> None:
        self.measurements.append(found)
        figures = {
            name: round(value, 1) if isinstance(value, float) else value
            for name, value in found.told().items()
            if value and name not in ("suite", "target", "round")
        }
        self._say(f"round {found.round + 1}, {found.suite}, {found.target}: {figures}")

    def _note(self, *sentences: str) -> None:
        self.notes += sentences
        for sentence in sentences:
            self._say(sentence)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def counted(gateway: Gateway) -> str:
    """A sentence on what the gateway told of its keys' usage, which shows that it was on."""
    tokens = sum(told.prompt_tokens for told in gateway.told)
    return f"The gateway counted {tokens:,} tokens of prompts for the key that the load came with."


def _chosen(asked: str | None, known: list[str], option: str) -> set[str]:
    if asked is None:
        return set(known)
    chosen = {name.strip() for name in asked.split(",") if name.strip()}
    if unknown := chosen - set(known):
        raise SystemExit(f"{option}: there is no {', '.join(sorted(unknown))}; there is {', '.join(known)}")
    return chosen

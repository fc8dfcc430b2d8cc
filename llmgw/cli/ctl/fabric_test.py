"""`llmgw ctl fabric-test` and `fabric-tests`: the bandwidth between nodes, measured and kept."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl import cells
from llmgw.cli.ctl.client import segment, shaped
from llmgw.cli.ctl.completion import node_names
from llmgw.cli.ctl.options import Ctl, command, note
from llmgw.cli.errors import EXIT_INTERRUPTED
from llmgw.cli.output import Column, plain, print_json, print_table
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.cli.ctl.client import AdminClient
    from llmgw.messages.fabric_test_views import FabricTestResult, FabricTestView

app = typer.Typer()

EXIT_NOT_GOOD = 1
EXIT_NOT_TESTED = 2
KEPT_DEFAULT = 100
# The server answers at the latest after this long; a test without change is no test without progress.
WAIT_S = 20

NODES = Annotated[
    list[str] | None,
    typer.Argument(metavar="[A B]", help="Two nodes.", show_default=False, autocompletion=node_names),
]
ALL_PAIRS = Annotated[bool, typer.Option("--all-pairs", help="Every node of the fabric with every other.")]
FABRIC = Annotated[
    str | None,
    typer.Option(
        "--fabric", metavar="NAME", help="Default: the one that the nodes share, or the only one there is."
    ),
]
ROUNDS = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        metavar="N",
        min=1,
        max=4096,
        help="Of --all-pairs only so many rounds; in each one every node is tested with one other.",
    ),
]
BUSY_OK = Annotated[
    bool, typer.Option("--busy-ok", help="Test nodes that run replicas, too; it slows them down.")
]
NO_INSTALL = Annotated[bool, typer.Option("--no-install", help="Do not install perftest where it is missing.")]
SECONDS = Annotated[
    int | None, typer.Option("--seconds", metavar="N", min=1, max=60, help="Of each measurement. Default: 5.")
]
NODE = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only measurements with this node.")]
LIMIT = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=20_000, help="At most so many.")]


class NotTestedError(SentenceError):
    """Nothing could be measured."""

    exit_code = EXIT_NOT_TESTED


class CutOffError(SentenceError):
    """The server was lost after something had been measured."""

    exit_code = EXIT_NOT_GOOD


@command(app, "fabric-test")
def fabric_test(
    ctl: Ctl,
    nodes: NODES = None,
    all_pairs: ALL_PAIRS = False,
    fabric: FABRIC = None,
    rounds: ROUNDS = None,
    seconds: SECONDS = None,
    busy_ok: BUSY_OK = False,
    no_install: NO_INSTALL = False,
) -> None:
    """Measure the bandwidth between two nodes, adapter by adapter, in both directions.

    Exit 0: all of it is good, 1: some is degraded, bad or failed, 2: nothing could be tested. Ctrl-C ends the
    test on both nodes.
    """
    nodes = nodes or []
    if all_pairs and nodes:
        raise typer.BadParameter("--all-pairs takes every node of the fabric; leave out the nodes, or the option")
    if not all_pairs and len(nodes) != 2:
        raise typer.BadParameter(f"a test is between two nodes, and {len(nodes)} are named; or give --all-pairs")
    if rounds is not None and not all_pairs:
        raise typer.BadParameter("--rounds is for --all-pairs; two nodes are one pair")
    wish: dict[str, Any] = {
        "nodes": nodes,
        "all_pairs": all_pairs,
        "fabric": fabric,
        "rounds": rounds,
        "busy_ok": busy_ok,
        "install": not no_install,
        **({} if seconds is None else {"seconds": seconds}),
    }
    try:
        with ctl.connect() as api:
            view, results = _follow(api, wish, quiet=ctl.as_json)
    except CutOffError:
        raise
    except SentenceError as error:
        raise NotTestedError(str(error)) from None
    if not results and view.state == "ended":
        raise NotTestedError(plain(view.reason or "the test was ended before anything was measured"))
    if ctl.as_json:
        import msgspec

        print_json(msgspec.structs.replace(view, first=0, results=results))
    else:
        _print_test(view, results)
    if view.state == "ended" or any(result.grade != "good" for result in results):
        raise typer.Exit(EXIT_NOT_GOOD)


@command(app, "fabric-tests")
def fabric_tests(ctl: Ctl, fabric: FABRIC = None, node: NODE = None, limit: LIMIT = KEPT_DEFAULT) -> None:
    """Show kept results of fabric tests, newest first."""
    from llmgw.messages.fabric_test_views import FabricTestResult

    def as_table(value: Any) -> None:
        results = shaped(value, list[FabricTestResult])
        rows = [[cells.local_time(result.at), result.fabric, *_cells(result)] for result in results]
        print_table(
            [f"at ({cells.time_zone()})", "fabric", *_HEADS],
            rows,
            empty="no result is kept; llmgw ctl fabric-test A B makes some",
        )

    with ctl.connect() as api:
        ctl.show(api.get("fabric-tests", fabric=fabric, node=node, limit=limit), as_table)


def _follow(
    api: AdminClient, wish: dict[str, Any], *, quiet: bool
) -> tuple[FabricTestView, list[FabricTestResult]]:
    """Start the test and stay with it to its end. Whatever ends us before, ends it too."""
    from llmgw.messages.fabric_test_views import FabricTestView

    results: list[FabricTestResult] = []
    with _interruptions() as interruptions:
        # Before this is answered nobody could say which test to end.
        view = shaped(api.post("fabric-tests", wish), FabricTestView)
        path = f"fabric-tests/{segment(view.id)}"
        try:
            interruptions.let_through()
            _begin(view)
            told = _Told()
            while True:
                results += view.results
                told.news(view, quiet=quiet)
                if view.state != "running" and len(results) >= view.done:
                    return view, results
                seen = view.version if view.state == "running" and len(results) >= view.done else None
                asked = api.get(path, after=len(results), seen=seen, wait=None if seen is None else WAIT_S)
                view = shaped(asked, FabricTestView)
        except KeyboardInterrupt:
            note("ending the test on both nodes" if not view.all_pairs else "ending the test on all nodes")
            _end(api, path)
            if results and not quiet:
                _print_results(results)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except SentenceError as error:
            _end(api, path)
            if not results:
                raise
            if not quiet:
                _print_results(results)
            raise CutOffError(
                f"{error}; {len(results)} of {view.planned} measurements were made, and are kept (llmgw ctl "
                "fabric-tests)"
            ) from None
        except BaseException:
            _end(api, path)
            raise


def _end(api: AdminClient, path: str) -> None:
    try:
        note(plain(str(api.delete(path).get("message", ""))))
    except SentenceError as error:
        note(f"warning: {error}; the server ends the test by itself when nobody asks about it any more")


class _Interruptions:
    """Ctrl-C, a SIGTERM and a closed terminal, all of which end the test, and how long they have to wait.

    They wait until `let_through`, and again once one has come: `timeout` and shells send theirs twice, and the
    second must not cut off the ending that the first began. Whoever presses Ctrl-C twice meanwhile is let go.
    """

    def __init__(self) -> None:
        self._wait = True
        self._came: list[int] = []

    def let_through(self) -> None:
        """From now on one raises KeyboardInterrupt; at once, when it has come already."""
        self._wait = False
        if self._came:
            self._raise()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        if not self._wait or self._came.count(signal.SIGINT) > 1:
            self._raise()

    def _raise(self) -> None:
        self._wait = True
        self._came.clear()
        raise KeyboardInterrupt


@contextmanager
def _interruptions() -> Iterator[_Interruptions]:
    """Handles them until the block is left; what is ignored (nohup, a job in the background) stays ignored."""
    interruptions = _Interruptions()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, interruptions)
    try:
        yield interruptions
    finally:
        for number in heard:
            signal.signal(number, before[number])


class _Told:
    """What was said of the progress, so that nothing is said twice."""

    def __init__(self) -> None:
        self._now: list[str] = []
        self._notes = 0
        self._results = 0

    def news(self, view: FabricTestView, *, quiet: bool) -> None:
        """Say on stderr what is new: a line a measurement, on a terminal also what runs now."""
        for sentence in view.notes[self._notes :]:
            note(plain(sentence))
        self._notes = len(view.notes)
        for result in view.results:
            self._results += 1
            if not quiet:
                note(f"[{self._results} of {view.planned}] {_line(result)}")
        fresh = [sentence for sentence in view.now if sentence not in self._now]
        if fresh and sys.stderr.isatty() and not quiet:
            note("; ".join(map(plain, fresh)))
        self._now = view.now


def _begin(view: FabricTestView) -> None:
    count = "1 measurement" if view.planned == 1 else f"{view.planned} measurements"
    who = f"{len(view.nodes)} nodes" if view.all_pairs else " and ".join(view.nodes)
    note(f"testing {who} on {view.fabric}: {count} of {view.seconds} s (test {view.id})")


_HEADS: list[str | Column] = [
    Column("rail", right=True),
    "from",
    "to",
    Column("Gb/s", right=True),
    Column("limit", right=True),
    Column("grade", state=True),
    "",
]


def _cells(result: FabricTestResult) -> list[str | None]:
    return [
        str(result.rail),
        f"{result.sender} {result.sender_port}",
        f"{result.receiver} {result.receiver_port}",
        None if result.gbps is None else f"{result.gbps:.1f}",
        None if result.limit_gbps is None else f"{result.limit_gbps:.1f}",
        result.grade,
        cells.text(_words(result)),
    ]


def _words(result: FabricTestResult) -> str:
    if result.words or result.grade == "good" or result.gbps is None or not result.limit_gbps:
        return result.words
    share = 100 * result.gbps / result.limit_gbps
    return f"{share:.0f} % of what {result.limited_by} carries"


def _line(result: FabricTestResult) -> str:
    reached = "no result" if result.gbps is None else f"{result.gbps:.1f} Gb/s"
    way = f"{result.sender} {result.sender_port} → {result.receiver} {result.receiver_port}"
    words = _words(result)
    return plain(f"rail {result.rail}: {way}: {reached}, {result.grade}" + (f" ({words})" if words else ""))


def _print_results(results: list[FabricTestResult]) -> None:
    print_table(_HEADS, [_cells(result) for result in results])


def _print_test(view: FabricTestView, results: list[FabricTestResult]) -> None:
    shown = results
    if view.all_pairs:
        # Nobody reads a thousand lines that say good.
        shown = [result for result in results if result.grade != "good"]
    if shown:
        _print_results(shown)
    good = sum(result.grade == "good" for result in results)
    print(f"{view.fabric}: {good} of {len(results)} measurements are good")
    for sentence in view.blamed:
        print(plain(sentence))
    if view.state == "ended":
        print(f"the test was ended after {len(results)} of {view.planned}: {plain(view.reason or '')}")

"""What the admin API answers of bandwidth tests between nodes: stable shapes, only ever added to.

Times are seconds since the epoch (UTC), rates Gb/s (10⁹ bits).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from llmgw.messages.fabric_test import BANDWIDTH_SECONDS_MAX

Grade = Literal["good", "degraded", "bad", "error"]
FABRIC_TEST_SECONDS = 5
FABRIC_TEST_WAIT_S_MAX = 25
"""The longest that one request waits for progress."""


class FabricTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: one rail in one direction."""

    test_id: str
    at: float
    """When it was over."""
    fabric: str
    rail: int
    """From 1, in the order in which the nodes declare their adapters."""
    sender: str
    sender_port: str
    """`mlx5_0:1`."""
    receiver: str
    receiver_port: str
    gbps: float | None = None
    """None: there is no result, and `words` says why."""
    limit_gbps: float | None = None
    """What the slowest part of the way can carry; None: nothing of it is known."""
    limited_by: str = ""
    """Which part that is: `the link`, or the PCIe slot of one of the adapters."""
    grade: Grade
    words: str = ""
    """perftest's own for an error, or what else there is to say."""

    @property
    def nodes(self) -> tuple[str, str]:
        """Sender and receiver."""
        return self.sender, self.receiver


class FabricTestView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/v1/fabric-tests/{test}`: a test that runs, or has ended since this server started."""

    id: str
    state: Literal["running", "done", "ended"]
    """`ended`: before it was done, for `reason`."""
    reason: str | None = None
    fabric: str
    nodes: list[str]
    all_pairs: bool = False
    by: str = ""
    """The token in whose name it was started."""
    started_at: float
    ended_at: float | None = None
    seconds: int
    """Of each measurement."""
    planned: int
    """Measurements that it consists of."""
    done: int = 0
    version: int = 0
    """Grows with every change: give it as `seen` to wait for the next one."""
    now: list[str] = []
    """What is being done at this moment, in sentences."""
    notes: list[str] = []
    """What was left out, and why; in sentences."""
    blamed: list[str] = []
    """What the measurements that are not good have in common, in sentences; of all pairs only."""
    first: int = 0
    """Where `results` begins: `after` of the request."""
    results: list[FabricTestResult] = []


class StartFabricTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/fabric-tests`: two nodes, or `all_pairs` of a fabric."""

    nodes: Annotated[list[str], msgspec.Meta(max_length=2)] = []
    all_pairs: bool = False
    fabric: str | None = None
    """Left out: the one that the nodes share, or the only one there is."""
    rounds: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    """Of all pairs: only so many rounds, in each of which every node is tested with one other."""
    seconds: Annotated[int, msgspec.Meta(ge=1, le=BANDWIDTH_SECONDS_MAX)] = FABRIC_TEST_SECONDS
    busy_ok: bool = False
    """Test also nodes on which replicas run, which slows them down."""
    install: bool = True
    """Install perftest where it is missing."""
    detached: bool = False
    """Go on also when nobody asks for progress any more."""

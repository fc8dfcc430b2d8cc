"""Waiting for the control plane's word, on a clock of the tests."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.config.errors import SentenceError
from llmgw.messages.admin import NodeView
from llmgw.messages.findings import Finding
from llmgw.onboarding.waiting import Clock, wait_until_there

CLONE = Finding(check="cloned-machine", severity="error", where="node01", what="another boot is refused.")


class Scripted:
    """A control plane whose answer depends on the time, and a clock that only waiting moves."""

    def __init__(self, answer: Callable[[float], NodeView | None]) -> None:
        self.at = 100.0
        self._answer = answer
        self.asked = 0

    def node(self, node_id: str) -> NodeView | None:
        assert node_id == "node01"
        self.asked += 1
        return self._answer(self.at)

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def wait(self, since: float | None = 100.0, unit: str = "active") -> str | None:
        clock = Clock(lambda: self.at, self.sleep)
        return wait_until_there(self, "node01", since=since, timeout_s=30.0, clock=clock, unit_state=lambda: unit)


def view(registered_s: float | None, state: str = "ready", **more: object) -> NodeView:
    return NodeView(node_id="node01", state=state, registered_s=registered_s, **more)  # type: ignore[arg-type]


def test_a_registration_of_the_agent_before_does_not_count() -> None:
    control = Scripted(lambda at: view(at - 40.0 if at < 110 else at - 109.0))
    assert control.wait() is None
    assert control.at == 110.0


def test_an_old_registration_counts_for_an_agent_that_was_not_restarted() -> None:
    assert Scripted(lambda at: view(4000.0)).wait(since=None) is None


def test_a_node_that_stays_away_is_told_with_what_the_control_plane_knows() -> None:
    assert Scripted(lambda at: None).wait() == (
        "node01 is not there after 30 s (systemd says of its agent: active): the control plane knows no node "
        "node01, so no agent of that name has reached it."
    )
    reason = Scripted(lambda at: view(None, "unreachable", reason="silent since 12:00")).wait()
    assert reason is not None
    assert "says that it is unreachable: silent since 12:00" in reason


def test_an_old_registration_alone_is_told_as_that() -> None:
    reason = Scripted(lambda at: view(at - 40.0)).wait()
    assert reason is not None
    assert "nothing of the agent that was just started, only of the one before it" in reason


def test_a_clone_is_told_with_the_servers_own_sentence() -> None:
    reason = Scripted(lambda at: view(at - 40.0, findings=[CLONE])).wait()
    assert reason is not None
    assert "refuses this machine: another boot is refused" in reason


def test_an_agent_that_does_not_stay_up_ends_the_waiting_early() -> None:
    control = Scripted(lambda at: None)
    reason = control.wait(unit="failed")
    assert reason is not None
    assert reason.startswith("The agent of node01 does not stay up (systemd says: failed)")
    assert control.at < 110


def test_a_control_plane_that_is_away_for_a_moment_is_asked_again() -> None:
    def answer(at: float) -> NodeView:
        if at < 105:
            raise SentenceError("nothing listens at http://127.0.0.1:8081")
        return view(at - 103.0)

    control = Scripted(answer)
    assert control.wait() is None
    assert control.asked == 6

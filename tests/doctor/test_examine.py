"""Checks run side by side and within their limits, and none of them can take the others down."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from llmgw.config.agent import AgentConfig
from llmgw.config.errors import ConfigError
from llmgw.doctor.check import Check, Node
from llmgw.doctor.checks import CHECKS
from llmgw.doctor.examine import examine
from llmgw.messages.findings import Finding, Severity


def load() -> AgentConfig:
    return AgentConfig(node_id="node01", server="https://127.0.0.1:8443")


def finds(name: str, *severities: Severity) -> Check:
    return Check(name, lambda node: [node.finding(name, severity, "x", "y") for severity in severities])


def test_the_worst_findings_come_first_and_the_order_of_checks_is_kept() -> None:
    found = examine(load, [finds("a", "info", "warning"), finds("b", "error"), finds("c", "warning")])
    assert [(finding.check, finding.severity) for finding in found.findings] == [
        ("b", "error"),
        ("a", "warning"),
        ("c", "warning"),
        ("a", "info"),
    ]
    assert found.checks == ["configuration", "a", "b", "c"]
    assert found.worst == "error"
    assert {finding.where for finding in found.findings} == {"node01 x"}


def test_a_node_without_findings_has_no_worst() -> None:
    assert examine(load, [finds("a")]).worst is None


@pytest.mark.parametrize("error", [RuntimeError("no such luck\nmore"), TimeoutError(), SystemExit(3)])
def test_a_check_that_crashes_is_a_finding_and_the_others_still_run(error: BaseException) -> None:
    def crash(node: Node) -> list[Finding]:
        raise error

    found = examine(load, [Check("broken", crash), finds("after", "warning")])
    assert [finding.check for finding in found.findings] == ["check-failed", "after"]
    assert type(error).__name__ in found.findings[0].what
    assert "\n" not in found.findings[0].what


def test_a_check_that_hangs_is_a_finding_and_holds_nothing_up() -> None:
    release = threading.Event()

    def hang(node: Node) -> list[Finding]:
        release.wait(30)
        return []

    started = time.monotonic()
    found = examine(load, [Check("first", hang, 0.2), Check("second", hang, 0.3), finds("third", "info")])
    assert time.monotonic() - started < 5
    release.set()
    assert [finding.check for finding in found.findings] == ["check-unfinished", "check-unfinished", "third"]
    assert "within 0.2 s" in found.findings[0].what


def test_a_configuration_that_cannot_be_used_is_told_sentence_by_sentence_and_ends_it() -> None:
    def bad() -> AgentConfig:
        raise ConfigError("agent.yaml line 3: servr: unknown key; did you mean server?\nagent.yaml: no server")

    found = examine(bad, [finds("a", "error")])
    assert [(finding.where, finding.what) for finding in found.findings] == [
        ("agent.yaml line 3", "servr: unknown key; did you mean server?"),
        ("agent.yaml", "no server"),
    ]
    assert found.checks == ["configuration"]
    assert found.worst == "error"


def test_every_check_has_a_name_of_its_own_and_a_limit_of_seconds() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(0 < check.limit_s <= 30 for check in CHECKS)


def test_the_documents_name_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    documented = re.findall(r"^\| `([a-z-]+)` \|", page.partition("\n## ")[0], re.M)
    assert documented == ["configuration", *(check.name for check in CHECKS)]

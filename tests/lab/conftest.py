"""The lab's fabrics, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.lab.machines import needs
from tests.lab.operator import picture
from tests.lab.real_fabric import missing
from tests.lab.site import Site

_FIRST_FAILED = pytest.StashKey[str]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where tests go on from each other, tell how the lab is when one fails: what is left of it is taken away."""
    report = yield
    goes_on = item.get_closest_marker("goes_on")
    if goes_on and report.failed and call.when == "call" and item.parent is not None:
        item.parent.stash.setdefault(_FIRST_FAILED, item.name)
        report.sections.append(("the lab", picture()))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Of tests that go on from one that failed, none is tried."""
    if item.get_closest_marker("goes_on") and item.parent is not None:
        failed = item.parent.stash.get(_FIRST_FAILED, None)
        if failed is not None:
            pytest.skip(f"goes on from {failed}, which failed")


@pytest.fixture(autouse=True, scope="session")
def _lab() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def needs_machines() -> None:
    """For tests with real systemd nodes."""
    reason = needs.missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two fabrics, each with two managers, and nodes on them. Whoever changes something puts it right."""
    yield from _site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """The same for one test alone."""
    yield from _site(tmp_path)


def _site(folder: Path) -> Iterator[Site]:
    made = Site(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()

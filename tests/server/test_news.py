"""What the hub counts as news for open pages, and who is woken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from llmgw.config.catalog import Catalog
from llmgw.fleet.events import Event
from llmgw.fleet.lives import Life
from llmgw.fleet.model import Node
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import Inventory, Register, Report
from llmgw.messages.routes import Telemetry
from llmgw.server.hub import Hub
from llmgw.server.ids import RandomIds
from llmgw.server.news import News
from llmgw.server.seams import Clock


class Forgetful:
    """A memory that keeps nothing."""

    def record(self, events: Iterable[Event], at: float) -> None: ...

    def node_registered(self, node: Node, life: Life, at: float) -> None: ...

    def fabrics_changed(self, node: Node, at: float) -> None: ...

    async def stored(self, timeout_s: float) -> bool:
        return True


def hub_of(epoch: str = "e1") -> Hub:
    return Hub(
        epoch=epoch,
        catalog=Catalog(),
        settings=FleetSettings(),
        clock=Clock(monotonic=lambda: 1000.0, wall=lambda: 1_900_000_000.0),
        ids=RandomIds(),
        memory=Forgetful(),
        publish=lambda table: None,
    )


def test_what_happens_to_the_fleet_is_news_and_figures_only_move() -> None:
    async def body() -> None:
        hub = hub_of()
        news = hub.news
        message = Register(
            node_id="node01", boot_id="b", instance="i", instance_started_at=1.0, counter=1, version="1",
            inventory=Inventory(),
        )  # fmt: skip
        session = hub.register(message, Enrolment("10.0.0.1"), "1").session
        registered = news.happened
        assert registered > 0
        await hub.report(Report(session=session, inventory=Inventory(), shards=[]))
        hub.telemetry("router-1", Telemetry())
        assert (news.happened, news.moved) == (registered, 2), "a heartbeat that says the same, and a router's"
        hub.set_cordon("node01", True, "ops")
        assert news.happened == registered + 1
        assert not news.ended
        hub.end_sessions()
        assert news.ended

    asyncio.run(body())


def test_who_waits_is_woken_by_what_happens_and_by_the_end_and_not_by_figures() -> None:
    async def body() -> None:
        news = News("e1")
        any_news = asyncio.create_task(news.wait())
        the_end = asyncio.create_task(news.wait(only_end=True))
        await asyncio.sleep(0)
        news.move()
        await asyncio.sleep(0)
        assert not any_news.done()
        news.happen()
        await asyncio.wait_for(any_news, 5)
        assert not the_end.done()
        news.end()
        await asyncio.wait_for(the_end, 5)
        await asyncio.wait_for(news.wait(), 5)

    asyncio.run(body())


def test_a_version_is_of_one_server_and_of_nothing_else() -> None:
    news = News("000007-1.5")
    news.happen()
    news.move()
    assert news.version == "000007-1.5.1.1"
    assert news.counted(news.version) == (1, 1)
    for other in ("", "000007-1.5", "000008-1.5.1.1", "000007-1.5.1", "000007-1.5.-1.1", "000007-1.5.1.²"):
        assert news.counted(other) is None, other

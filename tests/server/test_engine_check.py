"""The hub and the backend ask a node for an engine's help, and compute the check here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmgw.config.catalog import Catalog
from llmgw.engines import registry
from llmgw.engines.widest import widest_flags
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.admin import CheckEngine, EngineCheck
from llmgw.messages.agent import EngineHelp, Inventory, ReadEngineHelp, Register, Report
from llmgw.server.admin.backend import AdminError
from llmgw.server.backend import Backend
from llmgw.server.hub import Clock, Hub
from llmgw.server.hub_error import HubError
from llmgw.server.ids import RandomIds
from llmgw.server.node_questions import HELP_REQUESTS_MAX
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from tests.engines.help_texts import options_of, whole_help, without
from tests.server.test_metrics import Forgetful

NOW = 1_900_000_000.0


class Fleet:
    """A hub with one node, whose agent is this object."""

    def __init__(self, *features: str) -> None:
        self.hub = Hub(
            epoch="e1",
            catalog=Catalog(),
            settings=FleetSettings(),
            clock=Clock(monotonic=lambda: 1000.0, wall=lambda: NOW),
            ids=RandomIds(),
            memory=Forgetful(),
            publish=lambda table: None,
        )
        store: Any = SimpleNamespace(audit=None)
        self.backend = Backend(
            self.hub,
            store,
            listen="127.0.0.1:1",
            config_path=Path("/none"),
            revision=1,
            started_at=NOW,
            routers=list,
            problems=list,
            certificates=list,
            upgrades=Upgrades(self.hub, store, Releases(Path("/none")), release_key=Path("/none")),
        )
        message = Register(
            node_id="node01",
            boot_id="b",
            instance="i",
            instance_started_at=1.0,
            counter=1,
            version="0.0.9",
            features=list(features),
            inventory=Inventory(),
        )
        self.session = self.hub.register(message, Enrolment("10.0.0.1", NOW + 3600), "1").session

    async def check(self, answer: Callable[[ReadEngineHelp], EngineHelp], **wish: Any) -> EngineCheck:
        """Ask for a check, and answer what the agent is told as it would."""
        asked = asyncio.ensure_future(
            self.backend.check_engine("node01", CheckEngine(**{"engine": "vllm", **wish}))
        )
        [command] = await self.hub.poll(self.session, 0, 5.0)
        assert isinstance(command, ReadEngineHelp)
        assert command.engine == "vllm"
        await self.hub.report(Report(session=self.session, helps=[answer(command)]))
        return await asked


def told(text: str, **more: Any) -> Callable[[ReadEngineHelp], EngineHelp]:
    return lambda command: EngineHelp(request_id=command.request_id, engine=command.engine, text=text, **more)


def vllm_help() -> str:
    return whole_help("vllm", options_of(widest_flags(registry.adapter("vllm"))["vllm"]))


def test_the_check_is_computed_from_the_text_that_the_agent_sent() -> None:
    fleet = Fleet("engine_help")
    check = asyncio.run(fleet.check(told(vllm_help(), version="0.33.0")))
    assert (check.engine, check.version, check.ok, check.truncated) == ("vllm", "0.33.0", True, False)
    text = without(vllm_help(), "--headless")
    check = asyncio.run(Fleet("engine_help").check(told(text), args=["--bogus", "1"]))
    assert [each.flag for each in check.flags if each.ok is False] == ["--headless", "--bogus"]


def test_an_agent_that_is_too_old_is_refused_at_once_and_asked_nothing() -> None:
    async def test() -> None:
        fleet = Fleet("start", "stop", "logs", "renew")
        with pytest.raises(AdminError) as refused:
            await fleet.backend.check_engine("node01", CheckEngine(engine="vllm"))
        assert refused.value.status == 501
        assert "llmgw 0.0.9" in refused.value.message
        assert "update llmgw there" in refused.value.message
        assert await fleet.hub.poll(fleet.session, 0, 0.01) == []

    asyncio.run(test())


def test_what_the_agent_could_not_do_is_its_own_sentence() -> None:
    fleet = Fleet("engine_help")
    with pytest.raises(AdminError) as refused:
        asyncio.run(
            fleet.check(lambda it: EngineHelp(request_id=it.request_id, engine=it.engine, error="vllm hangs"))
        )
    assert (refused.value.status, refused.value.message) == (409, "node01: vllm hangs")
    with pytest.raises(AdminError) as refused:
        asyncio.run(Fleet("engine_help").check(told("hello")))
    assert "lists no option" in refused.value.message


def test_unknown_engines_and_nodes_are_refused() -> None:
    async def test() -> None:
        fleet = Fleet("engine_help")
        for node, engine, code in (("node01", "tgi", "unknown-engine"), ("node09", "vllm", "unknown-node")):
            with pytest.raises(AdminError) as refused:
                await fleet.backend.check_engine(node, CheckEngine(engine=engine))
            assert (refused.value.status, refused.value.code) == (404, code)

    asyncio.run(test())


def test_a_silent_agent_and_too_many_questions_end_in_sentences_and_leave_nothing_waiting() -> None:
    async def test() -> None:
        fleet = Fleet("engine_help")
        with pytest.raises(HubError) as refused:
            await fleet.hub.questions.read_engine_help("node01", "vllm", 0.01)
        assert (refused.value.status, refused.value.code) == (504, "node_silent")
        many = [
            asyncio.ensure_future(fleet.hub.questions.read_engine_help("node01", "vllm", 30.0))
            for _ in range(HELP_REQUESTS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(HubError) as refused:
            await fleet.hub.questions.read_engine_help("node01", "vllm", 30.0)
        assert (refused.value.status, refused.value.code) == (503, "busy")
        commands = await fleet.hub.poll(fleet.session, 0, 5.0)
        for command in commands[1:]:
            assert isinstance(command, ReadEngineHelp)
            await fleet.hub.report(Report(session=fleet.session, helps=[told("x")(command)]))
        assert {answer.text for answer in await asyncio.gather(*many)} == {"x"}

    asyncio.run(test())


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    async def test() -> None:
        fleet = Fleet("engine_help")
        await fleet.hub.report(
            Report(session=fleet.session, helps=[EngineHelp(request_id="long-gone", engine="vllm", text="x")])
        )

    asyncio.run(test())

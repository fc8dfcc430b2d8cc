"""The server asks agents what lies on their disks; none of them can spoil the answer for the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmgw.config.catalog import Catalog
from llmgw.messages.agent import ListWeights, RemoveWeights, Report, WeightsAnswer, WeightsFile, WeightsListing
from llmgw.server.admin.backend import AdminError
from llmgw.server.weights import WeightsOnDisk
from tests.server.test_metrics import World

SOURCE = "https://h/a.gguf"


def world() -> World:
    found = World()
    profiles = [{"engine": "sim", "gpus_per_node": 1}]
    models = [{"name": name, "source": SOURCE, "profiles": profiles} for name in ("one", "two")]
    found.hub.catalog = Catalog.model_validate({"models": models})
    return found


async def answer(it: World, session: str, **said: Any) -> Any:
    """An agent that answers its next command, and what it was told to do."""
    [command] = await it.hub.poll(session, 0, 5)
    assert isinstance(command, ListWeights | RemoveWeights)
    await it.hub.report(Report(session=session, weights=[WeightsAnswer(request_id=command.request_id, **said)]))
    return command


def test_models_stand_for_sources_and_a_node_that_cannot_answer_says_why() -> None:
    async def test() -> None:
        it = world()
        new = it.register("node01", features=["weights"])
        it.register("node02")
        failing = it.register("node03", features=["weights"])
        it.hub.fleet.nodes["node04"] = type(it.hub.fleet.nodes["node01"])("node04")
        files = [
            WeightsFile(name="https/h/a.gguf", size_bytes=1, state="complete", sources=[SOURCE]),
            WeightsFile(name="https/h/b.gguf", size_bytes=1, state="complete"),
            WeightsFile(name="https/h/c.gguf", size_bytes=1, state="complete", shards=["s"]),
            WeightsFile(name="mine", size_bytes=1, state="foreign"),
        ]
        views, command, _ = await asyncio.gather(
            WeightsOnDisk(it.hub).view(None),
            answer(it, new, listing=WeightsListing(dir="/w", files=files)),
            answer(it, failing, error="/w cannot be read"),
        )
        assert command.sources == [SOURCE, SOURCE]
        by_node = {view.node: view for view in views}
        shown = [(file.models, file.unused) for file in by_node["node01"].files]
        assert shown == [(["one", "two"], False), ([], True), ([], False), ([], False)]
        assert "update llmgw there" in (by_node["node02"].problem or "")
        assert by_node["node03"].problem == "node03: /w cannot be read"
        assert "no session now" in (by_node["node04"].problem or "")

    asyncio.run(test())


def test_a_removal_says_what_was_kept_and_a_stranger_s_answer_counts_for_nothing() -> None:
    async def test() -> None:
        it = world()
        session, other = (it.register(node, features=["weights"]) for node in ("node01", "node02"))
        asked = asyncio.create_task(WeightsOnDisk(it.hub).remove({"node01": ["x", "y"]}, by="ops"))
        [command] = await it.hub.poll(session, 0, 5)
        assert isinstance(command, RemoveWeights)
        await it.hub.report(
            Report(session=other, weights=[WeightsAnswer(request_id=command.request_id, removed=["lie"])])
        )
        await answer(it, session, removed=["x"], kept={"y": "shard s uses it"})
        done = await asked
        assert (done.message, done.removed) == ("1 file is removed", {"node01": ["x"]})
        assert done.warnings == ["node01: y is kept: shard s uses it"]
        with pytest.raises(AdminError, match="there is no node 'node09'"):
            await WeightsOnDisk(it.hub).remove({"node09": ["x"]}, by="ops")

    asyncio.run(test())

"""Operators at the worst moments: they drain, cordon, scale, apply other catalogs and roll them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmgw.config.catalog import Catalog, CatalogModel
from llmgw.messages.admin import ApplyCatalog
from llmgw.server.admin.backend import AdminError
from tests.simulation.breaking import Breaker, Kind

WISHES = (
    "drain",
    "drain",
    "force",
    "undrain",
    "cordon",
    "uncordon",
    "scale",
    "scale",
    "form",
    "drop",
    "restart",
    "remove",
    "rollback",
)


class Operators(Breaker):
    """People with `llmgw ctl`."""

    def kinds(self) -> list[Kind]:
        return [(16, "operator", self.act)]

    def mend(self) -> None:
        pass  # `restore` does, which waits for the server

    async def restore(self) -> None:
        """Operators want what they wanted at first."""
        world = self._world
        while world.server.backend is None:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.5)
        backend = world.server.backend
        for node_id in sorted(world.machines):
            try:
                await backend.undrain(node_id, by="the end")
                await backend.cordon(node_id, False, by="the end")
            except AdminError:
                pass  # removed; it will join again
        await backend.catalog.change(
            lambda _: world.plan.catalog, "the end", "as it was at first", confirmed=True
        )

    def act(self) -> None:
        """One wish of somebody."""
        backend, hub = self._world.server.backend, self._world.server.hub
        process = self._world.server.process
        if backend is None or hub is None or process is None:
            return
        node_id = self._machine().node_id
        rng = self._rng
        what = rng.choice(WISHES)

        async def act() -> None:
            try:
                if what in ("drain", "force"):
                    await backend.drain(node_id, force=what == "force", by="sim")
                    self._world.invariants.intends("drained", node_id)
                    self._after(30, 150, lambda: self._undo(lambda again: again.undrain(node_id, by="sim")))
                elif what == "undrain":
                    await backend.undrain(node_id, by="sim")
                elif what in ("cordon", "uncordon"):
                    await backend.cordon(node_id, what == "cordon", by="sim")
                elif what == "remove":
                    await backend.remove_node(node_id, force=rng.random() < 0.5, by="sim")
                elif what == "restart":
                    if hub.fleet.replicas:
                        await backend.restart(rng.choice(list(hub.fleet.replicas)), by="sim")
                elif what == "scale":
                    model = rng.choice(hub.catalog.models).name
                    await backend.scale(model, None, rng.randint(0, 4), confirmed=True, by="sim")
                elif what == "rollback":
                    now = backend.catalog.revision
                    wish = ApplyCatalog(base=now, revision=rng.randint(1, now), confirmed=True)
                    await backend.catalog.apply(wish, by="sim")
                else:
                    changed = self._changed(hub.catalog, what)
                    await backend.catalog.change(lambda _: changed, "sim", what, confirmed=True)
            except AdminError as error:
                self._world.trace.say("operator", f"is refused: {error}")
            except Exception as error:
                self._world.invariants.crashed(f"operator's {what}", error)

        self._fault(f"operator {what}", node_id)
        self._world.invariants.intends(what, node_id)
        process.spawn(act())

    def _undo(self, act: Callable[..., object]) -> None:
        backend, process = self._world.server.backend, self._world.server.process
        if backend is None or process is None:
            return

        async def undo() -> None:
            try:
                self._world.invariants.intends("undrain", None)
                await act(backend)  # type: ignore[misc]
            except AdminError as error:
                self._world.trace.say("operator", f"is refused: {error}")

        process.spawn(undo())

    def _changed(self, catalog: Catalog, what: str) -> Catalog:
        """Another form for one model, or the catalog without one of its models."""
        models = list(catalog.models)
        at = self._rng.randrange(len(models))
        if what == "drop" and len(models) > 1:
            return Catalog(models=models[:at] + models[at + 1 :])
        if what == "drop" or self._rng.random() < 0.3:
            return self._world.plan.catalog
        model = models[at]
        changed = [
            profile.model_copy(update={"args": [f"--form={self._rng.randint(0, 3)}"]})
            for profile in model.profiles
        ]
        models[at] = CatalogModel.model_validate(
            {**model.model_dump(), "profiles": [profile.model_dump() for profile in changed]}
        )
        return Catalog(models=models)

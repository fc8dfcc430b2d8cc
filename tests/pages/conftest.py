from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ctl.scripted import ScriptedBackend, ServedAdmin
from tests.pages.big_fleet import troubled_backend
from tests.pages.fabrics import Alive, add_node, add_replica, know, small_fabric
from tests.pages.visitor import Visitor


@pytest.fixture
def alive() -> Alive:
    """A cluster of six nodes with agents on `small_fabric`: traffic, one port down, a replica of two nodes."""
    alive, made = Alive(), small_fabric()
    for number in range(1, 7):
        add_node(alive, made, f"node{number:04}", tx=60.0 * number, rx=300.0 - 40 * number)
    add_node(alive, made, "node0005", down="mlx5_2")
    add_replica(alive, "chat-large-1a2b", ["node0001", "node0002"])
    add_replica(alive, "chat-small-3c4d", ["node0001"])
    know(alive, made)
    return alive


@pytest.fixture
def backend(alive: Alive) -> ScriptedBackend:
    """A control plane whose fabrics are those of `alive`."""
    backend = ScriptedBackend()
    backend.drawings = alive.drawings()
    return backend


@pytest.fixture
def served(backend: ScriptedBackend) -> Iterator[ServedAdmin]:
    """The real admin app over it, on a socket."""
    server = ServedAdmin(backend)
    yield server
    server.stop()


@pytest.fixture
def visitor(served: ServedAdmin, backend: ScriptedBackend) -> Visitor:
    """Somebody who has logged in there, once `backend` is as a test of that file begins with."""
    visitor = Visitor(served.url)
    visitor.log_in()
    return visitor


@pytest.fixture(scope="module")
def troubled() -> Iterator[Visitor]:
    """Somebody who has logged in to the control plane of a fleet in trouble."""
    served = ServedAdmin(troubled_backend())
    visitor = Visitor(served.url)
    visitor.log_in()
    yield visitor
    served.stop()

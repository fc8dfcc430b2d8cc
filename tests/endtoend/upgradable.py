"""A fleet whose agents are installed programs, run by their unit; and releases that are made in a moment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llmgw import __version__
from llmgw.release import install
from llmgw.release.signature import digest, sign
from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.hardware import HARDWARE_ENV
from llmgw.sim.hardware_files import set_power
from tests.endtoend.conftest import RunningFleet, edited
from tests.release.made_up_release import folder_tarball

CHECKOUT = Path(__file__).parent.parent.parent
UNIT = Path(__file__).with_name("agent_unit.py")
OLDER, NEWER, BROKEN, NEWEST = "0.0.9", "0.1.7", "0.1.8", "0.1.9"
"""Versions that a server of this checkout understands."""

# This checkout's code, under the version that the file says. What is broken in it shows only when the agent runs:
# it passes every look that is taken at it before.
PROGRAM = f"""#!/bin/sh
if [ "$1 $2" = "agent --config" ]; then {{broken}}; fi
if [ "$1 $2" = "agent --check" ]; then {{check}}; fi
export PYTHONPATH={CHECKOUT}
exec {sys.executable} -c 'import llmgw, sys
llmgw.__version__ = "{{version}}"
sys.argv[0] = "llmgw"
from llmgw.__main__ import main
main()' "$@"
"""


class Publisher:
    """Makes releases and signs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = Ed25519PrivateKey.generate()
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def public_key(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def release(
        self,
        version: str,
        *,
        broken: str = ":",
        check: str = ":",
        padding: int = 0,
        key: Ed25519PrivateKey | None = None,
    ) -> Path:
        """A file with its signature beside it. `broken` is what the shell does before it runs an agent,
        `check` before it looks at a configuration.
        """
        files = {"padding": os.urandom(padding)} if padding else None
        program = PROGRAM.format(broken=broken, check=check, version=version)
        path = folder_tarball(self.folder, version, program=program, files=files)
        path.with_name(f"{path.name}.sig").write_text(sign(key or self.key, path))
        return path


@dataclass
class UpgradableFleet:
    """A `RunningFleet` whose agents can be upgraded. `without_key` have no release key."""

    folder: Path
    without_key: Sequence[str] = ()
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.folder / "releases")
        self.first = self.publisher.release(__version__)
        self.running = RunningFleet(self.folder / "demo", adjust=self._prepare, **(self.options or {}))

    @property
    def demo(self) -> DemoFleet:
        return self.running.demo

    def root(self, node: str) -> Path:
        return self.folder / "installed" / node

    def program(self, node: str) -> str:
        """Where the node's symlink points: the folder's name."""
        return os.readlink(self.root(node) / "usr/local/bin/llmgw").split("/")[-3]

    def version(self, node: str) -> str:
        return str(self.running.node(node)["version"])

    def versions(self) -> dict[str, str]:
        return {node["node_id"]: node["version"] for node in self.running.get("nodes")}

    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = self.running.get("upgrades/last")
        return view

    def states(self) -> dict[str, str]:
        return {node["node"]: node["state"] for node in self.view()["nodes"]}

    def engine_pids(self) -> dict[int, str]:
        return self.demo.engines()

    def log(self, node: str) -> str:
        return self.demo.last_words(node, 60)

    def close(self) -> None:
        self.running.close()
        assert not self.demo.engines(), "engines were left behind"

    # Inside.

    def _prepare(self, demo: DemoFleet) -> None:
        key = self.folder / "release.pub"
        key.write_bytes(self.publisher.public_key)
        for node in demo.nodes:
            self._install(node)
            with edited(demo.folder / node / "agent.yaml") as config:
                config["release_key"] = str(key if node not in self.without_key else key.with_name("none.pub"))
        fleet = self

        def start_agent(demo: DemoFleet, node: str) -> None:
            fleet._start(demo, node)

        demo.start_agent = MethodType(start_agent, demo)  # type: ignore[method-assign]

    def _install(self, node: str) -> None:
        root = self.root(node)
        root.mkdir(parents=True)
        words = [str(self.first), self.first.name, digest(self.first).hex(), str(root)]
        done = subprocess.run(
            ["sh", "-s", "--", *words], input=install.script(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def _start(self, demo: DemoFleet, node: str) -> None:
        hardware = demo.folder / node / "hardware"
        set_power(hardware, True)
        state = demo.folder / node / "work"
        with (demo.folder / f"{node}.log").open("ab") as log:
            demo._processes[node] = subprocess.Popen(
                [
                    sys.executable,
                    str(UNIT),
                    str(self.root(node)),
                    str(state),
                    str(demo.folder / node / "agent.yaml"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, HARDWARE_ENV: str(hardware)},
                start_new_session=True,
                cwd=demo.folder,
            )

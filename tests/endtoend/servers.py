"""A server by itself, for tests that want no fleet: its own configuration, state and ports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.endtoend.conftest import Running, llmgw, until
from tests.ports import free_port


class Server:
    """`llmgw server` on a configuration; `--config` may be a file of somebody else, changed by `env`."""

    def __init__(
        self, folder: Path, config: Path, api: int, admin: int, env: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.api = f"http://127.0.0.1:{api}"
        self.admin = f"http://127.0.0.1:{admin}"
        self._config = config
        self._env = env or {}
        self.process = self._start()

    def _start(self) -> Running:
        # In the folder of the tests, so that nothing depends on where a server is started.
        return Running.llmgw("server", "--config", str(self._config), log=self.folder / "log", env=self._env)

    def wait_serving(self) -> None:
        """Wait until model API and admin API answer."""
        until(lambda: self._answers(f"{self.api}/v1/models") and self._answers(self.admin), 30, self.log)

    def _answers(self, url: str) -> bool:
        if self.process.process.poll() is not None:
            raise AssertionError(self.log())
        try:
            return httpx.get(url, trust_env=False, timeout=2).status_code < 500
        except httpx.HTTPError:
            return False

    def log(self) -> str:
        return self.process.output

    def get(self, path: str) -> Any:
        return self._asked(f"/api/v1/{path}").json()

    def page(self, path: str) -> str:
        """A page as whoever has the token reads it."""
        return self._asked(path).text

    def _asked(self, path: str) -> httpx.Response:
        token = json.loads((self.state / "admin.json").read_text())["token"]
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx.get(f"{self.admin}{path}", headers=headers, trust_env=False)
        answer.raise_for_status()
        return answer

    def ctl(self, *arguments: str) -> str:
        done = llmgw("ctl", *arguments, env={"LLMGW_STATE": str(self.state), "NO_COLOR": "1", "COLUMNS": "200"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill(self) -> None:
        """SIGKILL to the control process alone."""
        self.process.process.kill()
        self.process.process.wait()

    def start_again(self, env: dict[str, str] | None = None) -> None:
        """`env` is added to what it was started with."""
        self._env.update(env or {})
        self.process = self._start()

    def configure(self, **changes: Any) -> None:
        """Change its configuration, for the next start."""
        config = yaml.safe_load(self._config.read_text())
        self._config.write_text(yaml.safe_dump({**config, **changes}))

    def routers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if "router" in command and f"--state={self.state}" in command:
                    found.append(process)
        return found

    def stop(self) -> None:
        if self.process.process.poll() is None:
            self.process.process.terminate()
            with contextlib.suppress(Exception):
                self.process.process.wait(10)
        with self.process:
            pass
        for router in self.routers():
            os.kill(router.pid, signal.SIGKILL)


@contextlib.contextmanager
def server(folder: Path, **changes: Any) -> Iterator[Server]:
    """A server without agents, with `changes` to its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    api, admin = free_port(), free_port()
    config = {
        "listen": f"127.0.0.1:{api}",
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "state": str(folder / "state"),
        "router": {"workers": 1},
        **changes,
    }
    (folder / "server.yaml").write_text(yaml.safe_dump(config))
    running = Server(folder, folder / "server.yaml", api, admin)
    try:
        running.wait_serving()
        yield running
    finally:
        running.stop()

"""Stands where systemd would: a socket that processes tell how they are, and what they said on it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import TracebackType


class ServiceManager:
    """What was said, in order, each message as its fields."""

    def __init__(self, folder: Path, *, watchdog_s: float | None = None) -> None:
        self.path = folder / "notify"
        self._watchdog_s = watchdog_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))
        self._said: list[dict[str, str]] = []

    @property
    def env(self) -> dict[str, str]:
        """What systemd puts into a service's environment, but for the pid, which nobody knows yet."""
        env = {"NOTIFY_SOCKET": str(self.path)}
        if self._watchdog_s is not None:
            env["WATCHDOG_USEC"] = str(int(self._watchdog_s * 1_000_000))
        return env

    @property
    def said(self) -> list[dict[str, str]]:
        while True:
            try:
                text = self._socket.recv(65536).decode()
            except BlockingIOError:
                return self._said
            self._said.append(dict(line.split("=", 1) for line in text.split("\n")))

    def count(self, field: str) -> int:
        return sum(field in message for message in self.said)

    @property
    def status(self) -> str:
        return next((message["STATUS"] for message in reversed(self.said) if "STATUS" in message), "")

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


def environment_of(pid: int) -> list[str]:
    """The names of the variables that a process was started with."""
    block = Path(f"/proc/{pid}/environ").read_bytes()
    return [os.fsdecode(item.partition(b"=")[0]) for item in block.split(b"\0") if item]

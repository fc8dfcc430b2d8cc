"""Processes that can be killed, or stood still, at any moment: tasks that belong together."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


class Process:
    """A process's tasks. Killed, it takes no further step; paused, none until it is resumed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order: a set's order would follow addresses
        self._running = asyncio.Event()
        self._running.set()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a part of this process."""
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks[task] = None

        def done(ended: asyncio.Task[Any]) -> None:
            self._tasks.pop(ended, None)
            work.close()  # it may never have begun

        task.add_done_callback(done)
        return task

    def pause(self) -> None:
        """As SIGSTOP does."""
        self._running.clear()

    def resume(self) -> None:
        """As SIGCONT does."""
        self._running.set()

    def kill(self) -> None:
        """As SIGKILL does, as far as Python lets it: what a task does on its way out is nobody's business."""
        self.alive = False
        self._running.set()
        for task in list(self._tasks):
            task.cancel()

    async def _guard(self, work: Coroutine[Any, Any, Any]) -> Any:
        if not self._running.is_set():
            await self._running.wait()
        return await self._step(work)

    @types.coroutine
    def _step(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Drive `work` by hand, so that it can be held between any two of its steps."""
        error: BaseException | None = None
        while True:
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as ended:
                return ended.value
            error = None
            try:
                yield waits_for
            except GeneratorExit:
                raise
            except BaseException as raised:
                error = raised
            # Also when a timeout has ended the wait: it is noticed when the process goes on.
            while not self._running.is_set():
                try:
                    yield from self._running.wait().__await__()
                except GeneratorExit:
                    raise
                except BaseException as raised:
                    error = error or raised
            if not self.alive:
                error = asyncio.CancelledError()

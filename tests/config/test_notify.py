"""What a process tells systemd, and when it does not."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from llmgw.config.notify import STATUS_CHARS_MAX, Notifier, take_notifier
from tests.agent.waiting import until
from tests.service_manager import ServiceManager


def test_nobody_is_told_anything_where_nobody_listens() -> None:
    notifier = take_notifier({})
    assert not notifier.supervised
    notifier.ready("Serves.")
    notifier.stopping()
    asyncio.run(asyncio.wait_for(notifier.feed(), 5))


def test_what_systemd_put_into_the_environment_is_taken_out_of_it(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, watchdog_s=10) as systemd:
        environ = {**systemd.env, "WATCHDOG_PID": "7", "HOME": "/"}
        assert take_notifier(environ, pid=7).feed_interval_s == 5
        assert environ == {"HOME": "/"}


def test_a_watchdog_that_is_meant_for_another_process_is_left_alone(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, watchdog_s=10) as systemd:
        assert take_notifier({**systemd.env, "WATCHDOG_PID": "8"}, pid=7).feed_interval_s is None
        assert take_notifier({**systemd.env, "WATCHDOG_USEC": "soon"}, pid=7).feed_interval_s is None
        assert take_notifier(systemd.env, pid=7).feed_interval_s == 5


def test_a_life_is_told_in_systemds_words(tmp_path: Path) -> None:
    with ServiceManager(tmp_path) as systemd:
        notifier = take_notifier(systemd.env)
        notifier.ready("Serves\nMAINPID=1.")
        notifier.ready("Serves two.")
        notifier.status("Serves two.")
        notifier.reloading()
        notifier.ready()
        notifier.stopping("Ends.")
        before = time.monotonic()
        first, second, reloading, ready, stopping = systemd.said
        assert first == {"READY": "1", "STATUS": "Serves MAINPID=1."}
        assert second == {"STATUS": "Serves two."}
        assert reloading["RELOADING"] == "1"
        assert 0 < before - int(reloading["MONOTONIC_USEC"]) / 1e6 < 60
        assert ready == {"READY": "1"}
        assert stopping == {"STOPPING": "1", "STATUS": "Ends."}
        notifier.status("x" * 10_000)
        assert len(systemd.status) == STATUS_CHARS_MAX


def test_an_abstract_name_is_one_that_begins_with_an_at_sign() -> None:
    name = f"llmgw-test-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        take_notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert sock.recv(100) == b"READY=1"


def test_signs_of_life_come_only_while_the_loop_turns(tmp_path: Path) -> None:
    with ServiceManager(tmp_path, watchdog_s=0.02) as systemd:
        notifier = take_notifier(systemd.env)

        async def main() -> None:
            feeding = asyncio.create_task(notifier.feed())
            await until(lambda: systemd.count("WATCHDOG") >= 3, "it is fed")
            before = systemd.count("WATCHDOG")
            end = time.monotonic() + 0.2
            while time.monotonic() < end:
                pass  # the loop hangs
            assert systemd.count("WATCHDOG") == before
            await until(lambda: systemd.count("WATCHDOG") > before, "it is fed again")
            feeding.cancel()

        asyncio.run(asyncio.wait_for(main(), 20))


def test_a_systemd_that_is_gone_or_takes_nothing_hurts_nobody(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "nobody")).ready("Serves.")
    with ServiceManager(tmp_path) as systemd:
        notifier = take_notifier(systemd.env)
        # Its queue is full, and nobody reads: signs of life are not waited for.
        began = time.monotonic()
        for number in range(3000):
            notifier.status(str(number))
        assert time.monotonic() - began < 20
        assert systemd.said[0] == {"STATUS": "0"}

"""Waiting until a new VM answers at its ssh port, or until it is clear that it will not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from llmgw.config.addresses import join_host_port
from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.progress import Progress

TRY_TIMEOUT_S: Final = 3.0
BETWEEN_S: Final = 1.0
ASK_RUNNING_EVERY_S: Final = 15.0


def wait_for_ssh(
    address: str, port: int, timeout_s: float, running: Callable[[], bool], progress: Progress
) -> None:
    """Return when an ssh server greets (RFC 4253 section 4.2). Raises ProvisionError when none does in time.

    `running` says whether the VM still runs; it is asked now and then.
    """
    where = join_host_port(address, port)
    started_s = asked_s = time.monotonic()
    last = "nothing answers"
    while True:
        try:
            with socket.create_connection((address, port), timeout=TRY_TIMEOUT_S) as connection:
                connection.settimeout(TRY_TIMEOUT_S)
                if connection.recv(64).startswith(b"SSH-"):
                    return
                last = "something that is no ssh server answers"
        except OSError as error:
            last = error.strerror or "no answer"
        now_s = time.monotonic()
        if now_s - started_s >= timeout_s:
            raise ProvisionError(
                f"No ssh server answers at {where} {timeout_s:g} s after the start ({last}): the address, the "
                "gateway or the bridge may be wrong, or the image has no cloud-init. Run it again with --keep, "
                "and look at the VM's console with qm terminal."
            )
        if now_s - asked_s >= ASK_RUNNING_EVERY_S:
            asked_s = now_s
            if not running():
                raise ProvisionError(
                    f"The VM stopped by itself before ssh answered at {where}: run it again with --keep, and "
                    "look at journalctl -u pvedaemon and the VM's console."
                )
        progress.waiting(f"waiting for ssh at {where}", now_s - started_s)
        time.sleep(BETWEEN_S)

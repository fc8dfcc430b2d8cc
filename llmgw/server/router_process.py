"""Starts a router as a process that outlives this one, on a listening socket that this one keeps."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from llmgw.config.server import RouterSettings
from llmgw.messages.frames import ROUTER_LOG

PROGRAM = (sys.executable, "-m", "llmgw", "router")


def start_router(
    state_dir: Path,
    listen_socket: socket.socket,
    settings: RouterSettings,
) -> subprocess.Popen[bytes]:
    """Start `llmgw router` in a session of its own, so that no signal meant for this process reaches it.

    It inherits `listen_socket`; keep that open for the router's replacement. Its output is appended to
    `router.log` (0600) in the state folder. Nothing waits for it: the link tells when it serves. The process
    handle is for `pid` and for `poll`, without which an ended child stays a zombie.
    Raises OSError when the program cannot be started.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = listen_socket.fileno()
    argv = [
        *PROGRAM,
        f"--state={state_dir}",
        f"--listen-fd={descriptor}",
        f"--body-bytes-max={settings.body_bytes_max}",
        f"--connect-timeout-s={settings.connect_timeout}",
        f"--connections-max={settings.connections_max}",
        f"--drain-s={settings.drain_grace}",
        "--ignore-sigint",
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    output = os.open(state_dir / ROUTER_LOG, flags, 0o600)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(descriptor,),
            start_new_session=True,
        )
    finally:
        os.close(output)

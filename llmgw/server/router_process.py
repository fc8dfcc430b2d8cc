"""Starts a router as a process that outlives this one, on a listening socket that this one keeps."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llmgw.config.own_program import own_program
from llmgw.config.server import ServerConfig
from llmgw.messages.router_files import ROUTER_LOG


def router_settings(config: ServerConfig) -> str:
    """What tells a router started with this configuration from one that was started with another."""
    return hashlib.sha256("\0".join(router_arguments(config)).encode()).hexdigest()[:16]


def router_arguments(config: ServerConfig) -> list[str]:
    """What all routers of a configuration are told alike."""
    settings, tls = config.router, config.tls
    arguments = [
        f"--body-bytes-max={settings.body_bytes_max}",
        f"--connect-timeout-s={settings.connect_timeout}",
        f"--connections-max={settings.connections_max}",
        f"--drain-s={settings.drain_grace}",
        "--ignore-sigint",
        *(f"--cors-origin={origin}" for origin in settings.cors.origins),
        *(f"--trusted-proxy={network}" for network in settings.trusted_proxies),
    ]
    if settings.tracing.endpoint is not None:
        tracing = settings.tracing
        arguments += [f"--trace-endpoint={tracing.endpoint}", f"--trace-sample={tracing.sample}"]
        arguments += [f"--trace-headers-file={tracing.headers_file}"] if tracing.headers_file else []
        arguments += [f"--trace-ca={tracing.ca}"] if tracing.ca else []
    if tls is not None:
        arguments += [f"--tls-cert={tls.cert}", f"--tls-key={tls.key}"]
    return arguments


def start_router(
    state_dir: Path,
    listeners: Sequence[socket.socket],
    config: ServerConfig,
    *,
    worker: int = 0,
    share_of: int = 1,
    needs_keys: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `llmgw router` in a session of its own, so that no signal meant for this process reaches it.

    It inherits `listeners`; keep them open for the router's replacement. Its name is `worker_name(worker)`, and
    of the limits that are for all it has the part of one of `share_of`. `needs_keys`: whether clients do. Its
    output is appended to
    `router.log` (0600) in the state folder. Nothing waits for it: the link tells when it serves. The process
    handle is for `pid` and for `poll`, without which an ended child stays a zombie.
    Raises OSError when the program cannot be started.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptors = [sock.fileno() for sock in listeners]
    argv = [
        *own_program("router"),
        f"--state={state_dir}",
        f"--worker={worker}",
        *(f"--listen-fd={descriptor}" for descriptor in descriptors),
        f"--share-of={share_of}",
        "--needs-keys" if needs_keys else "--needs-no-keys",
        f"--settings={router_settings(config)}",
        *router_arguments(config),
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    output = os.open(state_dir / ROUTER_LOG, flags, 0o600)
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            start_new_session=True,
        )
    finally:
        os.close(output)

"""A router process from its start to its end: lock, sockets, limits of the system, signals."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgw import __version__
from llmgw.config.addresses import split_host_port
from llmgw.config.errors import SentenceError
from llmgw.config.listeners import (
    bound_address,
    inherited_listener,
    open_listener,
    systemd_listeners,
)
from llmgw.config.notify import Notifier, take_notifier
from llmgw.config.tracing import tracing_problem
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import Hello
from llmgw.router.acceptor import Acceptor
from llmgw.router.control import ControlServer
from llmgw.router.control_socket import ControlSocket
from llmgw.router.cors import Cors
from llmgw.router.exchange import Exchange
from llmgw.router.forwarded import TrustedProxies
from llmgw.router.limits import Limits
from llmgw.router.memory import keep_freed_memory
from llmgw.router.service import Service
from llmgw.router.table_file import TableFile
from llmgw.router.usage_file import UsageFile

if TYPE_CHECKING:
    from llmgw.router.client_tls import ClientTls
    from llmgw.router.tracing.export import SpanExport

log = logging.getLogger(__name__)

STATUS_EVERY_S = 2.0
LOCK_WAIT_S = 0.2
"""Whoever looks whether a router lives holds its lock for an instant."""


class StartError(SentenceError):
    """The router cannot start; the message is a sentence for the operator."""


@dataclass(frozen=True)
class TraceOptions:
    """Where spans go, and of which share of the requests."""

    endpoint: str
    headers_file: str | None
    ca: str | None
    sample: float


@dataclass(frozen=True, kw_only=True)
class RouterOptions:
    """What `llmgw router` was told. One of `listen` and `listen_fds`, or sockets from systemd.

    `worker` tells it from the others on the same state folder. `needs_keys`: the table on disk is of use only if
    it says the same of clients' keys: whoever changed that must not have the old rule for the first moments.
    """

    state: Path
    listen: str | None = None
    listen_fds: tuple[int, ...] = ()
    worker: int = 0
    needs_keys: bool | None = None
    ignore_sigint: bool = False
    settings: str = ""
    """Told to control processes, which know by it whether they would start it otherwise."""
    limits: Limits = field(default_factory=Limits)
    tls: tuple[str, str] | None = None
    """Certificate and key for clients; without them they speak plain HTTP."""
    cors_origins: tuple[str, ...] = ()
    """Whose pages may read answers."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies that are believed what they say of their clients."""
    tracing: TraceOptions | None = None

    @property
    def files(self) -> RouterFiles:
        return RouterFiles(self.state, worker_name(self.worker))


def run_router(options: RouterOptions) -> None:
    """Run until stopped. Raises SentenceError when it cannot start."""
    notifier = take_notifier()
    name = options.files.name
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {name} %(levelname)s %(message)s"
    )
    keep_freed_memory()
    with contextlib.ExitStack() as stack:
        _open_state(options.state)
        stack.enter_context(_lock(options.files.lock))
        tls = _client_tls(options)
        listeners = _listeners(options)
        for sock in listeners:
            stack.enter_context(sock)
        control_socket = stack.enter_context(contextlib.closing(_control_socket(options.files.socket)))
        options = replace(options, limits=_raise_file_limit(options.limits))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(options, listeners, control_socket, tls, notifier))


async def _serve(
    options: RouterOptions,
    listeners: list[socket.socket],
    control_socket: ControlSocket,
    tls: ClientTls | None,
    notifier: Notifier,
) -> None:
    loop = asyncio.get_running_loop()
    spans = _span_export(options.tracing)
    service = Service(
        options.limits,
        new_exchange=_traced(options.tracing.sample, spans) if options.tracing and spans else Exchange,
        cors=Cors(options.cors_origins) if options.cors_origins else None,
        proxies=TrustedProxies(options.trusted_proxies) if options.trusted_proxies else None,
    )
    if spans is not None:
        service.telemetry.spans = lambda: (spans.sent, spans.dropped)
    table_file = TableFile(options.files.table, options.files.table_being_written)
    table = table_file.load()
    if table is not None and options.needs_keys in (None, table.keys_required):
        service.apply(table)
    usage_file = UsageFile(options.files.usage, service.telemetry.usage)
    usage_file.load()
    router_id = uuid.uuid4().hex
    listen = bound_address(listeners[0])
    stopped: asyncio.Future[float] = loop.create_future()

    def stop(drain_s: float) -> None:
        if not stopped.done():
            stopped.set_result(drain_s)

    def hello() -> Hello:
        return Hello(
            router_id=router_id,
            pid=os.getpid(),
            software_version=__version__,
            listen=listen,
            table=service.table.snapshot,
            draining=stopped.done(),
            workers=service.limits.workers,
            parts=service.table.parts(),
            settings=options.settings,
        )

    def open_listeners() -> list[socket.socket]:
        return [] if stopped.done() else listeners

    control = ControlServer(service, table_file, hello=hello, stop=stop, listeners=open_listeners)
    _handle_signals(loop, options, stop, stopped)
    acceptor = Acceptor(service, listeners, tls)
    acceptor.start()
    await control_socket.serve(control.accept)
    background = [loop.create_task(service.sweep()), loop.create_task(control.run())]
    background.append(loop.create_task(control_socket.keep(control.accept)))
    background.append(loop.create_task(usage_file.keep()))
    if tls is not None:
        background.append(loop.create_task(tls.watch()))
    # What is alive now stays: collections need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)

    def status() -> str:
        count = len({model.name for model in service.table.each_model()})
        routes = f"{count} model{'' if count == 1 else 's'}"
        alone = "" if control.connected_now else "; no control process, so routes stay as they are"
        return f"Serves {routes} on {', '.join(map(bound_address, listeners))}{alone}."

    async def tell() -> None:
        while True:
            notifier.status(status())
            await asyncio.sleep(STATUS_EVERY_S)

    notifier.ready(status())
    if notifier.supervised:
        background += [loop.create_task(notifier.feed()), loop.create_task(tell())]
    log.info("serving on %s (pid %d)", ", ".join(map(bound_address, listeners)), os.getpid())
    drain_s = await stopped
    log.info("stopping: no more connections, running requests have %g s", drain_s)
    notifier.stopping(f"Accepts no more; running requests have {drain_s:g} s.")
    await acceptor.close()
    service.draining = True
    control.notify(True)
    await service.drain(drain_s)
    await control.deliver_usage()
    if spans is not None:
        await asyncio.to_thread(spans.stop)
    control.close()
    control_socket.stop()
    for task in background:
        task.cancel()
    usage_file.close()
    await table_file.flush()
    log.info("stopped")


def _handle_signals(
    loop: asyncio.AbstractEventLoop,
    options: RouterOptions,
    stop: Callable[[float], None],
    stopped: asyncio.Future[float],
) -> None:
    def terminate() -> None:
        if stopped.done():
            log.info("stopped at once by a second signal")
            os._exit(0)
        stop(options.limits.drain_s)

    loop.add_signal_handler(signal.SIGTERM, terminate)
    if options.ignore_sigint:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGINT, terminate)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]


def _open_state(state: Path) -> None:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if state.stat().st_mode & 0o077:
            state.chmod(0o700)
    except OSError as error:
        raise StartError(
            f"the state folder {state} cannot be used ({error.strerror}); name another with --state"
        ) from None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held until the process ends, however it ends."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"the lock {path} cannot be opened ({error.strerror})") from None
    try:
        if not _locked(descriptor):
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise StartError(
                f"another router (pid {owner or 'unknown'}) is {path.stem} on the state folder {path.parent}; "
                "stop it first, or give this one another number with --worker or a folder of its own with --state"
            )
        # Only for the sentence above: a full disk must not keep a gateway from coming back.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        else:
            return True


def _span_export(options: TraceOptions | None) -> SpanExport | None:
    """None also where spans cannot be sent: clients are served all the same."""
    if options is None:
        return None
    problem = tracing_problem(options.headers_file, options.ca)
    if problem is not None:
        log.error("nothing is traced: %s", problem)
        return None
    from llmgw.router.tracing.export import SpanExport

    return SpanExport(options.endpoint, headers_file=options.headers_file, ca=options.ca)


def _traced(sample: float, spans: SpanExport) -> Callable[..., Exchange]:
    from llmgw.router.tracing.exchange import TracedExchange
    from llmgw.router.tracing.spans import Tracer

    return partial(TracedExchange, Tracer(sample, spans.take))


def _client_tls(options: RouterOptions) -> ClientTls | None:
    """Raises PkiError when the files cannot be used."""
    if options.tls is None:
        return None
    # Here because cryptography is 15 MB that a router without TLS does not need.
    from llmgw.router.client_tls import ClientTls

    return ClientTls(*options.tls)


def _listeners(options: RouterOptions) -> list[socket.socket]:
    """The sockets to accept from: those of systemd, else the parent's, else one of our own."""
    inherited = systemd_listeners()
    if options.listen_fds:
        inherited = [inherited_listener(descriptor) for descriptor in options.listen_fds]
    if inherited:
        return inherited
    if options.listen is None:
        raise StartError("there is nothing to listen on; give --listen HOST:PORT")
    try:
        split_host_port(options.listen)
    except ValueError as error:
        raise StartError(f"--listen: {error}") from None
    return [open_listener(options.listen, "--listen")]


def _control_socket(path: Path) -> ControlSocket:
    try:
        return ControlSocket(path)
    except OSError as error:
        raise StartError(f"the control socket {path} cannot be made ({error.strerror})") from None


def _raise_file_limit(limits: Limits) -> Limits:
    """Open as many files as this process may; the limits with what that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return limits
    within = replace(limits, files_max=soft)
    wanted, served = limits.share(limits.workers), within.share(limits.workers)
    if served.connections_max < wanted.connections_max:
        log.warning(
            "this process may open %d files, so it serves %d connections instead of %d; raise its limit "
            "(LimitNOFILE=%d under systemd) or lower router.connections_max",
            soft,
            served.connections_max,
            wanted.connections_max,
            wanted.files_needed,
        )
    return within

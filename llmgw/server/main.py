"""`llmgw server`: puts the control plane together, runs it, and ends it in order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
import time
from functools import partial
from pathlib import Path

import structlog

import llmgw
from llmgw.config.errors import SentenceError
from llmgw.config.listeners import bound_address
from llmgw.config.load import load_server_config
from llmgw.config.notify import Notifier, take_notifier
from llmgw.config.server import ServerConfig
from llmgw.fleet.actions import StopRollout
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.findings import Finding
from llmgw.pki.errors import PkiError
from llmgw.pki.expiry import CertificateEnd, certificate_end, certificate_findings
from llmgw.pki.listener import ListenerCertificate
from llmgw.pki.renewal import Renewer
from llmgw.pki.revocation import RevocationList
from llmgw.pki.tls import ServerCertificate, agents_server_context
from llmgw.server.admin.app import create_admin_app
from llmgw.server.admin.backend import AdminError
from llmgw.server.admin_address import address_on_this_host, authority_of
from llmgw.server.admin_file import write_admin_file
from llmgw.server.agents_api import AgentsApi
from llmgw.server.asgi import AsgiServer, serve_asgi
from llmgw.server.backend import Backend
from llmgw.server.catalogs import CatalogError, ruling_catalog, static_endpoints
from llmgw.server.context_lengths import ContextLengths
from llmgw.server.deciding import decide
from llmgw.server.fabrics.watch import FabricWatch
from llmgw.server.figures import send_figures
from llmgw.server.hub import Hub
from llmgw.server.ids import RandomIds
from llmgw.server.limits.readings import watch_limits
from llmgw.server.loop_watch import LoopWatch
from llmgw.server.memory import StoreMemory, known_keys, known_lives, known_nodes
from llmgw.server.own_key import OwnKey
from llmgw.server.pages.remembered import VIEWS_S_MAX
from llmgw.server.peer_protocol import PeerHttpToolsProtocol
from llmgw.server.prober import Prober
from llmgw.server.rollback import roll_back
from llmgw.server.router_findings import tracing_findings
from llmgw.server.routers import Routers
from llmgw.server.seams import Clock
from llmgw.server.store.records import Revocation
from llmgw.server.store.store import Store
from llmgw.server.unit_status import tell_status, unit_status
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from llmgw.server.usage_book import UsageBook

log = structlog.get_logger("server")

CERTIFICATE_LOOK_S = 2.0
STOP_GRACE_S = 1.0
SIGHUP = "SIGHUP"
"""In whose name history and audit log have what the signal does."""


def run_server(config: ServerConfig, config_path: Path | None) -> None:
    """Run until SIGTERM or SIGINT. Raises SentenceError when it cannot start."""
    notifier = take_notifier()  # before routers are started, which would inherit it
    asyncio.run(_ControlProcess(config, config_path, notifier).run())


class _ControlProcess:
    def __init__(self, config: ServerConfig, config_path: Path | None, notifier: Notifier) -> None:
        self._config = config
        self._notifier = notifier
        self._config_path = config_path
        self._stop = asyncio.Event()
        self._servers: list[AsgiServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._certificate: ServerCertificate | None = None
        self._client_certificate: ListenerCertificate | None = None
        self._revocations: RevocationList | None = None
        self._stopped_rollouts: asyncio.Queue[StopRollout] = asyncio.Queue()

    async def run(self) -> None:
        state = Path(self._config.state)
        store = await Store.open(state, time.time())
        usage = UsageBook(store.usage, keep_s=self._config.usage.keep, wall=time.time)
        routers = Routers(self._config, usage)
        feeding = asyncio.create_task(self._notifier.feed(), name="watchdog")
        try:
            await self._serve(store, routers, usage, state)
        finally:
            self._notifier.stopping("Ends; engines and routers that are units go on.")
            for server in self._servers:
                await server.stop(STOP_GRACE_S)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await routers.stop(self._config.router.drain_grace)
            usage.write()
            await store.close()
            feeding.cancel()

    async def _serve(self, store: Store, routers: Routers, usage: UsageBook, state: Path) -> None:
        config = self._config
        if config.tls is not None:
            # The routers use it; here it is looked at for those who ask how things are.
            names = ("tls.cert", "tls.key")
            self._client_certificate = ListenerCertificate(config.tls.cert, config.tls.key, names)
        routers.claim()
        revision, catalog, differs = await ruling_catalog(store, config.catalog, time.time())
        if differs is not None and "models" in config.model_fields_set:
            log.warning(differs)
        own_key = OwnKey.made()
        hub = Hub(
            epoch=store.epoch,
            catalog=catalog,
            settings=_settings(config),
            clock=Clock(monotonic=time.monotonic, wall=time.time),
            ids=RandomIds(),
            memory=StoreMemory(store),
            publish=routers.publish,
            static=static_endpoints(catalog, self._config_path),
            known_nodes=known_nodes(store, time.monotonic()),
            known_lives=known_lives(store),
            roll_back=self._stopped_rollouts.put_nowait,
            api_keys=known_keys(store, config.key_rule, own_key.route),
        )
        usage.known = lambda: {model.name for model in hub.catalog.models}
        hub.start_settling()
        self._tasks.append(asyncio.create_task(decide(hub), name="decide"))
        store.record("server", "server", "started", time.time(), reason=f"llmgw {llmgw.__version__}")
        upgrades = Upgrades(hub, store, Releases(state), release_key=Path(config.release_key))
        await upgrades.restore()
        watch = LoopWatch()
        self._tasks.append(asyncio.create_task(watch.run(), name="loop watch"))
        backend = Backend(
            hub,
            store,
            listen=config.listen,
            config_path=self._config_path,
            revision=revision,
            started_at=time.time(),
            routers=routers.names,
            router_views=routers.views,
            tokens=lambda: usage.tokens,
            problems=lambda: [
                *routers.findings(),
                *hub.keys.findings(config.listen, time.time()),
                *self._certificate_findings(),
                *tracing_findings(config.router.tracing),
            ],
            certificates=self._certificate_ends,
            upgrades=upgrades,
            loop_pause=watch.longest,
            require_fabric_test_s=config.placement.require_fabric_test,
            own_key=own_key,
            tls_cert=config.tls.cert if config.tls is not None else None,
        )
        fabrics = FabricWatch(
            hub,
            store.fabric_watch,
            managers_interval_s=config.fabrics.managers_interval,
            map_interval_s=config.fabrics.map_interval,
            tests=backend.fabric_tests,
        )
        await self._listen(hub, store, backend, state)
        await routers.start(hub)
        hub.start_deciding()
        self._tasks += [
            asyncio.create_task(Prober(hub).run(), name="prober"),
            asyncio.create_task(ContextLengths(hub).run(), name="context lengths"),
            asyncio.create_task(watch_limits(hub), name="limits"),
            asyncio.create_task(send_figures(hub, routers.send_figures), name="figures"),
            asyncio.create_task(fabrics.run(), name="fabrics"),
            asyncio.create_task(self._refresh_certificates(store), name="certificates"),
            asyncio.create_task(self._roll_back(backend, store), name="rollbacks"),
            asyncio.create_task(backend.fabric_tests.run(), name="fabric tests"),
            asyncio.create_task(backend.keys.run(), name="keys"),
            asyncio.create_task(upgrades.run(), name="upgrades"),
        ]
        if self._notifier.supervised:
            telling = tell_status(self._notifier, hub, config.listen)
            self._tasks.append(asyncio.create_task(telling, name="status"))
        self._handle_signals(backend)
        # What starting has made (modules, above all) lives as long as the process. Out of the garbage collector's
        # sight, a full collection no longer holds the loop up for some 90 ms.
        gc.collect()
        gc.freeze()
        where = ", ".join(routers.names()) or config.listen
        self._notifier.ready(unit_status(hub, config.listen))
        log.info("serving", models=len(catalog.models), catalog_revision=revision, router=where)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait([stopped, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception() or RuntimeError(task.get_name())
        hub.end_sessions()
        backend.audit.write_counts()
        store.record("server", "server", "stopped", time.time())
        log.info("stopping")

    async def _listen(self, hub: Hub, store: Store, backend: Backend, state: Path) -> None:
        admin = self._config.admin
        context = _admin_context(admin.tls.cert, admin.tls.key) if admin.tls is not None else None
        app = create_admin_app(backend, secure=context is not None, views_s=VIEWS_S_MAX)
        server, sockets = serve_asgi(app, admin.listen, ssl_context=context, setting="admin.listen")
        server.start(sockets)
        await server.wait_started()
        self._servers.append(server)
        cert, agents = (admin.tls.cert if admin.tls is not None else None), self._config.agents.tls
        url = address_on_this_host(bound_address(sockets[0]), cert)
        ca = authority_of(cert, agents.ca) if cert is not None and agents is not None else None
        await write_admin_file(state, store, url, ca, time.time())
        log.info("admin API", url=url)
        if self._config.agents.tls is not None:
            await self._listen_for_agents(hub, store, backend.upgrades)
        else:
            log.info("agents.tls is not set: no agents, only static endpoints are served")

    async def _listen_for_agents(self, hub: Hub, store: Store, upgrades: Upgrades) -> None:
        tls = self._config.agents.tls
        assert tls is not None
        agents_context = agents_server_context(tls)
        self._certificate = ServerCertificate(agents_context, tls)
        if tls.revocations is not None:
            remembered = {item.serial: item.revoked_at for item in store.revocations()}
            self._revocations = RevocationList(tls.revocations, tls.ca, remembered=remembered)
            self._remember_revocations(store)
        renewer = (
            Renewer.from_files(tls.renewal_cert, tls.renewal_key)
            if tls.renewal_cert is not None and tls.renewal_key is not None
            else None
        )
        api = AgentsApi(
            hub,
            clock=hub.clock,
            upgrades=upgrades,
            revocations=self._revocations,
            renewer=renewer,
            server_version=llmgw.__version__,
            removed_at=store.removed_at,
        )
        agents, agent_sockets = serve_asgi(
            api.app(),
            self._config.agents.listen,
            ssl_context=agents_context,
            http=PeerHttpToolsProtocol,
            setting="agents.listen",
            connections_max=4096,
        )
        agents.start(agent_sockets)
        await agents.wait_started()
        self._servers.append(agents)
        log.info("agents", url=f"https://{bound_address(agent_sockets[0])}")

    async def _roll_back(self, backend: Backend, store: Store) -> None:
        """Take stopped rollouts back, one after the other."""
        while True:
            stopped = await self._stopped_rollouts.get()
            name = f"{stopped.model}/{stopped.profile}"
            try:
                number = await roll_back(backend.catalog, store, stopped)
            except (SentenceError, AdminError) as error:
                log.error("a rollout is stopped, but not taken back", profile=name, reason=str(error))
                continue
            log.warning("a rollout is taken back", profile=name, catalog_revision=number, reason=stopped.reason)

    def _remember_revocations(self, store: Store) -> None:
        """Keep what the authority's list says, so that a list that is lost un-revokes nobody."""
        if self._revocations is None:
            return
        kept = {item.serial for item in store.revocations()}
        store.add_revocations(
            Revocation(serial=serial, revoked_at=at)
            for serial, at in self._revocations.revoked().items()
            if serial not in kept
        )

    async def _refresh_certificates(self, store: Store) -> None:
        """Take new certificates and keys when their files change, without a restart."""
        while True:
            await asyncio.sleep(CERTIFICATE_LOOK_S)
            if self._certificate is not None and self._certificate.refresh(time.time()):
                log.info("the agents' endpoint has a new certificate")
            if self._client_certificate is not None:
                self._client_certificate.refresh(time.time())
            self._remember_revocations(store)

    def _certificate_files(self) -> dict[str, str]:
        """Kind → path of every certificate that this process lives by."""
        tls, admin = self._config.agents.tls, self._config.admin.tls
        files = {"server": tls.cert, "authority": tls.ca} if tls is not None else {}
        if tls is not None and tls.renewal_cert is not None:
            files["renewal"] = tls.renewal_cert
        if self._config.tls is not None:
            files["gateway"] = self._config.tls.cert
        return files if admin is None else {**files, "admin": admin.cert}

    def _certificate_ends(self) -> list[CertificateEnd]:
        ends = []
        for kind, path in self._certificate_files().items():
            try:
                ends.append(certificate_end(path, kind))
            except PkiError:
                continue  # a finding says it, and there is no number to tell
        return ends

    def _certificate_findings(self) -> list[Finding]:
        found = certificate_findings(dict.fromkeys(self._certificate_files().values()), time.time())
        if self._certificate is not None:
            found += self._certificate.findings()
        if self._client_certificate is not None:
            found += self._client_certificate.findings()
        if self._revocations is not None:
            found += self._revocations.findings()
        return found

    def _handle_signals(self, backend: Backend) -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if self._stop.is_set():
                # Asked twice: whoever asks does not want to wait for streams.
                os._exit(130)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(self._reload(backend))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)

    async def _reload(self, backend: Backend) -> None:
        """SIGHUP: `models:` become the next revision, unless that would stop too much unasked."""
        self._notifier.reloading()
        try:
            await self._take_models(backend)
        finally:
            self._notifier.ready()

    async def _take_models(self, backend: Backend) -> None:
        audit = partial(
            backend.audit.record,
            by=SIGHUP,
            method="SIGHUP",
            route=str(self._config_path or ""),
            subject="catalog",
        )
        try:
            loaded = load_server_config(self._config_path, os.environ)
            if "models" not in loaded.model_fields_set:
                raise CatalogError(
                    f"{self._config_path or 'the configuration'} does not say `models:`, so there are none to "
                    "take; `models: []` says that there should be none"
                )
            catalog = loaded.catalog
            number = await backend.catalog.change(lambda _: catalog, SIGHUP, "models of the configuration")
        except (SentenceError, AdminError) as error:
            audit(status=409, message=str(error))
            remedy = f"llmgw ctl apply {self._config_path} shows what it would do, and asks"
            log.error("the configuration's models are not taken", reason=str(error), remedy=remedy)
            return
        if number is None:
            audit(status=200, message="the configuration's models are those that rule already")
        else:
            audit(status=200, message=f"catalog revision {number} rules")
            log.info("the configuration's models rule", catalog_revision=number)


def _settings(config: ServerConfig) -> FleetSettings:
    return FleetSettings(
        lost_after_s=config.liveness.lost_after,
        unreachable_limit_s=config.liveness.unreachable_limit,
        settle_s=config.liveness.settle,
        drain_grace_s=config.router.drain_grace,
        probe_timeout_s=config.liveness.probe_timeout,
        stall_after_s=config.liveness.stall_after,
        stalled_limit_s=config.liveness.stalled_limit,
        probe_interval_s=config.liveness.probe_interval,
        suspect_window_s=config.liveness.suspect_window,
        port_down_suspend_s=config.liveness.port_down_suspend,
        port_down_fail_s=config.liveness.port_down_fail,
    )


def _admin_context(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise SentenceError(
            f"admin.tls: {cert} and {key} cannot be used ({error}); they must be a PEM certificate and its key"
        ) from None
    return context

"""`llmgw agent`: puts the parts together and keeps them going until a signal ends it, and not its engines."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from llmgw import __version__
from llmgw.agent.certificates import CertificateError, CertificateKeeper
from llmgw.agent.conversation import Life, SystemClock
from llmgw.agent.examining import SlowFindings
from llmgw.agent.fabric_changes import FabricChanges
from llmgw.agent.fabric_proof import FabricProof, data_counters
from llmgw.agent.fabric_test.ends import BandwidthEnds
from llmgw.agent.fabric_tools import FabricTools
from llmgw.agent.gpu_memory import GpuMemory
from llmgw.agent.held import warning_findings
from llmgw.agent.help_answers import HelpAnswers
from llmgw.agent.https import HttpsTransport
from llmgw.agent.inventory import InventoryReader
from llmgw.agent.left_behind import LeftBehinds
from llmgw.agent.loop import AgentLoop
from llmgw.agent.metrics.exposition import AgentMetrics
from llmgw.agent.metrics.link import Link
from llmgw.agent.metrics.listener import MetricsListener
from llmgw.agent.only_one import claim_node
from llmgw.agent.ports import count_free
from llmgw.agent.processes import boot_id
from llmgw.agent.scopes import find_scopes
from llmgw.agent.supervisor import Supervisor, now_boot_s, real_work_dir
from llmgw.agent.upgrade.trial import Trial
from llmgw.agent.upgrade.upgrader import EXIT_RESTART, INSTALLED_BELOW_ENV, Upgrader, state_folder
from llmgw.agent.upgrade.upgrades import OwnUpgrades
from llmgw.config.agent import AgentConfig
from llmgw.config.errors import SentenceError
from llmgw.config.notify import Notifier, take_notifier
from llmgw.engines.offers import engine_offers
from llmgw.hardware.engine_user import EngineUserError, find_account
from llmgw.messages.agent import Inventory
from llmgw.messages.findings import Finding
from llmgw.pki.expiry import CertificateEnd

log = structlog.get_logger("agent")

READY_WITHIN_S = 10.0
"""After its first try to reach the server, or so long without an outcome, the agent is ready: with a server that
does not answer it keeps its engines just the same."""


class AgentError(SentenceError):
    """The agent cannot start; the message is a sentence."""


def run_agent(
    config: AgentConfig, examine: Callable[[], list[Finding]] = list, *, check: Sequence[str] = ("--version",)
) -> None:
    """Run this node's agent until SIGTERM or SIGINT. `examine` looks at this node now and then (it may block),
    and what it finds rides to the server. `check` is what another version of the program is asked with whether it
    takes this configuration.

    Raises SentenceError when it cannot start, and SystemExit with EXIT_RESTART to be started again as another
    version.
    """
    notifier = take_notifier()  # before anything is started that would inherit it
    lock = lock_work_dir(config.supervisor.work_dir)
    claim = claim_node(config.node_id, config.server, os.geteuid())
    try:
        if isinstance(claim, int):
            raise AgentError(
                f"an agent of {config.node_id} (pid {claim}) runs here with another work dir; stop it, "
                "and start this one with the same supervisor.work_dir, where its engines are described"
            )
        restart = asyncio.run(_run(config, examine, check, notifier))
    finally:
        if isinstance(claim, socket.socket):
            claim.close()
        os.close(lock)
    if restart:
        raise SystemExit(EXIT_RESTART)


def lock_work_dir(work_dir: str) -> int:
    """Make the work dir and lock it for this process; the descriptor that holds the lock. Raises AgentError."""
    path = Path(work_dir) / "agent.lock"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise AgentError(
            f"the work dir {work_dir} cannot be used: {exc.strerror}; set supervisor.work_dir in agent.yaml to a "
            "folder that this user may write"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise AgentError(
            f"another agent (pid {holder}) works in {work_dir}; stop it, or give this one a supervisor.work_dir "
            "of its own"
        ) from None
    # Only for the sentence above: on a full disk an agent without a name is better than none.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def own_certificate_findings(config: AgentConfig, now: float) -> list[Finding]:
    """What is wrong, or soon will be, with this node's certificate and root; `where` begins with the node id."""
    from llmgw.pki.expiry import certificate_findings

    return _of_node(config, certificate_findings([config.tls.cert, config.tls.ca], now))


def own_certificate_ends(config: AgentConfig) -> list[CertificateEnd]:
    """When this node's certificate and root end, of those that can be read; findings tell of the others."""
    from llmgw.pki.errors import PkiError
    from llmgw.pki.expiry import certificate_end

    ends = []
    for kind, path in (("node", config.tls.cert), ("authority", config.tls.ca)):
        with contextlib.suppress(PkiError):
            ends.append(certificate_end(path, kind))
    return ends


def _of_node(config: AgentConfig, findings: Sequence[Finding]) -> list[Finding]:
    return [msgspec.structs.replace(finding, where=f"{config.node_id} {finding.where}") for finding in findings]


async def _run(
    config: AgentConfig, examine: Callable[[], list[Finding]], check: Sequence[str], notifier: Notifier
) -> bool:
    """True when this agent is to be started again."""
    # Here and not above, so that the parts can be tested without each other.
    from llmgw.engines import registry
    from llmgw.hardware.gpus import read_gpus
    from llmgw.hardware.interfaces import AddressError, choose_address, interface_of
    from llmgw.hardware.inventory import NodeReader
    from llmgw.hardware.ports import read_ports
    from llmgw.pki.errors import PkiError
    from llmgw.pki.files import belongs_to, install_pair
    from llmgw.pki.renewal import make_csr, renew_after
    from llmgw.pki.tls import agent_context
    from llmgw.pki.tls_errors import explain_connection

    def context() -> ssl.SSLContext:
        try:
            return agent_context(config.tls)
        except PkiError as exc:
            raise CertificateError(str(exc)) from None

    def install(cert_pem: str, key_pem: str) -> None:
        try:
            fits = belongs_to(
                load_pem_private_key(key_pem.encode(), None), load_pem_x509_certificate(cert_pem.encode())
            )
        except ValueError as exc:
            raise CertificateError(f"the server sent no certificate that can be read: {exc}") from None
        if not fits:
            raise CertificateError("the server sent a certificate for another key than the one just made")
        install_pair(config.tls.cert, config.tls.key, cert_pem, key_pem)

    def renewal_due_s(cert_pem: str) -> float:
        try:
            return renew_after(cert_pem)
        except PkiError as exc:
            raise CertificateError(f"{config.tls.cert}: {exc}") from None

    ended, restarts = asyncio.Event(), False

    def restart() -> None:
        nonlocal restarts
        restarts = True
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    try:
        address = await asyncio.to_thread(choose_address, config)
        interface = await asyncio.to_thread(interface_of, address)
        transport = HttpsTransport(config.server, context, explain=explain_connection)
    except (CertificateError, AddressError) as exc:
        raise AgentError(str(exc)) from None
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename else ""
        raise AgentError(f"{exc.strerror or exc}{where}; see tls and mgmt_addr in agent.yaml") from None

    account, refusal = None, None
    try:
        account = find_account(config.supervisor.engine_user, os.geteuid())
    except EngineUserError as exc:
        # Not the end of the agent: what runs is kept, and the server is told why nothing new starts here.
        refusal = str(exc)
        log.error("no engine is started", reason=refusal)
    scopes = await asyncio.to_thread(find_scopes, real_work_dir(config))

    left_behinds = LeftBehinds(config.node_id, real_work_dir(config))
    gpu_memory = GpuMemory(lambda: read_gpus(config.discovery), work_dir=real_work_dir(config))

    reader = NodeReader(config)
    slow_findings = SlowFindings(examine)
    fabric_changes = FabricChanges(config.node_id)

    def read() -> Inventory:
        claims = gpu_memory.claims()
        found = reader.read()
        fabric_changes.look(found.fabrics)
        gpus, left_findings = left_behinds.take_out(found.gpus)
        judgement = gpu_memory.judge(gpus, found.processes, claims)
        engines = engine_offers(registry.offered(config), config)
        if refusal is not None:
            engines = [msgspec.structs.replace(offer, problem=refusal) for offer in engines]
        findings = [*left_findings, *_of_node(config, judgement.findings), *found.findings]
        findings += own_certificate_findings(config, time.time())
        live = supervisor.live_records()
        findings += proof.look(live, found.ports, found.fabrics) + warning_findings(live, config.node_id)
        findings += slow_findings.latest()
        findings += _of_node(config, metrics.findings()) if metrics is not None else []
        return Inventory(
            gpus=judgement.gpus,
            ports=found.ports,
            fabrics=found.fabrics,
            engines=engines,
            free_ports=count_free(config.supervisor.ports, address, held=supervisor.ports_held()),
            port_range=config.supervisor.port_range,
            findings=findings,
        )

    inventory = InventoryReader(read, node_id=config.node_id)
    supervisor = Supervisor(
        config=config,
        address=address,
        adapter=registry.adapter,
        inventory=inventory,
        gpu_memory=gpu_memory,
        mgmt_interface=config.mgmt_interface or interface,
        account=account,
        scopes=scopes,
        refusal=refusal,
        carried=lambda: data_counters(read_ports(Path(config.discovery.ib_root))),
    )
    proof = FabricProof(node_id=config.node_id, read_log=supervisor.read_output)
    bandwidth = BandwidthEnds(
        config,
        address,
        ports_held=supervisor.ports_held,
        root=os.geteuid() == 0,
        env=os.environ,
        work_dir=real_work_dir(config),
    )
    randomness = random.SystemRandom()
    folder = state_folder(os.environ, config.supervisor.work_dir)
    upgrader = Upgrader(
        folder=folder,
        root=os.environ.get(INSTALLED_BELOW_ENV) or None,
        release_key=Path(config.release_key),
        oldest=config.oldest_release,
        version=__version__,
        check=check,
        environ=os.environ,
        transport=transport,
        session=lambda: conversation.session,
        clock=SystemClock(),
        restart=restart,
    )

    link = Link(time.monotonic)

    def contact(trouble: str | None) -> None:
        link.contact(trouble)
        count = len(supervisor.live_records())
        engines = f"{count} shard{'' if count == 1 else 's'}"
        if trouble is None:
            notifier.ready(f"Speaks with {config.server} as {config.node_id}; {engines} here.")
        else:
            notifier.ready(
                f"Does not get through to {config.server} and goes on trying; {engines} here: {trouble}"
            )

    conversation = AgentLoop(
        node_id=config.node_id,
        life=Life(boot_id=boot_id(), instance=uuid.uuid4().hex, instance_started_at=now_boot_s()),
        transport=transport,
        keeper=supervisor,
        inventory=inventory.fresh,
        engine_help=HelpAnswers(config, os.environ, account, refusal),
        fabric_tools=FabricTools(config),
        bandwidth=bandwidth,
        upgrades=OwnUpgrades(
            upgrader,
            Trial(folder, now_s=time.monotonic, later=asyncio.get_running_loop().call_later, restart=restart),
        ),
        clock=SystemClock(),
        randomness=randomness,
        heartbeat_interval_s=config.heartbeat_interval,
        reconnect_base_s=config.reconnect_base,
        reconnect_max_s=config.reconnect_max,
        contact=contact,
    )
    metrics = None
    if config.metrics is not None:
        told = AgentMetrics(
            config.node_id,
            link=link,
            connected=lambda: conversation.session is not None,
            inventory=inventory.latest,
            held=supervisor.held,
            failed=lambda: supervisor.failures,
            certificates=lambda: own_certificate_ends(config),
            wall=time.time,
        )
        metrics = MetricsListener(config.metrics, told)
    certificates = CertificateKeeper(
        node_id=config.node_id,
        transport=transport,
        read=Path(config.tls.cert).read_text,
        make_csr=make_csr,
        renew_after=renewal_due_s,
        install=install,
        reload=transport.reload,
        now_s=time.time,
        randomness=randomness,
    )
    log.info(
        "agent starts",
        node=config.node_id,
        address=address,
        server=config.server,
        engine_user=account.name if account else None,
        scopes=scopes is not None,
    )
    await bandwidth.begin()
    await supervisor.adopt()
    tasks = [asyncio.create_task(conversation.run()), asyncio.create_task(certificates.run())]
    if metrics is not None:
        tasks.append(asyncio.create_task(metrics.run()))
    feeding = asyncio.create_task(notifier.feed())
    asyncio.get_running_loop().call_later(
        READY_WITHIN_S, notifier.ready, f"Has not heard from {config.server} yet; engines are kept meanwhile."
    )
    waiting: asyncio.Task[Any] = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()  # neither returns: this raises what went wrong
    finally:
        notifier.stopping("Ends; its engines go on.")
        for task in [*tasks, waiting]:
            task.cancel()
        await asyncio.gather(*tasks, waiting, return_exceptions=True)
        await supervisor.close()
        await transport.close()
        feeding.cancel()
    log.info("agent ends; its engines go on", node=config.node_id)
    return restarts

"""Faults of the catalog, of certificates and of the control host."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from llmgw.pki.authority import Authority
from llmgw.sim.demo_files import write_private
from llmgw.sim.engine_switch import switch
from llmgw.sim.planted.fault import Fault
from llmgw.sim.planted.site import Site, model

WAITING = 5
"""Requests for an engine that does one at a time."""
CERTIFICATE_DAYS, DAYS_LEFT = 90.0, 3.0


def _catalog(site: Site) -> None:
    with site.server_yaml() as config:
        config["models"] = [
            model("demo/tcp", "ib-a", nodes=2, args=["--nccl-log", "socket"]),
            model("demo/pair", "ib-b", nodes=2, rendezvous_timeout="30s"),
            model("demo/hung", "ib-b"),
            model("demo/gone", "ib-b"),
            model("demo/rolled", "ib-b", max_failures=1),
            model("demo/stuck", "ib-c", env={"DEMO_TOKEN": "not-so-secret"}),
            model("demo/busy", "ib-b", limits={"waiting": 1}, args=["--max-num-seqs", "1"]),
            model("demo/lost", "ib-e"),
            model("demo/cut", "ib-f"),
            model("demo/broken", args=["--fail-load"]),
            model("demo/huge", gpus_per_node=16),
        ]


def _expiring(site: Site) -> None:
    authority = Authority.open(site.fleet.folder / "pki")
    issued_at = time.time() - (CERTIFICATE_DAYS - DAYS_LEFT) * 86400
    issued = authority.issue_server([site.fleet.options.host, "localhost"], issued_at, days=CERTIFICATE_DAYS)
    write_private(site.fleet.folder / "server.pem", issued.cert_pem)
    write_private(site.fleet.folder / "server-key.pem", issued.key_pem)


def _asked_for_none(site: Site) -> None:
    with site.server_yaml() as config:
        config["auth"] = "none"


async def _key_made(site: Site) -> None:
    await site.fleet.post("keys", {"name": "alice"})


async def _rollout(site: Site) -> None:
    await site.replica("demo/rolled")
    site.fleet.change_arguments("demo/rolled", ["--fail-load"])


async def _stuck(site: Site) -> None:
    await site.replica("demo/stuck")
    await site.fleet.post("nodes/node05/drain", {})


async def _hung(site: Site) -> None:
    replica = await site.replica("demo/hung")
    await asyncio.to_thread(switch, replica["endpoint"], {"core_dead": True})
    site.leave_waiting("demo/hung")


async def _busy(site: Site) -> None:
    replica = await site.replica("demo/busy")
    # One at a time, and slowly, but never so slowly that it counts as hung.
    await asyncio.to_thread(switch, replica["endpoint"], {"tokens_per_s": 1.0})
    for _ in range(WAITING):
        site.leave_waiting("demo/busy", tokens=64)


async def _mute(site: Site) -> None:
    replica = await site.replica("demo/tcp")
    await asyncio.to_thread(switch, replica["endpoint"], {"metrics_silent": True})


async def _revocations(site: Site) -> None:
    (site.fleet.folder / "pki" / "revoked.pem").write_text("this is no list\n")


async def _foreign_pair(site: Site) -> None:
    (site.fleet.folder / "server-key.pem").write_text("this is no key\n")


async def _router(site: Site) -> None:
    os.kill(min(site.fleet.routers()), signal.SIGSTOP)


FAULTS = [
    Fault(name="nothing can hold a profile", check="profile-unplaced", where="demo/huge", before=_catalog),
    Fault(name="… nor replace what was lost", check="profile-unplaced", where="demo/lost"),
    Fault(name="an engine fails to start", check="profile-failing", where="demo/broken"),
    Fault(name="a secret in the catalog", check="profile-warning", where="demo/stuck"),
    Fault(name="a certificate ends soon", check="certificate-expiring", where="", before=_expiring),
    Fault(
        name="keys that nobody asks for",
        check="api-keys-not-asked-for",
        where="",
        before=_asked_for_none,
        running=_key_made,
    ),
    Fault(name="a changed profile fails", check="rollout-taken-back", where="demo/rolled", running=_rollout),
    Fault(name="a drain cannot end", check="move-stuck", where="demo/stuck", running=_stuck),
    Fault(name="an engine hangs", check="replica-stalled", where="demo/hung", running=_hung),
    Fault(name="an engine's metrics are silent", check="engine-metrics-silent", where="tcp-", running=_mute),
    Fault(name="a model's limit is crossed", check="limit-waiting", where="demo/busy", running=_busy),
    Fault(name="the revocation list is damaged", check="revocation-list", where="", running=_revocations),
    Fault(name="a new key cannot be used", check="server-certificate", where="", running=_foreign_pair),
    # The last: a drain waits for what a silent router does not acknowledge.
    Fault(name="a router stands still", check="router-silent", where="", running=_router),
]

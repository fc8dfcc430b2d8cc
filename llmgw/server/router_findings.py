"""What is wrong with the routers, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import llmgw
from llmgw.config.addresses import split_host_port
from llmgw.config.server import ServerConfig
from llmgw.config.tracing import Tracing, tracing_problem
from llmgw.messages.findings import Finding
from llmgw.messages.router_files import ROUTER_LOG
from llmgw.server.router_process import router_settings
from llmgw.server.router_worker import RouterView


def router_findings(views: Sequence[RouterView], config: ServerConfig, wanted: int) -> list[Finding]:
    """Of all workers that live. `wanted` is how many the server keeps; 0: they are units of their own."""
    log = Path(config.state) / ROUTER_LOG
    serving = [view for view in views if view.state == "serving"]
    found = [_silent(view, log) for view in views if view.state == "silent"]
    if not serving and not found:
        found.append(_missing(config, wanted, log))
    elif len(serving) + len(found) < wanted:
        found.append(
            Finding(
                check="router-missing",
                severity="warning",
                where="router",
                what=f"{len(serving)} of {wanted} routers serve; the others are started",
                remedy=f"if this stays, read {log}",
            )
        )
    for view in serving:
        found += _elsewhere(view, config, wanted)
        found += _version(view, wanted)
        found += _settings(view, config, wanted)
    return found


def tracing_findings(tracing: Tracing) -> list[Finding]:
    """What keeps the routers of this host from sending spans, though the configuration says where to."""
    problem = tracing_problem(tracing.headers_file, tracing.ca) if tracing.endpoint is not None else None
    if problem is None:
        return []
    return [
        Finding(
            check="tracing-impossible",
            severity="warning",
            where="router",
            what=f"router.tracing.endpoint is {tracing.endpoint}, and nothing is traced: {problem}",
            why="requests are served all the same",
            remedy="mend it and restart the routers, which look at it as they start; or take router.tracing out",
        )
    ]


def _silent(view: RouterView, log: Path) -> Finding:
    return Finding(
        check="router-silent",
        severity="error",
        where=view.name,
        what="the router's process lives and does not answer, so route changes do not reach it",
        why="if it serves at all, then by the table it has",
        remedy=f"if it is stopped, kill -CONT {view.pid}; read {log}",
    )


def _missing(config: ServerConfig, wanted: int, log: Path) -> Finding:
    if wanted:
        return Finding(
            check="router-missing",
            severity="error",
            where="router",
            what="no router runs, so nobody is served; another is started",
            remedy=f"if this stays, read {log}",
        )
    return Finding(
        check="router-missing",
        severity="error",
        where="router",
        what=f"no router runs on the state folder {config.state}, so nobody is served",
        why="router.workers is 0: this server starts none",
        remedy="start their units (systemctl start 'llmgw-router@*'), or raise router.workers",
    )


def _elsewhere(view: RouterView, config: ServerConfig, wanted: int) -> list[Finding]:
    host, port = split_host_port(config.listen)
    if not port or split_host_port(view.listen)[1] == port:
        return []
    remedy = "it is told to finish as soon as another serves in its place"
    if not wanted:
        remedy = "make its socket unit and listen say the same"
    return [
        Finding(
            check="router-elsewhere",
            severity="warning",
            where=view.name,
            what=f"the router (pid {view.pid}) listens on {view.listen}, the configuration says {host}:{port}",
            why="it was started with another configuration",
            remedy=remedy,
        )
    ]


def _version(view: RouterView, wanted: int) -> list[Finding]:
    if view.version == llmgw.__version__:
        return []
    remedy = f"it is told to finish as soon as another serves in its place; if this stays, kill {view.pid}"
    if not wanted:
        remedy = f"restart its unit (systemctl restart llmgw-router@{view.name.removeprefix('router-')})"
    return [
        Finding(
            check="router-version",
            severity="warning",
            where=view.name,
            what=f"the router (pid {view.pid}) is version {view.version}, this server {llmgw.__version__}",
            remedy=remedy,
        )
    ]


def _settings(view: RouterView, config: ServerConfig, wanted: int) -> list[Finding]:
    """Only units keep theirs: what this server started otherwise is replaced by itself."""
    if wanted or view.settings in ("", router_settings(config)):
        return []
    return [
        Finding(
            check="router-settings",
            severity="warning",
            where=view.name,
            what=f"the router (pid {view.pid}) was started with other settings than the configuration has now",
            why="its unit keeps tls, router.cors, router.trusted_proxies, router.tracing and the limits of when "
            "it was made",
            remedy="`llmgw server install` makes the units anew and restarts the routers, one after the other",
        )
    ]

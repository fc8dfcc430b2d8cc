"""`llmgw server install`: what makes this machine the control host, one step after the other.

Each step looks at what is there and says what it would do about it, so that a second run does nothing, an
interrupted one is completed by the next, and a dry run is the same walk without the doing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.config.addresses import split_host_port
from llmgw.config.server import ServerConfig
from llmgw.onboarding import control_files, control_services, control_units
from llmgw.onboarding.control_credentials import Credentials
from llmgw.onboarding.control_program import program
from llmgw.onboarding.local_host import Action, ControlHostError, LocalHost
from llmgw.release.layout import SERVER_UNIT


@dataclass(frozen=True, kw_only=True)
class ControlWish:
    """What was asked for. None is what was not said: then what is there stays, else a default is taken."""

    hosts: tuple[str, ...] = ()
    """Names and addresses that agents dial; the server's certificate is for them."""
    own_hosts: tuple[str, ...] = ()
    """This machine's own, which are taken as far as the authority may sign for them."""
    own_name: str = ""
    """This machine's full name, whose domain a new authority may sign for."""
    listen: str | None = None
    """The model API's address."""
    routers: int | None = None
    binary: Path | None = None
    """A file of a release. None: the program that runs is the one that is installed."""
    credentials: Path | None = None
    """A folder with what the authority of another host issued for this server. None: the authority is here."""


@dataclass(kw_only=True)
class Installed:
    """What came of it. `changed` are the actions that were carried out (of a dry run: that would be)."""

    listen: str
    routers: int
    agents_port: int | None
    hosts: list[str] = field(default_factory=list)
    authority_is_here: bool = True
    """Whether nodes' certificates can be issued on this host."""
    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def install(
    wish: ControlWish,
    host: LocalHost,
    *,
    load: Callable[[Path], ServerConfig],
    router_arguments: Callable[[ServerConfig], list[str]],
    now: float,
    dry_run: bool,
    say: Callable[[str], None],
) -> Installed:
    """Make `host` the control host. `say` hears of each action just before it is carried out.

    `load` reads a server.yaml (raises ConfigError); `router_arguments` is how a server with a configuration would
    start its routers, without what tells one of them from another. Raises SentenceError; run again, it goes on
    where it failed.
    """
    host.check(dry_run)
    credentials = Credentials(
        host,
        now,
        hosts=wish.hosts,
        own_hosts=wish.own_hosts,
        own_name=wish.own_name,
        brought=wish.credentials,
    )
    credentials.check()
    control_files.check_user(host)
    config, text = control_files.configuration(
        wish.listen, host, load, renews=credentials.renews, revocations=credentials.revocations
    )
    units = control_units.Units(
        host,
        listen=config.listen,
        routers=wish.routers if wish.routers is not None else control_units.routers_until_now(host),
        arguments=router_arguments(config),
    )
    units.socket_text()  # raises for what systemd cannot take
    control_services.refuse_addresses_of_others(host, config)
    control_services.refuse_busy_ports(host, config)
    has_agents = config.agents.tls is not None
    result = Installed(
        listen=config.listen,
        routers=units.routers,
        agents_port=split_host_port(config.agents.listen)[1] if has_agents else None,
        notes=credentials.notes,
    )
    steps: list[Callable[[], list[Action]]] = [
        lambda: program(host, wish.binary),
        lambda: control_files.user(host),
        lambda: control_files.folders(host),
        credentials.authority,
        credentials.install,
        lambda: control_files.write_configuration(host, text),
        lambda: control_services.leave_old_address(host, units),
        units.write,
        lambda: control_services.reload_and_enable(host, units),
        lambda: control_services.start(host, units),
    ]
    for step in steps:
        for action in step():
            say(action.what)
            if not dry_run:
                action.do()
            result.changed.append(action.what)
    result.hosts = credentials.hosts_of_server
    result.authority_is_here = credentials.authority_is_here
    return result


def wait_until_it_answers(
    host: LocalHost,
    trouble: Callable[[], str | None],
    *,
    limit_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Return once `trouble` (of the server as `ctl` sees it) is None. Raises ControlHostError after `limit_s`."""
    until = clock() + limit_s
    while (what := trouble()) is not None:
        if clock() > until:
            raise ControlHostError(
                f"Everything is in place, but the server does not answer as it should: {what} Its log says: "
                f"{control_services.last_words(host, SERVER_UNIT)}"
            )
        sleep(0.5)

"""`llmgw server install`: make this machine the control host, and say what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.output import Output, OutputOption, print_json
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.config.server import ServerConfig
    from llmgw.onboarding.control_host import Installed

ANSWERS_WITHIN_S = 60.0


def install(
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="A name or address that agents dial; the server's certificate is for it. Repeat it for more. "
            "This machine's own names and addresses are added.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="The model API's address. Default: 127.0.0.1:8080; beyond loopback every client needs a key.",
        ),
    ] = None,
    routers: Annotated[
        int | None,
        typer.Option(
            "--routers", min=1, max=256, help="Router units. Default: as before, else one for two cores."
        ),
    ] = None,
    binary: Annotated[
        Path | None,
        typer.Option(
            "--binary",
            metavar="FILE",
            help="A file of a release, to be installed below /opt/llmgw. Default: the program that runs now.",
        ),
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(
            "--credentials",
            metavar="DIR",
            help="What an authority on another host issued: ca.pem, server.pem, server-key.pem and, to renew, "
            "renewal.pem and renewal-key.pem. Default: the authority is made here, in /etc/llmgw/pki.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    output: OutputOption = Output.table,
) -> None:
    """Make this machine the control host: user, folders, authority, certificates, server.yaml, units.

    Run again, it changes only what differs, and completes what was interrupted. It never changes a server.yaml
    that is there.
    """
    import time

    from llmgw.config.load import load_server_config
    from llmgw.hardware.interfaces import reachable_addresses
    from llmgw.hardware.own_name import own_name
    from llmgw.onboarding.control_host import ControlWish, wait_until_it_answers
    from llmgw.onboarding.control_host import install as install_control_host
    from llmgw.onboarding.local_host import LocalHost

    name = own_name()
    names = [one for one in dict.fromkeys([name, name.partition(".")[0]]) if one != "localhost"]
    wish = ControlWish(
        hosts=tuple(host or ()),
        own_hosts=(*names, *reachable_addresses()),
        own_name=name,
        listen=listen,
        routers=routers,
        binary=binary,
        credentials=credentials,
    )
    here = LocalHost()

    def say(what: str) -> None:
        typer.echo(f"{'would ' if dry_run else ''}{what}", err=output is Output.json)

    installed = install_control_host(
        wish,
        here,
        load=lambda path: load_server_config(path, {}),
        router_arguments=unit_arguments,
        now=time.time(),
        dry_run=dry_run,
        say=say,
    )
    if not dry_run:
        wait_until_it_answers(
            here,
            lambda: trouble(installed.routers),
            limit_s=ANSWERS_WITHIN_S,
            clock=time.monotonic,
            sleep=time.sleep,
        )
    steps = next_steps(installed)
    if output is Output.json:
        print_json(_as_json(installed, steps, dry_run))
        return
    for line in _words(installed, steps, dry_run):
        typer.echo(line)


def unit_arguments(config: ServerConfig) -> list[str]:
    """How the units start routers for a configuration: as a server would that starts its own."""
    from llmgw.config.server import KeyRule
    from llmgw.server.router_process import router_arguments, router_settings

    keys = ["--needs-keys"] if config.key_rule is KeyRule.ALWAYS else []
    return [*keys, f"--settings={router_settings(config)}", *router_arguments(config)]


def trouble(routers: int, environ: dict[str, str] | None = None) -> str | None:
    """What is not yet right with the server on this host, as root's `ctl` finds it; None when nothing is."""
    from llmgw.cli.ctl.client import AdminClient
    from llmgw.cli.ctl.find import Wanted, find_server
    from llmgw.release.layout import SERVER_STATE

    try:
        target = find_server(Wanted(), environ or {"LLMGW_STATE": SERVER_STATE}, Path("/"), Path("/nonexistent"))
        with AdminClient(target) as api:
            view: Any = api.get("server")
    except SentenceError as error:
        return f"{str(error).rstrip('.')}."
    heard = len(view.get("routers", []))
    if heard < routers:
        return f"It hears from {heard} of {routers} routers."
    return None


def next_steps(installed: Installed) -> list[tuple[str, str]]:
    """What to type now, each with what it is for."""
    from llmgw.release.layout import PKI

    dial = next((one for one in installed.hosts), "THIS-HOST")
    server = f"https://{f'[{dial}]' if ':' in dial else dial}:{installed.agents_port}"
    steps = [("See how it is", "llmgw ctl status")]
    if installed.agents_port is not None:
        here = installed.authority_is_here
        command = "llmgw onboard-node --node NODE --addr ADDRESS --server"
        command += f" {server} --pki {PKI if here else 'AUTHORITYS-FOLDER'}"
        where = "" if here else ", on the authority's host"
        steps.append((f"Bring in a GPU node{where}", command))
    steps.append(("Choose what is served", "llmgw ctl apply MODELS.yaml"))
    steps.append(("Make a client's key", "llmgw ctl keys create NAME > NAME.key"))
    return steps


def _as_json(installed: Installed, steps: list[tuple[str, str]], dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "changed": installed.changed,
        "notes": installed.notes,
        "listen": installed.listen,
        "agents_port": installed.agents_port,
        "hosts": installed.hosts,
        "routers": installed.routers,
        "next": [{"what": what, "command": command} for what, command in steps],
    }


def _words(installed: Installed, steps: list[tuple[str, str]], dry_run: bool) -> list[str]:
    lines = [f"note: {note}" for note in installed.notes]
    if dry_run:
        return [*lines, "Nothing was changed." if installed.changed else "There is nothing to change."]
    if not installed.changed:
        lines.append("Nothing differed, so nothing was changed.")
    count = f"{installed.routers} router{'' if installed.routers == 1 else 's'}"
    lines.append(f"The server answers, with {count}; the model API is on http://{installed.listen}.")
    width = max(len(what) for what, _ in steps) + 1
    return [*lines, "Next:", *(f"  {what + ':':{width}} {command}" for what, command in steps)]

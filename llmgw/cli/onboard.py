"""`llmgw onboard-node`: parse, onboard, print. Also installed as `llmgw-onboard-node`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from llmgw.cli.output import Output, OutputOption, print_json
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    from llmgw.cli.ctl.client import AdminClient
    from llmgw.messages.admin import NodeView
    from llmgw.onboarding.report import Report

_View = TypeVar("_View")
EXIT_NOT_GOOD = 1
PANEL_NODE = "What the node has"
PANEL_SSH = "Reaching it"
PANEL_CONTROL = "The control plane's admin API (as for llmgw ctl)"


def onboard_node(
    node: Annotated[
        str,
        typer.Option("--node", metavar="ID", help="The node's id: its host name, and its certificate's name."),
    ],
    addr: Annotated[
        str,
        typer.Option(
            "--addr",
            metavar="HOST",
            help="Where ssh reaches it; its engines too, when it is an address of the node's own and neither "
            "--mgmt-addr nor --mgmt-if says otherwise.",
        ),
    ],
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="The agents' endpoint that it dials, such as https://gateway.internal:8443. May be left out for "
            "a node that has a configuration.",
        ),
    ] = None,
    fabric: Annotated[
        list[str] | None,
        typer.Option(
            "--fabric",
            metavar="NAME[:HCA,…]",
            help="A fabric that it is cabled to, and its adapters there (default mlx5_0,mlx5_1). Repeat it for "
            "more.",
            rich_help_panel=PANEL_NODE,
        ),
    ] = None,
    mgmt_addr: Annotated[
        str | None,
        typer.Option(
            "--mgmt-addr",
            metavar="IP",
            help="The address on which its engines listen.",
            rich_help_panel=PANEL_NODE,
        ),
    ] = None,
    mgmt_if: Annotated[
        str | None,
        typer.Option(
            "--mgmt-if",
            metavar="NAME",
            help="The interface whose address that is, such as eno1.",
            rich_help_panel=PANEL_NODE,
        ),
    ] = None,
    llamacpp_bin: Annotated[
        str | None,
        typer.Option(
            "--llamacpp-bin", metavar="PATH", help="llama-server on the node.", rich_help_panel=PANEL_NODE
        ),
    ] = None,
    vllm_bin: Annotated[
        str | None,
        typer.Option("--vllm-bin", metavar="PATH", help="vllm on the node.", rich_help_panel=PANEL_NODE),
    ] = None,
    sglang_python: Annotated[
        str | None,
        typer.Option(
            "--sglang-python",
            metavar="PATH",
            help="The Python on the node that has SGLang. Without a path of any engine it can run only `sim`.",
            rich_help_panel=PANEL_NODE,
        ),
    ] = None,
    nvidia_smi: Annotated[
        str | None,
        typer.Option("--nvidia-smi", metavar="PATH", help="nvidia-smi on the node.", rich_help_panel=PANEL_NODE),
    ] = None,
    ib_root: Annotated[
        str | None,
        typer.Option(
            "--ib-root", metavar="PATH", help="Where its adapters are listed.", rich_help_panel=PANEL_NODE
        ),
    ] = None,
    pki: Annotated[
        Path | None, typer.Option("--pki", metavar="DIR", help="The authority's folder. Default: /etc/llmgw/pki.")
    ] = None,
    binary: Annotated[
        Path | None,
        typer.Option(
            "--binary",
            metavar="FILE",
            help="A file of a release (wheel, wheels, folder or single file) to install. Default: this very "
            "program in its own kind, unless the node has it or a newer one.",
        ),
    ] = None,
    release_key: Annotated[
        Path | None,
        typer.Option(
            "--release-key",
            metavar="FILE",
            help="The public key that releases are signed with, pinned on the node for upgrades. Default: "
            "/etc/llmgw/release.pub of this host, where there is one.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Although the machine is called otherwise, or was another node, or the node another machine.",
        ),
    ] = False,
    force_config: Annotated[
        bool,
        typer.Option(
            "--force-config",
            help="Merge the options into an agent.yaml that was edited on the node; the old one stays beside it.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Reach the node, look, and say what would be done; change nothing.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="How long the node may take until the control plane hears it. 0: it is not asked at all.",
        ),
    ] = 90.0,
    ssh_user: Annotated[
        str | None,
        typer.Option(
            "--ssh-user",
            metavar="NAME",
            help="Who to be there: root, or a user who may `sudo -n`. Default: whom ssh's configuration names, "
            "else the current user.",
            rich_help_panel=PANEL_SSH,
        ),
    ] = None,
    ssh_config: Annotated[
        Path | None,
        typer.Option(
            "--ssh-config",
            metavar="FILE",
            help="Another file than ssh's own (ssh -F).",
            rich_help_panel=PANEL_SSH,
        ),
    ] = None,
    ctl_server: Annotated[
        str | None,
        typer.Option(
            "--ctl-server",
            metavar="URL",
            help="Its address. Default: LLMGW_CTL_SERVER, else the server on this host.",
            rich_help_panel=PANEL_CONTROL,
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file", metavar="FILE", help="A file with the admin token.", rich_help_panel=PANEL_CONTROL
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca", metavar="FILE", help="The authority of its certificate.", rich_help_panel=PANEL_CONTROL
        ),
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Make a machine a node: identity, program, configuration, unit; then wait until it is there, and examine it.

    Run on the host with the authority; everything goes over the system's ssh, with its own configuration, agent
    and jump hosts. An unknown host key is remembered, unless ssh's configuration says otherwise; a changed one is
    refused. Run again, it changes only what differs and restarts the agent only when something did; engines keep
    running. Nobody is ever asked for a password.

    Exit 0: the node is there and llmgw doctor finds no error on it. 1: not so, with the reason. Steps are told on
    stderr.
    """
    from llmgw.onboarding.onboard import Onboarding
    from llmgw.onboarding.provision.errors import Ended
    from llmgw.onboarding.provision.signals import endings_raised
    from llmgw.onboarding.ssh import Ssh
    from llmgw.onboarding.wish import Wish, read_fabric
    from llmgw.release import layout

    wish = Wish(
        node_id=node,
        addr=addr,
        server=server,
        fabrics=tuple(read_fabric(text) for text in fabric or []),
        mgmt_addr=mgmt_addr,
        mgmt_if=mgmt_if,
        llamacpp_bin=llamacpp_bin,
        vllm_bin=vllm_bin,
        sglang_python=sglang_python,
        nvidia_smi=nvidia_smi,
        ib_root=ib_root,
        pki=pki or Path(layout.PKI),
        binary=binary,
        release_key=release_key,
        force=force,
        force_config=force_config,
    )
    wish.check()
    control = _Control(ctl_server, token_file, ca) if wait > 0 else None
    try:
        # A closed terminal must not leave the connection and what was packed behind.
        with endings_raised(), Ssh(addr, node_id=node, user=ssh_user, config=ssh_config) as ssh:
            onboarding = Onboarding(wish, ssh, control, wait_s=wait, say=lambda line: _say(f"{node}: {line}"))
            report = onboarding.run(dry_run=dry_run)
    except Ended as ended:
        raise SystemExit(128 + ended.number) from None
    if output is Output.json:
        print_json(report)
    else:
        _print(report)
    if not report.good:
        raise typer.Exit(EXIT_NOT_GOOD)


def main() -> None:
    """The program `llmgw-onboard-node`."""
    from llmgw.cli.app import run

    run("onboard-node")


class _Control:
    """The control plane through its admin API, as `ctl` finds it."""

    def __init__(self, server: str | None, token_file: str | None, ca: str | None) -> None:
        self._named = (server, token_file, ca)
        self._client: AdminClient | None = None

    def node(self, node_id: str) -> NodeView | None:
        """What it knows of a node; None when it knows none of that name. Raises SentenceError."""
        from llmgw.cli.ctl.client import node_segment
        from llmgw.messages.admin import NodeView

        return self._get(f"nodes/{node_segment(node_id)}", NodeView)

    def removed_at(self, node_id: str) -> float | None:
        """When a node of that name was removed last. A server that cannot say (it is older) counts as none.
        Raises SentenceError."""
        from llmgw.cli.ctl.client import node_segment
        from llmgw.messages.admin import NodeRemoval

        removal = self._get(f"nodes/{node_segment(node_id)}/removal", NodeRemoval)
        return None if removal is None else removal.removed_at

    def _get(self, path: str, shape: type[_View]) -> _View | None:
        from llmgw.cli.ctl.client import AdminClient, shaped
        from llmgw.cli.ctl.failures import RefusedError
        from llmgw.cli.ctl.find import Wanted, find_server

        try:
            if self._client is None:
                server, token_file, ca = self._named
                wanted = Wanted(server=server, token_file=token_file, ca=ca)
                self._client = AdminClient(find_server(wanted, os.environ, Path.cwd(), Path.home()))
            return shaped(self._client.get(path), shape)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise
        except SentenceError as error:
            # --server is another thing here.
            raise SentenceError(str(error).replace("--server", "--ctl-server")) from None


def _say(line: str) -> None:
    from llmgw.cli.output import plain

    print(plain(line), file=sys.stderr, flush=True)


def _print(report: Report) -> None:
    from llmgw.cli.ctl.cells import local_time, print_findings
    from llmgw.cli.output import plain

    if report.dry_run:
        print(f"{report.node}: nothing was changed; the steps above are what would be done")
        return
    if report.log:
        print("the agent's last words:")
        for line in report.log:
            print(f"  {plain(line)}")
    if report.findings:
        print(f"llmgw doctor on {report.node}:")
        print_findings(report.findings)
    if report.problem is not None:
        _say(f"error: {report.problem}")
        return
    there = "is there" if report.registered else "is onboarded (the control plane was not asked)"
    until = f", certificate until {local_time(report.certificate_until)}" if report.certificate_until else ""
    print(f"{report.node} {there}: llmgw {report.version} at {report.address}{until}")
    errors = sum(finding.severity == "error" for finding in report.findings)
    if errors:
        raise SentenceError(
            f"llmgw doctor found {errors} error{'' if errors == 1 else 's'} on {report.node}, see above"
        )

"""`llmgw provision-node`: a node's VM on this Proxmox host, from nothing to an answering ssh port."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.output import Output, OutputOption, print_json

if TYPE_CHECKING:
    from llmgw.onboarding.provision.run import Provisioned

_DEFAULT_TIMEOUT_S = 300.0


def main() -> None:
    """`llmgw-provision-node`: the same as `llmgw provision-node`."""
    from llmgw.cli.app import run

    run("provision-node")


def provision_node(
    vmid: Annotated[
        int, typer.Option("--vmid", metavar="N", help="A free one; an existing VM is never touched.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NODE", help="VM name = hostname = node id.")],
    ip: Annotated[str, typer.Option("--ip", metavar="CIDR", help="Such as 10.0.0.15/24 or fd00::15/64.")],
    gateway: Annotated[
        str | None,
        typer.Option("--gateway", metavar="ADDR|none", help="Default: this host's own, if in that network."),
    ] = None,
    bridge: Annotated[str, typer.Option("--bridge", metavar="NAME", help="The bridge of its network.")] = "vmbr0",
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="ID", help="For the disk. Default: local-lvm, local-zfs, or the only one."
        ),
    ] = None,
    cores: Annotated[int, typer.Option("--cores", metavar="N", help="Of all sockets together.")] = 4,
    sockets: Annotated[
        int, typer.Option("--sockets", metavar="N", help="With hugepages one for each NUMA node to use.")
    ] = 1,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="1G is 1024 MiB.")] = "16G",
    disk: Annotated[str, typer.Option("--disk", metavar="SIZE", help="1G is 1024 MiB.")] = "64G",
    image: Annotated[
        str | None,
        typer.Option(
            "--image", metavar="FILE|URL", help="A cloud image. Default: Debian 12, with its SHA512SUMS."
        ),
    ] = None,
    image_sha256: Annotated[
        str | None, typer.Option("--image-sha256", metavar="HEX", help="What the image must be.")
    ] = None,
    image_sha512: Annotated[str | None, typer.Option("--image-sha512", metavar="HEX", help="The same.")] = None,
    ssh_user: Annotated[
        str,
        typer.Option("--ssh-user", metavar="USER", help="Who may log in on the node (with sudo, if not root)."),
    ] = "root",
    ssh_key: Annotated[
        list[Path] | None,
        typer.Option("--ssh-key", metavar="FILE", help="More public keys to let in; may be repeated."),
    ] = None,
    ssh_port: Annotated[
        int, typer.Option("--ssh-port", metavar="PORT", help="For images whose sshd listens elsewhere.")
    ] = 22,
    pci: Annotated[
        list[str] | None,
        typer.Option("--pci", metavar="ADDR", help="A GPU or HCA to pass, such as 41:00.0; may be repeated."),
    ] = None,
    hugepages: Annotated[
        str | None, typer.Option("--hugepages", metavar="1024|2|any", help="MiB of a page, as qm takes it.")
    ] = None,
    no_packages: Annotated[
        bool, typer.Option("--no-packages", help="Install nothing on the node (air-gapped; no snippets needed).")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Of the control plane, for the next step's command."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, max=86400, help="For ssh to answer.")
    ] = _DEFAULT_TIMEOUT_S,
    keep: Annotated[bool, typer.Option("--keep", help="Leave a started VM whose ssh does not answer.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the exact commands, change nothing.")
    ] = False,
    root: Annotated[
        Path, typer.Option("--root", envvar="LLMGW_PROVISION_ROOT", hidden=True, help="The host's file system.")
    ] = Path("/"),
    output: OutputOption = Output.table,
) -> None:
    """Make a node's VM on this Proxmox host: image, disk, address, ssh keys, passed-through devices; start it.

    Every check comes before any change. When a step fails, or on Ctrl-C, the VM that this run made is removed
    again. The next step, `llmgw onboard-node`, is printed at the end.
    """
    from llmgw.onboarding.provision.errors import Ended, ProvisionError
    from llmgw.onboarding.provision.progress import Progress
    from llmgw.onboarding.provision.run import Means, provision
    from llmgw.onboarding.provision.run import dry_run as plan_only
    from llmgw.onboarding.provision.wanted import DEFAULT_IMAGE, read_wanted

    wanted = read_wanted(
        vmid=vmid,
        name=name,
        ip=ip,
        gateway=gateway,
        bridge=bridge,
        storage=storage,
        cores=cores,
        sockets=sockets,
        memory=memory,
        disk=disk,
        image=DEFAULT_IMAGE if image is None else image,
        image_sha256=image_sha256,
        image_sha512=image_sha512,
        ssh_user=ssh_user,
        ssh_port=ssh_port,
        ssh_keys=tuple(ssh_key or ()),
        pci=tuple(pci or ()),
        hugepages=hugepages,
        packages=not no_packages,
        server=server,
    )
    if root == Path("/") and os.geteuid() != 0:
        raise ProvisionError("Proxmox's programs need root: run this with sudo, or as root.")
    means = Means(
        root=root,
        home=Path.home(),
        environ=os.environ,
        token=secrets.token_hex(6),
        progress=Progress(sys.stderr, time.monotonic),
        timeout_s=timeout,
        keep=keep,
    )
    if dry_run:
        planned, script = plan_only(wanted, means)
        if output is Output.json:
            print_json(planned)
        else:
            typer.echo("".join(f"# note: {note}\n" for note in planned.notes) + script, nl=False)
        return
    try:
        made = provision(wanted, means)
    except Ended as ended:
        if ended.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + ended.number) from None
    if output is Output.json:
        print_json(made)
    else:
        _print(made)


def _print(made: Provisioned) -> None:
    typer.echo(f"{made.name}: VM {made.vmid} on {made.host}, {made.address}")
    typer.echo("next, when cloud-init is done, and then on the host with the authority:")
    for command in made.next:
        typer.echo(f"  {command}")

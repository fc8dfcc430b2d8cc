"""`llmgw ctl cert …`: the authority's folder, from its first root to the last revocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from llmgw.pki.authority import IssuedCertificate
    from llmgw.pki.records import CertificateRecord

app = typer.Typer(
    help="The authority: make it, issue, list, renew and revoke certificates.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Output(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"


class ChosenKind(StrEnum):
    """Which certificate `renew` means when a name has several."""

    client = "client"
    server = "server"
    renewal = "renewal"


Pki = Annotated[Path, typer.Option("--pki", help="The authority's folder.", metavar="DIR")]
Format = Annotated[Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")]
Days = Annotated[float | None, typer.Option("--days", help="How long it holds. Never longer than its authority.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Where the files go. Default: below the authority's folder.")
]

_DEFAULT_PKI = Path("pki")


@app.command("init-ca")
def init_ca(
    name: Annotated[str, typer.Option(help="A name for people, part of the root's subject.")] = "llmgw",
    permit_dns: Annotated[
        list[str] | None,
        typer.Option(
            "--permit-dns",
            metavar="SUFFIX",
            help="A domain that certificates may name, with everything below it. Repeat it for more. "
            "Default: private names and this host's own domain.",
        ),
    ] = None,
    permit_ip: Annotated[
        list[str] | None,
        typer.Option(
            "--permit-ip",
            metavar="CIDR",
            help="A network that certificates may name. Repeat it for more. "
            "Default: private networks and loopback.",
        ),
    ] = None,
    days: Days = None,
    pki: Pki = _DEFAULT_PKI,
    output: Format = Output.table,
) -> None:
    """Make an authority: the root, the renewal authority, and an empty revocation list."""
    with _sentences():
        from llmgw.hardware.own_name import own_name
        from llmgw.pki.authority import Authority
        from llmgw.pki.certificates import ROOT_DAYS

        authority = Authority.create(
            pki,
            name=name,
            permit_dns=permit_dns or (),
            permit_ip=permit_ip or (),
            own_name="" if permit_dns else own_name(),
            now=_now(),
            days=ROOT_DAYS if days is None else days,
        )
        result = {
            "pki": str(pki),
            "ca": str(pki / "ca.pem"),
            "permit_dns": list(authority.constraints.dns),
            "permit_ip": [str(network) for network in authority.constraints.networks],
            "not_after": authority.root.not_valid_after_utc.timestamp(),
        }
        _print(
            output,
            result,
            lambda: [
                f"Authority made in {pki}. Keep {pki / 'ca-key.pem'} safe: whoever has it can be any node.",
                f"It may sign for names below: {', '.join(result['permit_dns'])}",  # type: ignore[arg-type]
                f"and for addresses in: {', '.join(result['permit_ip'])}",  # type: ignore[arg-type]
                f"Next: llmgw ctl cert issue-server --pki {pki} --host HOST",
            ],
        )


@app.command("issue-server")
def issue_server(
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="A DNS name or address that agents dial. Repeat it for each of them."
        ),
    ] = None,
    days: Days = None,
    out: Out = None,
    pki: Pki = _DEFAULT_PKI,
    output: Format = Output.table,
) -> None:
    """Issue a certificate for the agents' endpoint, with every host as a subject alternative name."""
    with _sentences():
        from llmgw.pki.authority import Authority
        from llmgw.pki.certificates import SERVER_DAYS
        from llmgw.pki.handout import check_folder

        if out is not None:
            check_folder(out, "server", None)
        authority = Authority.open(pki)
        issued = authority.issue_server(host or [], _now(), days=SERVER_DAYS if days is None else days)
        _hand_out(issued, out, pki, output)


@app.command("issue-client")
def issue_client(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's id: its host name.")],
    address: Annotated[
        str,
        typer.Option("--address", metavar="IP", help="Where the node's engines are reached, and nowhere else."),
    ],
    days: Days = None,
    out: Out = None,
    pki: Pki = _DEFAULT_PKI,
    output: Format = Output.table,
) -> None:
    """Enrol a node: issue the certificate by which its agent proves who it is."""
    with _sentences():
        from llmgw.pki.authority import Authority
        from llmgw.pki.certificates import CLIENT_DAYS
        from llmgw.pki.handout import check_folder

        if out is not None:
            check_folder(out, "client", node)
        authority = Authority.open(pki)
        issued = authority.issue_client(node, address, _now(), days=CLIENT_DAYS if days is None else days)
        _hand_out(issued, out, pki, output)


@app.command("list")
def list_certificates(pki: Pki = _DEFAULT_PKI, output: Format = Output.table) -> None:
    """List the root and every certificate issued here. What agents renew by themselves is not kept here."""
    with _sentences():
        import msgspec

        from llmgw.pki.authority import Authority

        authority = Authority.open(pki)
        records = authority.list(_now())
        for finding in authority.findings():
            typer.echo(finding.what, err=True)
        if output is Output.json:
            typer.echo(msgspec.json.format(msgspec.json.encode(records)).decode())
        else:
            _table(records)


@app.command("renew")
def renew(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A node, a server's host, a serial, or `renewal` for the renewal authority."
        ),
    ],
    kind: Annotated[ChosenKind | None, typer.Option("--kind", help="Which one, when a name has several.")] = None,
    days: Days = None,
    out: Out = None,
    pki: Pki = _DEFAULT_PKI,
    output: Format = Output.table,
) -> None:
    """Issue a certificate again: a new key, the same hosts or the same node and address."""
    with _sentences():
        from llmgw.pki.authority import Authority

        authority = Authority.open(pki)
        issued = authority.renew(name, _now(), kind=None if kind is None else kind.value, days=days)
        _hand_out(issued, out, pki, output)


@app.command("revoke")
def revoke(
    node: Annotated[
        str, typer.Argument(metavar="NODE|SERIAL", help="A node with all its serials, or one serial.")
    ],
    pki: Pki = _DEFAULT_PKI,
    output: Format = Output.table,
) -> None:
    """Revoke a node, or one certificate and all that was renewed from it, at once and without a restart."""
    with _sentences():
        from llmgw.pki.authority import Authority

        authority = Authority.open(pki)
        done = authority.revoke(node, _now())
        result = {
            "name": done.name,
            "kind": done.kind,
            "serials": done.serials,
            "already": done.already,
            "list": str(authority.revocations_path),
        }
        count = len(done.serials) or "no further"
        lines = [
            f"Revoked {done.name}: {count} serial{'' if count == 1 else 's'}"
            + (f", {len(done.already)} before." if done.already else "."),
            f"The list is {authority.revocations_path}; if the server reads a copy, copy it there (no restart).",
        ]
        if done.kind == "server":
            lines.append("Agents do not read the list: if the key was stolen, make a new authority.")
        if done.kind == "renewal":
            lines.append(
                "Every certificate that it renewed is refused from now on: enrol those nodes again, and give the "
                f"server a new one: llmgw ctl cert renew renewal --pki {pki}"
            )
        _print(output, result, lambda: lines)


def _hand_out(issued: IssuedCertificate, out: Path | None, pki: Path, output: Output) -> None:
    """Write what was issued and say where it is; the renewal authority is in its place already."""
    from llmgw.pki.certificates import day
    from llmgw.pki.handout import default_folder, write_files

    if issued.kind == "renewal":
        files = {"ca": str(pki / "ca.pem"), "cert": str(pki / "renewal.pem"), "key": str(pki / "renewal-key.pem")}
    else:
        files = write_files(issued, out or default_folder(pki, issued.kind, issued.name))
    result = {
        "kind": issued.kind,
        "name": issued.name,
        "serial": issued.serial,
        "addresses": issued.addresses,
        "not_before": issued.not_before,
        "not_after": issued.not_after,
        "files": files,
    }
    where = {"client": "tls in agent.yaml", "server": "agents.tls in server.yaml"}.get(
        issued.kind, "agents.tls.renewal_cert and renewal_key in server.yaml"
    )
    for_whom = f" for {', '.join(issued.addresses)}" if issued.addresses else ""
    _print(
        output,
        result,
        lambda: [
            f"Issued the {issued.kind} certificate of {issued.name}{for_whom}, until {day(issued.not_after)}.",
            *(f"  {part:5}{path}" for part, path in files.items()),
            f"They go into {where}.",
        ],
    )


def _table(records: Sequence[CertificateRecord]) -> None:
    from rich.console import Console
    from rich.table import Table

    from llmgw.pki.certificates import day

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("kind", "name", "addresses", "not before", "not after", "days left", "revoked", "serial"):
        table.add_column(column, justify="right" if column == "days left" else "left", overflow="fold")
    for record in records:
        table.add_row(
            record.kind,
            record.name,
            ", ".join(record.addresses) or "-",
            day(record.not_before),
            day(record.not_after),
            f"{record.days_left:.0f}",
            "-" if record.revoked_at is None else day(record.revoked_at),
            record.serial,
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=240)  # a pipe has no width to wrap at
    console.print(table)


def _print(output: Output, result: dict[str, Any], lines: Callable[[], Sequence[str]]) -> None:
    if output is Output.json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        for line in lines():
            typer.echo(line)


@contextmanager
def _sentences() -> Iterator[None]:
    """End with 1 and one sentence on stderr where the authority refuses."""
    from llmgw.pki.errors import PkiError

    try:
        yield
    except PkiError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _now() -> float:
    import time

    return time.time()

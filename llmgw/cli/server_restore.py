"""`llmgw server restore`: a backup becomes the state of a server that does not run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.output import Output, OutputOption
from llmgw.cli.server_state import (
    ConfigOption,
    PassphraseOption,
    PkiOption,
    StateOption,
    authority_folder,
    read_passphrase,
    server_files,
)

if TYPE_CHECKING:
    from llmgw.server.backup.restore import Destination, Restored, Restoring

NAMES_SHOWN_MAX = 20


def restore(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A backup, or a copy that a server made before a migration (llmgw.db.backup-…)."
        ),
    ],
    authority: Annotated[
        bool, typer.Option("--authority", help="Put the authority back too; it must be in the backup.")
    ] = False,
    passphrase_file: PassphraseOption = None,
    pki: PkiOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    output: OutputOption = Output.table,
) -> None:
    """Put a backup back in the place of the state; the server must not run, and what is replaced is kept.

    Engines that run stay what they are: the next server adopts whatever the restored catalog wants. What was
    revoked since the backup stays revoked.
    """
    from llmgw.server.backup.restore import Destination, restoring

    folder = authority_folder(authority, passphrase_file, pki)
    files = server_files(context, config, state)
    to = Destination(files.state, files.revocations, folder)
    passphrase = read_passphrase(passphrase_file, twice=False) if authority else ""
    with restoring(file, to, passphrase=passphrase) as ready:
        for sentence in _what_changes(ready):
            print(sentence, file=sys.stderr)
        if not yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter("without a terminal to ask on, restoring needs --yes")
            typer.confirm(f"Replace the state in {files.state}?", abort=True, err=True)
        done = ready.carry_out(time.time())
        _print(ready, done, to, output)


def _what_changes(ready: Restoring) -> list[str]:
    from llmgw.server.backup.manifest import moment

    manifest, since = ready.manifest, ready.since
    revision = f"catalog revision {manifest.catalog_revision}" if manifest.catalog_revision else "no catalog"
    sentences = [f"The backup is of {moment(manifest.made_at)}: {revision}, schema {manifest.schema}."]
    if ready.unreadable is not None:
        sentences.append(
            f"warning: what is there now cannot be read ({ready.unreadable}): keys and tokens that were revoked "
            "since the backup are valid again until you revoke them again"
        )
    if since.catalog_revision is not None and since.catalog_revision != manifest.catalog_revision:
        sentences.append(f"warning: the catalog goes back from revision {since.catalog_revision}")
    for names, what in (
        (since.stops, "the catalog of then wants fewer replicas of these, or none, and they are stopped"),
        (since.lost, "these were made since, and do not work afterwards"),
    ):
        if names:
            sentences.append(f"warning: {what}: {_shown(names)}")
    if since.kept_revoked:
        sentences.append(f"These were revoked since, and stay so: {_shown(since.kept_revoked)}")
    return sentences


def _print(ready: Restoring, done: Restored, to: Destination, output: Output) -> None:
    from llmgw.cli.output import print_json

    for warning in done.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if output is Output.json:
        print_json(
            {
                "state": str(to.state),
                "made_at": ready.manifest.made_at,
                "schema": ready.manifest.schema,
                "catalog_revision": ready.manifest.catalog_revision,
                "replaced_kept_in": _text(done.kept_in),
                "authority": _text(to.pki),
                "authority_kept_in": _text(done.authority_kept_in),
                "revocation_list": _text(done.revocations),
                "stops": ready.since.stops,
                "kept_revoked": ready.since.kept_revoked,
                "lost": ready.since.lost,
                "warnings": done.warnings,
            }
        )
        return
    print(f"{to.state} holds the backup.")
    if done.kept_in is not None:
        print(f"What it replaced is kept in {done.kept_in}.")
    if to.pki is not None:
        kept = f" What it replaced is kept in {done.authority_kept_in}." if done.authority_kept_in else ""
        print(f"{to.pki} holds the authority.{kept}")
    if done.revocations is not None:
        print(f"{done.revocations} holds the revocation list, which was missing.")
    print("Start the server: it adopts what runs, and `llmgw ctl status` says when it has heard every node.")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more

"""`llmgw server backup`: the server's state into one file, while it runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

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

PROGRESS_EVERY_S = 1.0


def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make. One that is there is refused.")],
    authority: Annotated[
        bool, typer.Option("--authority", help="Take the authority along, encrypted under a passphrase.")
    ] = False,
    passphrase_file: PassphraseOption = None,
    pki: PkiOption = None,
    config: ConfigOption = None,
    state: StateOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Copy the state into one file (0600): catalog, keys, tokens, usage, history, revocations.

    The server may run meanwhile, and notices nothing. What runs on nodes is not in it: they say it themselves.
    """
    from llmgw.cli.output import print_json
    from llmgw.server.backup.make import back_up
    from llmgw.server.backup.manifest import moment

    folder = authority_folder(authority, passphrase_file, pki)
    files = server_files(context, config, state)
    now = time.time()
    made = back_up(
        files.state,
        file,
        now=now,
        revocations=files.revocations,
        authority=folder,
        passphrase=read_passphrase(passphrase_file, twice=True) if authority else "",
        progress=_Progress(),
    )
    size = file.stat().st_size
    if output is Output.json:
        print_json(
            {
                "file": str(file),
                "bytes": size,
                "made_at": made.made_at,
                "schema": made.schema,
                "catalog_revision": made.catalog_revision,
                "members": sorted(made.files),
                "authority": authority,
            }
        )
        return
    revision = f"catalog revision {made.catalog_revision}" if made.catalog_revision else "no catalog yet"
    print(f"{file}: {files.state} as of {moment(now)}, {size / 1e6:.1f} MB, {revision}, schema {made.schema}")
    if folder is not None:
        print(f"with the authority {folder}, under the passphrase. Without that it is lost: keep it elsewhere.")
    print(f"Put it back with: llmgw server restore {file}")


class _Progress:
    """A line on stderr each second of a copy that takes longer."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self._said_at >= PROGRESS_EVERY_S and share < 1:
            self._said_at = now
            print(f"{share:.0%} of the database copied", file=sys.stderr, flush=True)

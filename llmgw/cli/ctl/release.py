"""`llmgw ctl release verify`: whether a file is what its release signed. It asks no server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.output import Output, print_json

app = typer.Typer(no_args_is_help=True, help="Files of releases.")

FILE = Annotated[Path, typer.Argument(metavar="FILE", help="A file of a release, under the name it has there.")]
KEY = Annotated[Path, typer.Option("--key", metavar="FILE", help="The public key that releases are signed with.")]
SIGNATURE = Annotated[
    Path | None, typer.Option("--signature", metavar="FILE", help="Its signature.", show_default="FILE.sig")
]
FORMAT = Annotated[Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.")]


@app.callback()
def _group() -> None:
    """Files of releases."""


@app.command("verify")
def verify_file(file: FILE, key: KEY, signature: SIGNATURE = None, output: FORMAT = Output.table) -> None:
    """Check a file's signature, which covers its content and its name."""
    from llmgw.config.errors import SentenceError
    from llmgw.release.files import read_name
    from llmgw.release.signature import digest, read_public_key, verify

    said = read_name(file.name)
    beside = signature or file.with_name(file.name + ".sig")
    try:
        public = read_public_key(key.read_bytes(), str(key))
        sha256 = digest(file)
        text = beside.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise SentenceError(f"{error.filename} cannot be read: {error.strerror}") from None
    verify(public, file.name, sha256, text)
    if output is Output.json:
        print_json({"file": file.name, "version": said.version, "kind": said.kind, "sha256": sha256.hex()})
    else:
        typer.echo(f"{file.name}: signed with the key of {key}\nsha256 {sha256.hex()}")

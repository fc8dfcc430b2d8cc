"""What `llmgw server backup` and `restore` share: which server is meant, and the passphrase of an authority."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from llmgw.config.errors import SentenceError

PASSPHRASE_BYTES_MAX = 4096

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="The server's configuration. Default: as for `llmgw server`."
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="The server's state folder. Default: the configuration's."),
]
PassphraseOption = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="The authority's passphrase is this file's first line. Default: asked for at the terminal.",
    ),
]
PkiOption = Annotated[
    Path | None, typer.Option("--pki", metavar="DIR", help="The authority's folder. Default: /etc/llmgw/pki.")
]


class PassphraseError(SentenceError):
    """There is no passphrase to use."""


@dataclass(frozen=True)
class ServerFiles:
    """Of one server: its state folder, and the revocation list that it reads, if it reads one."""

    state: Path
    revocations: Path | None


def server_files(context: typer.Context, config: Path | None, state: Path | None) -> ServerFiles:
    """By the configuration that is named after the command, before it, or by default. Raises ConfigError."""
    from llmgw.cli.server import default_path
    from llmgw.config.load import load_server_config

    loaded = load_server_config(config or context.obj or default_path(), os.environ)
    tls = loaded.agents.tls
    revocations = Path(tls.revocations) if tls is not None and tls.revocations is not None else None
    return ServerFiles(state or Path(loaded.state), revocations)


def authority_folder(authority: bool, passphrase_file: Path | None, pki: Path | None) -> Path | None:
    """The authority's folder when it is meant, else None. Raises BadParameter for its options without it."""
    from llmgw.release.layout import PKI

    if authority:
        return pki or Path(PKI)
    for given, option in ((passphrase_file, "--passphrase-file"), (pki, "--pki")):
        if given is not None:
            raise typer.BadParameter(f"{option} is about the authority, which is left out without --authority")
    return None


def read_passphrase(file: Path | None, *, twice: bool) -> str:
    """From the file, else from the terminal, never from the command line. Raises PassphraseError."""
    if file is None:
        return _ask(twice)
    try:
        with file.open("rb") as source:
            if stat.S_IMODE(os.fstat(source.fileno()).st_mode) & 0o077:
                print(f"warning: {file} can be read by others; chmod 600 {file}", file=sys.stderr)
            line = source.read(PASSPHRASE_BYTES_MAX + 1).split(b"\n", 1)[0]
        # One that is cut off would be another passphrase than the file's.
        if len(line) > PASSPHRASE_BYTES_MAX:
            raise PassphraseError(
                f"the first line of the passphrase file {file} is longer than {PASSPHRASE_BYTES_MAX} bytes; "
                "write a shorter passphrase there"
            )
        first = line.decode().rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PassphraseError(f"the passphrase file {file} cannot be read ({reason}); name another") from None
    if not first:
        raise PassphraseError(f"the passphrase file {file} begins with an empty line; write the passphrase there")
    return first


def _ask(twice: bool) -> str:
    import getpass

    if not sys.stdin.isatty():
        raise typer.BadParameter("without a terminal to ask on, the passphrase needs --passphrase-file FILE")
    passphrase = getpass.getpass("Passphrase of the authority: ")
    if twice and getpass.getpass("The same again: ") != passphrase:
        raise PassphraseError("the two passphrases differ; nothing was written")
    return passphrase

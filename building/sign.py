"""`scripts/sign`: makes a key for releases, and signs a folder of files with it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from building.sums import read_private_key, sign_files, write_new_key, write_sums
from llmgw.config.errors import SentenceError


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/sign", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    new_key = commands.add_parser("new-key", help="make release-key.pem (keep it secret) and release.pub")
    new_key.add_argument("folder", type=Path)
    sums = commands.add_parser("sums", help="write SHA256SUMS over a folder's files")
    sums.add_argument("folder", type=Path)
    files = commands.add_parser("files", help="write FILE.sig beside each file of a release in a folder")
    files.add_argument("key", type=Path)
    files.add_argument("folder", type=Path)
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "new-key":
            made = list(write_new_key(asked.folder))
        elif asked.command == "sums":
            made = [write_sums(asked.folder)]
        else:
            made = sign_files(read_private_key(asked.key), asked.folder)
    except SentenceError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

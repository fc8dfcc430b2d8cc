"""The certificate of a listener whose clients show none: loaded, and taken up anew when its files change."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from llmgw.messages.findings import Finding
from llmgw.pki.errors import PkiError
from llmgw.pki.pairs import check_in_force, file_signature, harden, load_pair, matching_leaf

_REMEDY = "Both must be PEM files, the certificate followed by the intermediates that signed it."


def _as_it_is(context: ssl.SSLContext) -> None:
    return


class ListenerCertificate:
    """A pair of files and the context made of them. Call `refresh` now and then.

    `context` is another object after each change: one that had an RSA and an EC key in turn would show either.
    """

    def __init__(
        self,
        cert: str,
        key: str,
        names: tuple[str, str],
        *,
        prepare: Callable[[ssl.SSLContext], None] = _as_it_is,
    ) -> None:
        """`names` are the settings of the two paths, for sentences; `prepare` is called on each new context.

        An expired certificate is taken: one that is served is better than nothing, and a finding says it.
        Raises PkiError when the files do not fit together.
        """
        self._cert, self._key, self._names = cert, key, names
        self._prepare = prepare
        self._seen = self._signatures()
        self.problem: str | None = None
        """Why the files on disk are not the ones in use, if they are not."""
        self.context = self._load(None)

    def refresh(self, now: float) -> bool:
        """Read the files again if they changed (two stats); True when new ones are in use.

        `now` is in seconds since the epoch. What cannot be used leaves the earlier pair in use: see `problem`.
        """
        signatures = self._signatures()
        if signatures == self._seen:
            return False
        self._seen = signatures
        try:
            self.context = self._load(now)
        except PkiError as error:
            self.problem = str(error)
            return False
        self.problem = None
        return True

    def findings(self) -> list[Finding]:
        """What is wrong with the files, apart from their age."""
        found = []
        if self.problem is not None:
            found.append(
                Finding(
                    check="listener-certificate",
                    severity="error",
                    where=self._cert,
                    what=f"{self.problem} The earlier certificate stays in use.",
                    why="A process that starts now has nothing to serve with.",
                    remedy=f"correct {self._cert} and {self._key}; they are read again by themselves",
                )
            )
        try:
            mode = os.stat(self._key).st_mode
        except OSError:
            return found
        if mode & 0o077:
            found.append(
                Finding(
                    check="key-open",
                    severity="error",
                    where=self._key,
                    what=f"the key's mode is {mode & 0o7777:04o}, so that others than its owner may use it",
                    why="Whoever reads it can pose as this gateway",
                    remedy=f"`chmod 600 {self._key}`",
                )
            )
        return found

    def _load(self, now: float | None) -> ssl.SSLContext:
        cert, key = self._cert, self._key
        leaf = matching_leaf(cert, key, *self._names, "server", _REMEDY)
        if now is not None:
            check_in_force(leaf, f"{cert} ({self._names[0]})", _REMEDY, now)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        harden(context)
        load_pair(context, cert, key)
        self._prepare(context)
        return context

    def _signatures(self) -> list[tuple[int, int, int] | None]:
        # The key that waits beside the old one is part of what is on disk: see pki/files.py.
        paths = (self._cert, self._key, str(Path(self._key + ".next")))
        return [file_signature(path) for path in paths]

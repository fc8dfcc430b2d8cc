"""What server and agents say to each other when an agent's program is replaced by another release.

The server asks with `Upgrade`; the agent fetches the file in pieces, proves it by its own key, installs it, ends,
and comes back as the new program. How that went stands in its next registration. Only for agents with the feature
`upgrade`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

UPGRADE_FEATURE: Final = "upgrade"
RELEASE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Of a release's file: the largest, which holds its own Python, has about a tenth of it."""
PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
SENTENCE_CHARS_MAX: Final = 2000

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
Signature = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9+/=\s]+$")]
_Id = Annotated[str, msgspec.Meta(max_length=128)]
"""The node keeps it and says it with every registration, to whichever server."""
_Sentence = Annotated[str, msgspec.Meta(max_length=SENTENCE_CHARS_MAX)]
_Version = Annotated[str, msgspec.Meta(max_length=64)]


class Upgrade(msgspec.Struct, frozen=True, kw_only=True, tag="upgrade"):
    """Become this release. `request_id` is the upgrade's id: asked again in another session, the agent goes on
    where it was.
    """

    seq: int
    request_id: _Id
    name: FileName
    sha256: Sha256
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=RELEASE_BYTES_MAX)]
    signature: Signature
    allow_downgrade: bool = False


class UpgradeTold(msgspec.Struct, frozen=True, kw_only=True):
    """How an upgrade goes on while the old program still runs.

    `stage` is `downloading`, `installing`, `checking`, then `switching` (it is about to end and to come back), or
    `already` (it is this release), or `refused` with a sentence. An agent says how it is at least every
    `TELL_EVERY_S`, also when nothing has changed.
    """

    request_id: str
    stage: Annotated[str, msgspec.Meta(max_length=32)]
    done_bytes: Annotated[int, msgspec.Meta(ge=0, le=RELEASE_BYTES_MAX)] | None = None
    """Of a download."""
    sentence: _Sentence = ""


TELL_EVERY_S: Final = 5.0


class LastUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """How the last upgrade of a node ended, as its registration says it.

    `trial`: the new program runs, and has not been believed yet; `settled`: a server took its registration, and
    it has stayed; `back`: it did not come up, and the program from before runs again, with the `reason`.
    """

    upgrade_id: _Id
    sha256: Sha256
    version: _Version
    outcome: Literal["trial", "settled", "back"]
    reason: _Sentence = ""


class ReadRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the file that this node was asked to become, answered with its bytes as they are."""

    session: str
    sha256: Sha256
    offset: Annotated[int, msgspec.Meta(ge=0, le=RELEASE_BYTES_MAX)]
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=PIECE_BYTES_MAX)]

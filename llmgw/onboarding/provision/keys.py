"""Whose ssh keys a new VM takes: those that this host lets in, and this host's own.

Proxmox hands each line to `ssh-keygen -l` and puts it unquoted into cloud-init's YAML (pve-common,
validate_ssh_public_keys; qemu-server, Cloudinit.pm), so only what is plainly a key goes there.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.onboarding.provision.errors import ProvisionError

KEY_FILE_BYTES_MAX = 2**20
KEYS_MAX = 500
_KINDS = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
_KEY = re.compile(rf"({'|'.join(re.escape(kind) for kind in _KINDS)})[ \t]+([A-Za-z0-9+/=]+)(?:[ \t]+(.*))?")


@dataclass
class Keys:
    """Key lines, each once, in the order they were found; and what was left out, as sentences."""

    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def gather(root: Path, user: str, own_home: Path, more: tuple[Path, ...]) -> Keys:
    """Keys for a VM: `authorized_keys` of whoever runs this and of `user` here, `*.pub` beside it, and `more`.

    `own_home` is the home folder of whoever runs this. Homes are looked up in `root`/etc/passwd. Raises
    ProvisionError when a file of `more` cannot be used, and when there is no key at all.
    """
    keys = Keys()
    folders = [own_home / ".ssh"]
    home = _home_of(root, user)
    if home is not None and home / ".ssh" not in folders:
        folders.append(home / ".ssh")
    for folder in folders:
        for name in ("authorized_keys", "authorized_keys2"):
            _add_file(keys, folder / name)
        for path in sorted(folder.glob("*.pub")) if folder.is_dir() else ():
            _add_file(keys, path)
    for path in more:
        before = len(keys.lines)
        if not _add_file(keys, path):
            raise ProvisionError(
                f"--ssh-key {path} cannot be read; give the file of a public key (it ends in .pub)."
            )
        if len(keys.lines) == before and not _is_known(keys, path):
            raise ProvisionError(f"--ssh-key {path} holds no public key; give the file that ends in .pub.")
    if not keys.lines:
        tried = ", ".join(str(folder) for folder in folders)
        raise ProvisionError(
            f"No ssh key was found ({tried}: neither authorized_keys nor *.pub), so that nobody could log in to "
            "the VM: make one with ssh-keygen -t ed25519, or name one with --ssh-key FILE."
        )
    if len(keys.lines) > KEYS_MAX:
        raise ProvisionError(
            f"{len(keys.lines)} ssh keys are more than cloud-init's disk is meant for ({KEYS_MAX})."
        )
    return keys


def plain_key(line: str) -> str | None:
    """A key line as cloud-init gets it, its comment made harmless; None for all but keys without options."""
    found = _KEY.fullmatch(line.strip())
    if found is None:
        return None
    try:
        blob = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = found[1].encode()
    # RFC 4253 section 6.6: the blob begins with the length and the name of its kind.
    if blob[:4] != len(kind).to_bytes(4) or blob[4 : 4 + len(kind)] != kind:
        return None
    comment = re.sub(r"[^A-Za-z0-9@._+-]+", "-", found[3] or "")[:100].strip("-")
    return f"{found[1]} {found[2]} {comment}".rstrip()


def _add_file(keys: Keys, path: Path) -> bool:
    text = _read(path)
    if text is None:
        return False
    known = {" ".join(line.split()[:2]) for line in keys.lines}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key = plain_key(stripped)
        if key is None:
            if _KEY.search(stripped) is not None and path.suffix != ".pub":
                # A key that may do one thing here must not be able to do everything there.
                keys.notes.append(f"{path} line {number} has options and was left out")
        elif " ".join(key.split()[:2]) not in known:
            known.add(" ".join(key.split()[:2]))
            keys.lines.append(key)
    return True


def _is_known(keys: Keys, path: Path) -> bool:
    text = _read(path) or ""
    known = {" ".join(line.split()[:2]) for line in keys.lines}
    found = [plain_key(line) for line in text.splitlines()]
    return any(key is not None and " ".join(key.split()[:2]) in known for key in found)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(KEY_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None


def _home_of(root: Path, user: str) -> Path | None:
    for line in (_read(root / "etc/passwd") or "").splitlines():
        parts = line.split(":")
        if len(parts) >= 6 and parts[0] == user:
            return root / parts[5].lstrip("/")
    return None

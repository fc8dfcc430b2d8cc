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
RSA_BITS_MIN = 1024
"""OpenSSH takes no shorter ones: sshkey.h, SSH_RSA_MINIMUM_MODULUS_SIZE."""
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
    if not _is_whole(found[1], blob):
        return None
    comment = re.sub(r"[^A-Za-z0-9@._+-]+", "-", found[3] or "")[:100].strip("-")
    return f"{found[1]} {found[2]} {comment}".rstrip()


def _is_whole(kind: str, blob: bytes) -> bool:
    """Whether a blob is a key of that kind, to its last byte.

    sshd passes over a line that was cut off, and Proxmox refuses the whole VM for it.

    RFC 4253 section 6.6 (RSA), RFC 5656 section 3.1 (ECDSA), RFC 8709 section 4 (Ed25519), OpenSSH's PROTOCOL.u2f
    (sk-): strings with their lengths before them, the first of which is the kind.
    """
    parts = []
    while blob:
        length = int.from_bytes(blob[:4])
        if len(blob) < 4 + length:
            return False
        parts.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    if not parts or parts[0] != kind.encode():
        return False
    lengths = [len(part) for part in parts[1:]]
    if "ed25519" in kind:
        return len(lengths) == 1 + kind.startswith("sk-") and lengths[0] == 32
    if kind == "ssh-rsa":
        return len(lengths) == 2 and lengths[0] > 0 and int.from_bytes(parts[2]).bit_length() >= RSA_BITS_MIN
    curve = re.search(r"nistp(256|384|521)", kind)
    if curve is None or len(lengths) != 2 + kind.startswith("sk-") or parts[1] != curve[0].encode():
        return False
    return lengths[1] == 1 + 2 * ((int(curve[1]) + 7) // 8)  # an uncompressed point: SEC 1, section 2.3.3


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
            if _KEY.fullmatch(stripped) is not None:
                keys.notes.append(f"{path} line {number} is no whole key and was left out")
            elif _KEY.search(stripped) is not None and path.suffix != ".pub":
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
    except (OSError, ValueError):  # ValueError: a path with a NUL, as a broken passwd may have
        return None


def _home_of(root: Path, user: str) -> Path | None:
    for line in (_read(root / "etc/passwd") or "").splitlines():
        parts = line.split(":")
        if len(parts) >= 6 and parts[0] == user:
            return root / parts[5].lstrip("/")
    return None

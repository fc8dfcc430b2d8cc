"""Asking Proxmox through its own programs. What they say goes into sentences; nothing here changes anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmgw.onboarding.provision.errors import ProvisionError, refuse

PROGRAMS: Final = ("qm", "pvesh", "pvesm")
ASK_TIMEOUT_S: Final = 60.0
RELEASE_MIN: Final = 8
"""`--ciupgrade` and `,vendor=` of `--cicustom` are in qm(1) of Proxmox VE 8, not in all of 7."""
_SAID_CHARS_MAX: Final = 400


def run_to_end(
    argv: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command that asks nothing, and keep what it says. Raises TimeoutExpired, OSError.

    It has a session of its own: Ctrl-C is ours to answer, also while a question of the undoing is open.
    """
    return subprocess.run(
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        start_new_session=True,
        check=False,
    )


def require_programs(environ: Mapping[str, str]) -> None:
    """Raise ProvisionError unless all of Proxmox's programs are on PATH."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=environ.get("PATH")) is None]
    refuse(
        [f"{' and '.join(missing)} not found: run this on the Proxmox VE host itself, as root (sudo -i)."]
        if missing
        else []
    )


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What Proxmox's programs run with: their messages in English."""
    return {**environ, "LC_ALL": "C", "LANG": "C"}


def said(text: str) -> str:
    """What a program said, on one line and not too long: the end of it, where the reason stands."""
    line = "; ".join(part.strip() for part in text.splitlines() if part.strip())
    plain = "".join(char if char.isprintable() else " " for char in line)
    return plain if len(plain) <= _SAID_CHARS_MAX else f"…{plain[-_SAID_CHARS_MAX:]}"


class Proxmox:
    """Questions to this host and its cluster. Every method raises ProvisionError."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environment(environ)

    def get(self, path: str, *options: str) -> Any:
        """The answer of `pvesh get PATH` as plain data."""
        command = ["pvesh", "get", path, *options, "--output-format", "json"]
        done = self._run(command)
        if done.returncode:
            raise ProvisionError(
                f"`{' '.join(command)}` failed: {said(done.stderr or done.stdout)}. Check the host with pvecm "
                "status."
            )
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise ProvisionError(
                f"`{' '.join(command)}` answered with something else than JSON; check pveversion -v."
            ) from None

    def rows(self, path: str, *options: str) -> list[dict[str, Any]]:
        """The same where a list of objects is answered."""
        answer = self.get(path, *options)
        if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
            raise ProvisionError(f"pvesh get {path} answered with no list; check pveversion -v.")
        return answer

    def release(self) -> str:
        """The version of Proxmox VE, such as 8.4. Raises ProvisionError for one that is too old."""
        answer = self.get("/version")
        release = str(answer.get("release") or answer.get("version") or "") if isinstance(answer, dict) else ""
        major = release.partition(".")[0]
        if not major.isdigit():
            raise ProvisionError("pvesh get /version tells no version; check pveversion -v.")
        if int(major) < RELEASE_MIN:
            raise ProvisionError(
                f"This host runs Proxmox VE {release}; its qm lacks options that are needed: upgrade to "
                f"{RELEASE_MIN}."
            )
        return release

    def volume_path(self, volume: str) -> str:
        """Where a volume such as `local:snippets/x.yaml` is, whether it exists or not."""
        done = self._run(["pvesm", "path", volume])
        path = done.stdout.strip()
        if done.returncode or not path.startswith("/"):
            raise ProvisionError(f"`pvesm path {volume}` failed: {said(done.stderr or done.stdout)}.")
        return path

    def volumes(self, storage: str, vmid: int) -> list[str]:
        """The volumes on a storage that bear a VMID."""
        done = self._run(["pvesm", "list", storage, "--content", "images", "--vmid", str(vmid)])
        if done.returncode:
            raise ProvisionError(f"`pvesm list {storage}` failed: {said(done.stderr or done.stdout)}.")
        words = [line.split() for line in done.stdout.splitlines()[1:]]  # below its heading
        return [each[0] for each in words if each]

    def config(self, vmid: int) -> dict[str, str] | None:
        """`qm config`; None when there is no such VM on this host (PVE/AbstractConfig.pm, load_config)."""
        done = self._run(["qm", "config", str(vmid), "--current", "1"])
        if done.returncode:
            if "does not exist" in done.stderr:
                return None
            raise ProvisionError(f"`qm config {vmid}` failed: {said(done.stderr or done.stdout)}")
        parts = (line.partition(": ") for line in done.stdout.splitlines())
        return {key: value for key, _, value in parts}

    def running(self, vmid: int) -> bool:
        """Whether the VM runs."""
        done = self._run(["qm", "status", str(vmid)])
        return done.returncode == 0 and "status: running" in done.stdout

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return run_to_end(command, self._environ, ASK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ProvisionError(
                f"`{' '.join(command)}` has not answered for {ASK_TIMEOUT_S:g} s; check the host with pvecm "
                "status and systemctl status pvedaemon pve-cluster."
            ) from None
        except OSError as error:
            raise ProvisionError(f"`{command[0]}` cannot be run: {os.strerror(error.errno or 0)}.") from None

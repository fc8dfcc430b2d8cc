"""Tarballs that are the same, byte for byte, whenever the same folder is packed."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path


def pack(folder: Path, target: Path, top: str, made_at: float) -> None:
    """Pack what lies in `folder` as `top/…` into `target` (.tar.gz): sorted, root's, all of one time."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = int(made_at)
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tarball,
    ):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            tarball.add(path, f"{top}/{name}", recursive=False, filter=plain)

"""What an image file says of itself: whether it is a disk, and how large the disk in it is.

QEMU's docs/interop/qcow2.txt: magic, version, backing file offset (8) at 8, virtual size (8) at 24, and in
version 3 the incompatible features (8) at 72.
"""

from __future__ import annotations

from pathlib import Path

from llmgw.onboarding.provision.errors import ProvisionError

HEADER_BYTES = 512
_QCOW2 = b"QFI\xfb"
_EXTERNAL_DATA = 1 << 2
_OTHER_SUFFIXES = (".raw", ".vmdk", ".qed", ".qcow", ".cloop")


def disk_bytes_of(path: Path) -> int:
    """The size of the disk in an image, qcow2 or raw, which for qcow2 is not the file's.

    Raises ProvisionError for a file that is no disk, or that refers to others.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise ProvisionError(f"The image {path} cannot be read: {error.strerror}.") from None
    if head[:4] == _QCOW2:
        # qm goes by the name behind all links (PVE/Storage.pm, abs_filesystem_path; PVE/QemuServer/QemuImage.pm,
        # convert), and would copy the file itself as the disk.
        if path.resolve().suffix in _OTHER_SUFFIXES:
            raise ProvisionError(f"The image {path} is a qcow2 file with another name; call it .qcow2.")
        version = int.from_bytes(head[4:8])
        if len(head) < 80 or version not in (2, 3):
            raise ProvisionError(f"The image {path} is a qcow2 file of a version that is not known ({version}).")
        features = int.from_bytes(head[72:80]) if version == 3 else 0
        # Such a file can name any file of this host as its content.
        if int.from_bytes(head[8:16]) or features & _EXTERNAL_DATA:
            raise ProvisionError(
                f"The image {path} refers to another file (a backing or data file); convert it into one that "
                "stands alone: qemu-img convert -O qcow2."
            )
        return int.from_bytes(head[24:32])
    if head[510:512] == b"\x55\xaa":  # UEFI specification section 5.2: a boot record is on every disk
        return size
    raise ProvisionError(
        f"The image {path} is neither a qcow2 file nor a raw disk; give a cloud image, unpacked."
    )

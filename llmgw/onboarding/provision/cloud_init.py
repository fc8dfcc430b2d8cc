"""What cloud-init is told beyond Proxmox's own options: the packages, as vendor data.

Proxmox writes user, network and meta data itself; `--cicustom vendor=` adds a file to them and replaces none.
"""

from __future__ import annotations

import hashlib
from typing import Final

VENDOR_DATA: Final = """#cloud-config
# Written by llmgw provision-node; VMs refer to this file, and it may serve several.
package_update: true
packages:
  - python3-venv
"""
"""`packages` and `package_update`: cloud-init's module package-update-upgrade-install."""


def snippet_name() -> str:
    """The file's name, which tells its content: VMs that were made with another content keep theirs."""
    return f"llmgw-node-{hashlib.sha256(VENDOR_DATA.encode()).hexdigest()[:8]}.yaml"

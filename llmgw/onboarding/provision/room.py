"""Whether the host has what a VM needs of processors and memory, hugepages included."""

from __future__ import annotations

from typing import Final

from llmgw.config.sizes import size_words
from llmgw.onboarding.provision.host import Host, NumaNode
from llmgw.onboarding.provision.wanted import GIB, MIB, Wanted

HOST_RESERVE_BYTES: Final = GIB
"""What the host keeps for itself and for QEMU's own memory."""


def judge_room(wanted: Wanted, host: Host) -> list[str]:
    """What the host lacks, as sentences."""
    wrong = []
    processors = host.processors()
    if wanted.cores > processors:  # qemu-server, PVE/QemuServer.pm: "MAX $allowed_vcpus vcpus allowed per VM"
        wrong.append(
            f"--cores {wanted.cores}: this host has {processors}, and Proxmox starts no VM with more than that."
        )
    if wanted.hugepages is not None:
        return wrong + _hugepages(wanted, host)
    available = host.available_bytes()
    if wanted.memory_bytes + HOST_RESERVE_BYTES > available:
        wrong.append(
            f"--memory {size_words(wanted.memory_bytes)}: the host has {size_words(available)} available and "
            f"keeps {size_words(HOST_RESERVE_BYTES)}; stop a VM, or ask for less."
        )
    return wrong


def _hugepages(wanted: Wanted, host: Host) -> list[str]:
    """Proxmox takes socket N's share from the host's NUMA node N (PVE/QemuServer/Memory.pm, hugepages_topology).

    Pages that are not free yet are made from free memory when the VM starts (hugepages_allocate).
    """
    share = wanted.memory_bytes // wanted.sockets
    sizes = host.page_sizes_mib()
    if wanted.hugepages == "any":
        page_mib = 1024 if 1024 in sizes and share % GIB == 0 else 2
    else:
        page_mib = int(wanted.hugepages or 0)
    if page_mib not in sizes:
        return [
            f"--hugepages {wanted.hugepages}: this host's kernel has no pages of {page_mib} MiB; it has "
            f"{', '.join(f'{size}' for size in sorted(sizes)) or 'none'}."
        ]
    nodes = host.numa_nodes()
    if wanted.sockets > len(nodes):
        return [
            f"--sockets {wanted.sockets}: this host has {len(nodes)} NUMA node(s), and with hugepages each "
            "socket takes its memory from one of its own."
        ]
    wrong, new_bytes = [], 0
    for node in nodes[: wanted.sockets]:
        page_bytes = page_mib * MIB
        free_pages = node.free_pages.get(page_mib * MIB // 1024, 0)
        missing_bytes = max(0, share - free_pages * page_bytes)
        new_bytes += missing_bytes
        if missing_bytes > node.free_bytes:
            wrong.append(_too_few(wanted, node, share, free_pages * page_bytes, len(nodes)))
    available = host.available_bytes()
    if not wrong and new_bytes and new_bytes + HOST_RESERVE_BYTES > available:
        wrong.append(
            f"--hugepages {wanted.hugepages}: {size_words(new_bytes)} of new pages are needed, and the host has "
            f"{size_words(available)} available; stop a VM, or ask for less --memory."
        )
    return wrong


def _too_few(wanted: Wanted, node: NumaNode, share: int, in_pages: int, count: int) -> str:
    more = f", or --sockets {count} to take it from all NUMA nodes" if count > wanted.sockets else ""
    return (
        f"--hugepages {wanted.hugepages}: NUMA node {node.number} must give {size_words(share)} and has "
        f"{size_words(in_pages)} in free pages and {size_words(node.free_bytes)} free; ask for less "
        f"--memory{more}, or reserve pages on the kernel's command line."
    )

"""One agent a node: a second one here, with another work dir, would know nothing of the first one's engines.

The server would take the second for the first's successor, and place on GPUs that the first's engines hold.
"""

from __future__ import annotations

import hashlib
import socket
import struct

_UCRED = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED


def claim_node(node_id: str, server: str, uid: int) -> socket.socket | int | None:
    """Claim the node for this process: what holds the claim, the pid of the agent that has it, or None.

    The claim is an abstract Unix socket (unix(7)), which ends with its process. Of another user's it is no
    claim (None): anybody may bind such a name, and must not be able to keep an agent from starting.
    """
    name = b"\0llmgw-agent-" + hashlib.sha256(f"{server}\n{node_id}".encode()).hexdigest()[:32].encode()
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(name)
        holder.listen(1)
        return holder
    except OSError:
        holder.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(name)
            pid, owner, _ = _UCRED.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        except OSError:
            return None
    return int(pid) if owner == uid else None

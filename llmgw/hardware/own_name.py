"""This host's full name, asked without what only Linux has: certificates are also made elsewhere."""

from __future__ import annotations

import socket
import threading


def own_name(timeout_s: float = 2.0) -> str:
    """This host's full name. A resolver that does not answer is not waited for: then it is the bare name."""
    bare = socket.gethostname()
    if "." in bare:
        return bare
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(socket.getfqdn()), daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answers[0] if answers else bare

"""What the exporter of spans talks to the collector with. The collector's answer is not trusted: of its body, of
which nothing is used, no more is read than lets the connection be kept."""

from __future__ import annotations

import time
from typing import Any

import requests

ANSWER_BYTES_MAX = 4096
"""A collector answers with nothing, or with how many spans it refused."""
ANSWER_S = 1.0


class CollectorSession(requests.Session):
    """As `requests` has it, but an answer is done when its head has come, and one that leads elsewhere an error:
    whoever is there has not taken the spans, and is not to have the collector's key."""

    def request(self, *arguments: Any, **named: Any) -> requests.Response:
        """Raises requests.RequestException."""
        answer = super().request(*arguments, **{**named, "stream": True, "allow_redirects": False})
        try:
            if 300 <= answer.status_code < 400:
                raise requests.exceptions.InvalidURL(
                    f"it answers {answer.status_code}, which leads elsewhere; name the collector itself"
                )
            _read_little(answer)
        finally:
            # Closes the connection unless all has been read.
            answer.close()
        return answer


def _read_little(answer: requests.Response) -> None:
    deadline = time.monotonic() + ANSWER_S
    for _ in range(ANSWER_BYTES_MAX):
        # Byte for byte, since a longer read comes back only when all of it is there.
        try:
            if time.monotonic() > deadline or not answer.raw.read(1, decode_content=False):
                return
        except Exception:  # whatever urllib3 raises: the head has said whether the spans were taken
            return

"""Server-sent events out of bytes that are split anywhere (html.spec.whatwg.org, section 9.2). Pure."""

from __future__ import annotations

# Of one event. A chunk of a chat completion has some hundred bytes, with log probabilities some thousand.
EVENT_BYTES_MAX = 4 * 1024 * 1024


class EventReader:
    """Finds events and hands their data on; names, ids and retry times are skipped, as engines send none."""

    __slots__ = ("_data", "_held", "_held_bytes", "comments")

    def __init__(self) -> None:
        self._held = b""
        """A line without its end."""
        self._data: list[bytes] = []
        self._held_bytes = 0
        self.comments = 0
        """Lines that said nothing, as engines send them to keep a connection alive."""

    def feed(self, payload: bytes) -> list[bytes]:
        """The data of the events that are whole by now. Raises ValueError when one exceeds EVENT_BYTES_MAX."""
        if not self._held and not self._data and payload.startswith(b"data: ") and payload.endswith(b"\n\n"):
            events = payload[6:-2].split(b"\n\ndata: ")  # what engines send, nearly always
            if not any(b"\n" in event or b"\r" in event for event in events):
                return events
        *lines, self._held = (self._held + payload).split(b"\n")
        found: list[bytes] = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
                    self._held_bytes = 0
            elif line.startswith(b"data:"):
                data = line[6:] if line[5:6] == b" " else line[5:]
                self._data.append(data)
                self._held_bytes += len(data)
            elif line.startswith(b":"):
                self.comments += 1
        if self._held_bytes + len(self._held) > EVENT_BYTES_MAX:
            raise ValueError(f"an event of more than {EVENT_BYTES_MAX} bytes")
        return found

"""`metrics:` of agent.yaml: where an agent answers Prometheus itself, and who may ask."""

from __future__ import annotations

from pydantic import model_validator

from llmgw.config.addresses import HostPort, is_loopback, split_host_port
from llmgw.config.base import Model
from llmgw.config.errors import KeyedError
from llmgw.config.server import ListenTls


class MetricsEndpoint(Model):
    """The agent's own `/metrics`. Left out: there is none, and the server tells of this node."""

    listen: HostPort = "127.0.0.1:9401"
    """Where Prometheus connects."""
    tls: ListenTls | None = None
    """A server certificate; needed beyond loopback, so that the token never travels in the clear."""
    token_file: str | None = None
    """A file whose first line Prometheus sends as `Authorization: Bearer …`; needed beyond loopback. At least 16
    characters; others must not be able to read it (0600)."""

    @model_validator(mode="after")
    def _guarded_beyond_loopback(self) -> MetricsEndpoint:
        host, _ = split_host_port(self.listen)
        missing = [key for key in ("tls", "token_file") if getattr(self, key) is None]
        if missing and not is_loopback(host):
            raise KeyedError(
                f"{self.listen} is beyond loopback without metrics.{' and metrics.'.join(missing)}; set "
                "metrics.tls and metrics.token_file, or listen on 127.0.0.1",
                "listen",
            )
        return self

"""`server.yaml`: the control plane and the gateway. Every key has a default that works on a laptop."""

from __future__ import annotations

from pydantic import Field, model_validator

from llmgw.config.addresses import HostPort, is_loopback, split_host_port
from llmgw.config.base import Duration, Model
from llmgw.config.catalog import Catalog, CatalogModel


class ListenTls(Model):
    """A certificate and its key for a listener."""

    cert: str
    key: str


class AdminListener(Model):
    """Admin API, pages and metrics. Beyond loopback it needs TLS, so that tokens never travel in the clear."""

    listen: HostPort = "127.0.0.1:8081"
    tls: ListenTls | None = None

    @model_validator(mode="after")
    def _tls_beyond_loopback(self) -> AdminListener:
        host, _ = split_host_port(self.listen)
        if self.tls is None and not is_loopback(host):
            raise ValueError(
                f"admin.listen {self.listen} is beyond loopback without admin.tls; tokens would travel in the "
                "clear. Set admin.tls.cert and admin.tls.key, or listen on 127.0.0.1"
            )
        return self


class AgentsTls(Model):
    """The agents' endpoint: its own certificate, the authority's root, and what the server may renew with."""

    ca: str
    cert: str
    key: str
    revocations: str | None = None
    """The authority's revocation list (`revoked.pem`), read again whenever it changes."""
    renewal_cert: str | None = None
    """The intermediate whose only use is to renew agents' certificates. Without it nothing renews."""
    renewal_key: str | None = None


class AgentsListener(Model):
    """Where agents dial in. Without `tls` there are no agents: only static endpoints are served."""

    listen: HostPort = "0.0.0.0:8443"
    tls: AgentsTls | None = None


class Liveness(Model):
    """When silence means what (docs/reliability.md)."""

    lost_after: Duration = Field(15.0, gt=0)
    """Agent silent and shards not working for this long: the node is lost."""
    unreachable_limit: Duration = Field(300.0, gt=0)
    """Agent silent while its shards work: lost only after this long."""
    settle: Duration = 45.0
    """After a start: how long to wait for known nodes before anything new is placed or stopped."""
    probe_timeout: Duration = Field(5.0, gt=0)


class RouterSettings(Model):
    """The data plane."""

    body_bytes_max: int = Field(64 * 1024 * 1024, ge=1024, le=4 * 1024**3)
    """A larger request is answered with 413."""
    connect_timeout: Duration = Field(5.0, gt=0)
    drain_grace: Duration = 60.0
    """How long streams of a stopping replica may go on."""
    connections_max: int = Field(10_000, ge=16, le=1_000_000)


class ServerConfig(Model):
    """The control plane and the gateway."""

    listen: HostPort = "127.0.0.1:8080"
    """The model API."""
    auth: str | None = None
    """`none` opens the model API beyond loopback to everybody who can reach it."""
    admin: AdminListener = AdminListener()
    agents: AgentsListener = AgentsListener()
    state: str = "./llmgw-state"
    """The folder for the database, the routers' sockets and the first admin token."""
    liveness: Liveness = Liveness()
    router: RouterSettings = RouterSettings()
    models: list[CatalogModel] = Field(default_factory=list, max_length=1000)

    @model_validator(mode="after")
    def _consistent(self) -> ServerConfig:
        Catalog(models=self.models)
        host, _ = split_host_port(self.listen)
        if self.auth not in (None, "none"):
            raise ValueError(f"auth {self.auth!r} is not known; leave it out, or write auth: none")
        if not is_loopback(host) and self.auth != "none":
            raise ValueError(
                f"listen {self.listen} is beyond loopback and asks nobody for a key; listen on 127.0.0.1 behind "
                "a proxy that authenticates, or write auth: none to open it to everybody who can reach it"
            )
        if self.liveness.unreachable_limit < self.liveness.lost_after:
            raise ValueError("liveness.unreachable_limit is below liveness.lost_after; raise it")
        return self

    @property
    def catalog(self) -> Catalog:
        """`models:` as a catalog."""
        return Catalog(models=self.models)

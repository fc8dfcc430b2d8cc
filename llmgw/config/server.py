"""`server.yaml`: the control plane and the gateway. Every key has a default that works on a laptop."""

from __future__ import annotations

from enum import Enum

from pydantic import Field, model_validator

from llmgw.config.addresses import HostPort, is_loopback, overlap, split_host_port
from llmgw.config.base import Duration, Model
from llmgw.config.catalog import Catalog, CatalogModel, refuse_shared_names
from llmgw.config.errors import KeyedError
from llmgw.config.origins import Network, Origin
from llmgw.config.tracing import Tracing


class ListenTls(Model):
    """A certificate and its key for a listener."""

    cert: str
    """The certificate, followed by the intermediates that signed it (PEM)."""
    key: str
    """Its private key, readable only by its owner (0600)."""


class AdminListener(Model):
    """Admin API, pages and metrics. Beyond loopback it needs TLS, so that tokens never travel in the clear."""

    listen: HostPort = "127.0.0.1:8081"
    """Where `ctl`, browsers and Prometheus connect."""
    tls: ListenTls | None = None
    """Its certificate; needed beyond loopback."""

    @model_validator(mode="after")
    def _tls_beyond_loopback(self) -> AdminListener:
        host, _ = split_host_port(self.listen)
        if self.tls is None and not is_loopback(host):
            raise KeyedError(
                f"{self.listen} is beyond loopback without admin.tls; tokens would travel in the "
                "clear: set admin.tls.cert and admin.tls.key, or listen on 127.0.0.1",
                "listen",
            )
        return self


class AgentsTls(Model):
    """The agents' endpoint: its own certificate, the authority's root, and what the server may renew with."""

    ca: str
    """The authority's root certificate, which every agent's certificate leads back to."""
    cert: str
    """This server's certificate, made by `llmgw ctl cert issue-server`."""
    key: str
    """Its private key, readable only by its owner (0600)."""
    revocations: str | None = None
    """The authority's revocation list (`revoked.pem`), read again whenever it changes."""
    renewal_cert: str | None = None
    """The intermediate whose only use is to renew agents' certificates. Without it nothing renews."""
    renewal_key: str | None = None
    """The intermediate's private key (0600)."""

    @model_validator(mode="after")
    def _renewal_is_whole(self) -> AgentsTls:
        if (self.renewal_cert is None) != (self.renewal_key is None):
            missing, given = ("renewal_key", "renewal_cert")
            if self.renewal_cert is None:
                missing, given = given, missing
            raise KeyedError(f"needs {missing} beside it; set both, or neither", given)
        return self


class AgentsListener(Model):
    """Where agents dial in. Without `tls` there are no agents: only static endpoints are served."""

    listen: HostPort = "0.0.0.0:8443"
    """The address for the agents' connections."""
    tls: AgentsTls | None = None
    """The files of mutual TLS. Left out: no agents."""


class Liveness(Model):
    """When silence means what."""

    lost_after: Duration = Field(15.0, gt=0)
    """Agent silent and shards not working for this long: the node is lost."""
    unreachable_limit: Duration = Field(300.0, gt=0)
    """Agent silent while its shards work: lost only after this long."""
    settle: Duration = 45.0
    """After a start: how long to wait for known nodes before anything new is placed or stopped."""
    stall_after: Duration = Field(120.0, gt=0)
    """A ready replica that has work and shows no progress for this long leaves the rotation, reversibly."""
    stalled_limit: Duration = Field(600.0, gt=0)
    """Out of the rotation and no probe answered for this long: the replica is failed and replaced. A model
    whose `first_byte_timeout` is longer has that long."""
    probe_interval: Duration = Field(60.0, gt=0)
    """How often an idle replica is asked for one token."""
    probe_timeout: Duration = Field(5.0, gt=0)
    """How long a one-token probe of a silent node's shard may take."""
    suspect_window: Duration = Field(600.0, gt=0)
    """A node on which three profiles failed within this long, while they run elsewhere, is placed on last, until
    nothing has failed there for as long."""
    port_down_suspend: Duration = Field(10.0, gt=0)
    """A fabric port down under a replica of several nodes for this long: out of the rotation, until it is up."""
    port_down_fail: Duration = Field(30.0, gt=0)
    """A fabric port down under a replica of several nodes for this long: the replica is failed and replaced."""

    @model_validator(mode="after")
    def _suspend_before_failing(self) -> Liveness:
        if self.port_down_fail < self.port_down_suspend:
            raise KeyedError(
                f"{self.port_down_fail:g} s is shorter than port_down_suspend ({self.port_down_suspend:g} s); a "
                "replica leaves the rotation before it is failed: make it longer",
                "port_down_fail",
            )
        return self


class Cors(Model):
    """Web pages of other sites that may use the model API from a browser."""

    origins: list[Origin] = Field(default_factory=list, max_length=256)
    """Their origins, such as `https://chat.example.org`, or `*` for all. Default: none may."""


class RouterSettings(Model):
    """The data plane."""

    workers: int | None = Field(None, ge=0, le=256)
    """How many processes accept clients. Default: one for two cores, at least one. `0`: this server starts none,
    they are units of their own (docs/routers.md)."""
    body_bytes_max: int = Field(64 * 1024 * 1024, ge=1024, le=4 * 1024**3)
    """A larger request is answered with 413."""
    connect_timeout: Duration = Field(5.0, gt=0)
    """How long connecting to an engine may take before another is tried."""
    drain_grace: Duration = 60.0
    """How long streams of a stopping replica may go on."""
    connections_max: int = Field(10_000, ge=16, le=1_000_000)
    """Client connections at a time, of all workers together; later ones are answered with 503."""
    trusted_proxies: list[Network] = Field(default_factory=list, max_length=256)
    """Addresses or networks of your own proxies. What they say of their clients (`X-Forwarded-For`, `Forwarded`)
    goes on to engines; what anybody else says is thrown away."""
    cors: Cors = Cors()
    """Web pages of other sites that may use the model API from a browser."""
    tracing: Tracing = Tracing()
    """A span for each request, for an OpenTelemetry collector."""


class Placement(Model):
    """What is asked of nodes beyond what they offer."""

    require_fabric_test: Duration | None = Field(None, gt=0)
    """Replicas of several nodes go only to nodes that passed `llmgw ctl fabric-test` on their fabric within this
    time, such as `7d`. Default: that is not asked."""


class FabricWatching(Model):
    """How often InfiniBand fabrics are asked about themselves, each time through a node that is on them."""

    managers_interval: Duration = Field(60.0, ge=0.2)
    """Between two questions to a fabric's subnet managers (`saquery`)."""
    map_interval: Duration = Field(300.0, ge=1)
    """Between two maps of a fabric (`ibnetdiscover`)."""


class UsageSettings(Model):
    """What is kept of how many tokens requests took."""

    keep: Duration = Field(400 * 86_400.0, ge=86_400)
    """How long sums by key, model and hour are kept."""


class KeyRule(Enum):
    """Which clients of the model API need a key."""

    ALWAYS = "always"
    ONCE_MADE = "once a key was made"
    """Also when all keys are revoked since: revoking the last one must not open the gateway to everybody."""
    NEVER = "never"


class ServerConfig(Model):
    """The control plane and the gateway."""

    listen: HostPort = "127.0.0.1:8080"
    """The model API: where clients send requests."""
    tls: ListenTls | None = None
    """Its certificate. Left out: clients speak plain HTTP, as behind a proxy that has one."""
    auth: str | None = None
    """Who may use the model API. `keys`: whoever has an API key (`llmgw ctl keys create`). `none`: everybody who
    can reach it. Left out: beyond loopback keys are needed, and on loopback as soon as one has been made."""
    admin: AdminListener = AdminListener()
    """Admin API, pages and metrics."""
    agents: AgentsListener = AgentsListener()
    """Where agents dial in."""
    state: str = "./llmgw-state"
    """The folder for the database, the routers' sockets and the first admin token."""
    liveness: Liveness = Liveness()
    """When silence means what."""
    placement: Placement = Placement()
    """What is asked of nodes beyond what they offer."""
    router: RouterSettings = RouterSettings()
    """The data plane."""
    fabrics: FabricWatching = FabricWatching()
    """How often InfiniBand fabrics are asked about themselves."""
    usage: UsageSettings = UsageSettings()
    """What is kept of how many tokens requests took."""
    release_key: str = "/etc/llmgw/release.pub"
    """The public key (Ed25519, PEM) of releases. Where the file is there, `llmgw ctl upgrade` with another key's
    file is refused before any agent is asked; each agent looks at it with its own key all the same."""
    models: list[CatalogModel] = Field(default_factory=list, max_length=1000)
    """The catalog that an empty store begins with."""

    @model_validator(mode="after")
    def _consistent(self) -> ServerConfig:
        refuse_shared_names(self.models)
        if self.auth not in (None, "keys", "none"):
            raise KeyedError(
                f"{self.auth!r} is not known; write auth: keys to ask everybody for an API key, auth: none to "
                "ask nobody, or leave it out",
                "auth",
            )
        if self.liveness.unreachable_limit < self.liveness.lost_after:
            raise KeyedError("must not be below liveness.lost_after; raise it", "liveness", "unreachable_limit")
        self._refuse_shared_ports()
        return self

    def _refuse_shared_ports(self) -> None:
        listeners = [(("listen",), self.listen), (("admin", "listen"), self.admin.listen)]
        if self.agents.tls is not None:
            listeners.append((("agents", "listen"), self.agents.listen))
        for index, (key, address) in enumerate(listeners):
            for other_key, other in listeners[:index]:
                if overlap(address, other):
                    raise KeyedError(
                        f"{address} and {'.'.join(other_key)}: {other} are one port, which only one of them can "
                        "have; give each its own",
                        *key,
                    )

    @property
    def key_rule(self) -> KeyRule:
        """Who is asked for an API key."""
        if self.auth is not None:
            return KeyRule.ALWAYS if self.auth == "keys" else KeyRule.NEVER
        host, _ = split_host_port(self.listen)
        return KeyRule.ONCE_MADE if is_loopback(host) else KeyRule.ALWAYS

    @property
    def catalog(self) -> Catalog:
        """`models:` as a catalog."""
        return Catalog(models=self.models)

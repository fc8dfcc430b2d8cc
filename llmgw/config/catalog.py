"""The catalog: the models that should be served, and the profiles that say how."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import Annotated, Literal

import msgspec
from pydantic import Field, field_validator, model_validator

from llmgw.config.base import Duration, Model, Size
from llmgw.config.base_urls import check_base_url
from llmgw.config.errors import KeyedError
from llmgw.config.shares import Share
from llmgw.config.sources import checksum_problem, read_source
from llmgw.messages.routes import AnthropicWay

EngineName = Literal["vllm", "sglang", "llamacpp", "sim"]
Task = Literal["chat", "completion", "embedding", "rerank", "score", "transcription"]

# A model name travels in JSON bodies, URLs and history; slashes and dots are common (`org/name`).
_MODEL_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$")
_PROFILE_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")


class Profile(Model):
    """One way to run a model."""

    name: str = "default"
    """What tells this profile from the model's others."""
    engine: EngineName
    """The engine that runs it."""
    nodes: int = Field(1, ge=1, le=256)
    """Nodes that one replica spans; above 1 they all sit on one fabric."""
    gpus_per_node: int = Field(1, ge=0, le=64)
    """GPUs that a replica uses on each of its nodes; 0 runs on the CPU."""
    tensor_parallel: int | None = Field(None, ge=1, le=1024)
    """GPUs that share each layer. Default: all GPUs of the replica divided by `pipeline_parallel`."""
    pipeline_parallel: int = Field(1, ge=1, le=256)
    """Stages that the layers are cut into, one after the other."""
    replicas: int = Field(1, ge=0, le=1000)
    """How many replicas should run."""
    concurrency: int | None = Field(None, ge=1, le=100_000)
    """Requests that are outstanding at one replica at a time, of all routers together; what all replicas have no
    room for waits in the model's queue. Also how much a replica takes against those of other profiles. Default:
    no limit."""
    weight: float = Field(1.0, ge=0, le=1000, allow_inf_nan=False)
    """The share of the model's requests that each replica gets, against 1 for others: 0.1 tries something new on
    a few. 0 gets none, as long as any other can take them. Changing it restarts nothing."""
    fabric: str | None = None
    """Place on this fabric only. Default: any fabric that holds the whole replica."""
    args: list[str] = Field(default_factory=list, max_length=256)
    """Arguments for the engine, one an entry, after those that llmgw gives it."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the engine."""
    fetch_timeout: Duration = Field(21600.0, gt=0)
    """How long fetching the model to a node may take before its shard fails; what was fetched is kept."""
    fetch_stall_limit: Duration = Field(300.0, gt=0)
    """How long a download may stand still before its shard fails."""
    rendezvous_timeout: Duration = 120.0
    """How long the leader waits for its workers."""
    load_timeout: Duration = 1800.0
    """How long an engine may load before its shard fails."""
    stop_timeout: Duration | None = None
    """Between SIGTERM and SIGKILL. Default: the agent's own `supervisor.stop_timeout`."""
    max_failures: int = Field(3, ge=1, le=100)
    """A changed form that fails this often while the old one serves is rolled back."""
    stop_first: bool = False
    """Stop a replica before its replacement is up, for fleets without room for both."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _PROFILE_NAME.match(value):
            raise ValueError(
                f"{value!r} is not a profile name; use lower-case letters, digits, '-' and '_', at most 63"
            )
        return value

    @field_validator("args")
    @classmethod
    def _args(cls, value: list[str]) -> list[str]:
        for index, argument in enumerate(value):
            if "\0" in argument:
                raise KeyedError(f"{argument!r} holds a NUL character, which no program can be given", index)
        return value

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                raise KeyedError(f"{key!r} is not an environment variable name; use letters, digits and '_'", key)
            if "\0" in value[key]:
                raise KeyedError("the value holds a NUL character, which no program can be given", key)
        return value

    @model_validator(mode="after")
    def _parallelism(self) -> Profile:
        gpus = self.nodes * self.gpus_per_node
        if self.nodes > 1 and self.gpus_per_node == 0:
            raise KeyedError(
                "must be at least 1 when nodes is above 1; a replica over several nodes needs GPUs",
                "gpus_per_node",
            )
        if self.tensor_parallel is not None and gpus and self.tensor_parallel * self.pipeline_parallel != gpus:
            raise KeyedError(
                f"tensor_parallel {self.tensor_parallel} × pipeline_parallel {self.pipeline_parallel} is not "
                f"nodes {self.nodes} × gpus_per_node {self.gpus_per_node} = {gpus}; change one of them",
                "tensor_parallel",
            )
        if self.tensor_parallel is None and gpus and gpus % self.pipeline_parallel:
            raise KeyedError(
                f"{self.pipeline_parallel} does not divide the {gpus} GPUs of a replica; choose a divisor",
                "pipeline_parallel",
            )
        return self

    @property
    def tensor_parallel_size(self) -> int:
        """`tensor_parallel`, or its default from the GPUs of a replica."""
        if self.tensor_parallel is not None:
            return self.tensor_parallel
        return max(1, self.nodes * self.gpus_per_node // self.pipeline_parallel)


class StaticEndpoint(Model):
    """An OpenAI-compatible server that llmgw does not run: `url`, and where its key lies."""

    url: str
    """`http://10.0.0.5:8000` or `https://api.example.org/prefix`; `/v1/…` is added."""
    api_key_file: str | None = None
    """A file whose first line is the key, sent as `Authorization: Bearer …`."""
    model: str | None = None
    """The model's name there, when it differs."""
    concurrency: int | None = Field(None, ge=1, le=100_000)
    """Requests that are outstanding there at a time, as a profile's. Default: no limit."""
    weight: float = Field(1.0, ge=0, le=1000, allow_inf_nan=False)
    """Its share of the model's requests, as a profile's: 0 stands by for when nothing else can take them."""
    ask_usage: bool = True
    """Ask for the tokens of streams (`stream_options`) where the client does not. `false` for a server that
    refuses it; what its streams take is then estimated."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        check_base_url(value, "http://10.0.0.5:8000 or https://host/prefix", "keys go into api_key_file")
        base = value.rstrip("/").removesuffix("/v1")
        if base.endswith(("/", "/v1")):
            # Read once more, as the store does, it would lose another part and mean another place.
            raise ValueError(f"{value!r} has slashes or /v1 twice at its end; write it up to what precedes /v1")
        return base


class Queue(Model):
    """Requests that wait until one of a model's engines has room for them."""

    requests_max: int = Field(1000, ge=0, le=1_000_000)
    """How many may wait at a time, of all routers together; 0: none, what engines have no room for is refused."""
    bytes_max: Size = Field(256 * 1024**2, ge=1)
    """How large their bodies may be together. One request by itself may wait whatever its size."""
    timeout: Duration = Field(30.0, gt=0)
    """How long one may wait. What could not start within that, at the rate at which others do, is refused at
    once."""


class Limits(Model):
    """What a model should stay below. When it was above a limit for half a minute, a finding says so, no more."""

    waiting: int | None = Field(None, ge=1, le=1_000_000_000)
    """Requests that wait in the engine of one replica, by its own word."""
    kv_cache: Share | None = None
    """The part of one replica's KV cache that is in use, as `90%` or `0.9`."""
    ttft_p95: Duration | None = Field(None, gt=0)
    """How long 95 of 100 requests wait for their first byte at most, over the last minute, at the gateway."""


class CatalogModel(Model):
    """A name that clients ask for, and its profiles or static endpoints."""

    name: str
    """The name that clients ask for."""
    aliases: list[str] = Field(default_factory=list, max_length=32)
    """Other names for the same model."""
    source: str = ""
    """What the engine loads: `org/name`, which it resolves itself; a path that exists on the nodes; or
    `https://…/file.gguf` (`http://`, `file://`), which the agent fetches. Empty for `sim`."""
    checksum: str | None = None
    """`sha256:` and the digest that a fetched file must have."""
    task: Task = "chat"
    """What the model does; a one-token request of this kind proves that a replica works."""
    profiles: list[Profile] = Field(default_factory=list, max_length=32)
    """Ways to run it on the nodes."""
    endpoints: list[StaticEndpoint] = Field(default_factory=list, max_length=64)
    """Servers that run elsewhere and serve it too."""
    first_byte_timeout: Duration = 600.0
    """How long a request may wait for its first byte before it is tried elsewhere or failed."""
    chunk_timeout: Duration = Field(300.0, gt=0)
    """How long an answer that has begun may stand still before it is broken off with an error."""
    request_timeout: Duration | None = Field(None, gt=0)
    """How long a whole request may take, with all its tries, before it is broken off. Default: an hour, or twice
    `first_byte_timeout` where that is longer."""
    prefix_affinity: bool = False
    """Send conversations back to the endpoint that has their beginning in its cache, as long as that one has at
    most 1.25 times its share of the requests. For engines that cache prefixes."""
    anthropic: AnthropicWay = "auto"
    """How requests of Anthropic's Messages API get to an engine: `engine` as they are, `translate` as chat
    completions, `auto` as they are and, where the engine has no such path, as chat completions."""
    context_length: int | None = Field(None, ge=1)
    """Tokens that prompt and answer may have together, for clients to see in `GET /v1/models`; no limit is set by
    it. Default: what the engine says."""
    queue: Queue = Queue()
    """Requests that wait until one of its engines has room."""
    limits: Limits = Limits()
    """What it should stay below; a finding says when it does not (docs/catalog.md). Changes restart nothing."""
    pings: bool = False
    """Send streams a comment every few seconds until their first token, for balancers that cut idle connections.
    An error that comes after the first of them is an event of the stream, and no status."""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return _model_name(value)

    @field_validator("aliases")
    @classmethod
    def _aliases(cls, value: list[str]) -> list[str]:
        for index, alias in enumerate(value):
            try:
                _model_name(alias)
            except ValueError as error:
                raise KeyedError(str(error), index) from None
        return value

    @field_validator("source")
    @classmethod
    def _source(cls, value: str) -> str:
        read_source(value)  # a SourceError is a ValueError with a sentence
        return value

    @model_validator(mode="after")
    def _checksum(self) -> CatalogModel:
        if self.checksum is not None:
            problem = checksum_problem(self.checksum, read_source(self.source))
            if problem is not None:
                raise KeyedError(problem, "checksum")
        return self

    @model_validator(mode="after")
    def _profiles(self) -> CatalogModel:
        if not self.profiles and not self.endpoints:
            raise ValueError(f"model {self.name!r} has neither profiles nor endpoints; give it one")
        names: set[str] = set()
        for at, profile in enumerate(self.profiles):
            if profile.name in names:
                raise KeyedError(
                    f"model {self.name!r} has two profiles named {profile.name!r}; rename one",
                    *("profiles", at, "name"),
                )
            names.add(profile.name)
            if profile.engine != "sim" and not self.source:
                raise KeyedError(
                    f"model {self.name!r} has no source, which profile {profile.name!r} "
                    f"({profile.engine}) must load; set source to org/name, a path or a URL",
                    "source",
                )
        return self

    @property
    def served_names(self) -> list[str]:
        """The name, then the aliases, each once."""
        return list(dict.fromkeys([self.name, *self.aliases]))

    @property
    def request_timeout_s(self) -> float:
        """`request_timeout`, or its default."""
        if self.request_timeout is not None:
            return self.request_timeout
        return max(3600.0, 2 * self.first_byte_timeout)

    @cached_property
    def profile_hashes(self) -> dict[str, str]:
        """Profile name → a short hash of everything that would change the running form.

        Replica count and deadlines are left out: changing them restarts nothing.
        """
        return {profile.name: _hash(self, profile) for profile in self.profiles}


class Catalog(Model):
    """All models. Names and aliases are unique over the whole catalog."""

    models: list[CatalogModel] = Field(default_factory=list, max_length=1000)
    """The models that should be served."""

    @model_validator(mode="after")
    def _unique(self) -> Catalog:
        refuse_shared_names(self.models)
        return self

    @cached_property
    def by_name(self) -> dict[str, CatalogModel]:
        """Model name → model (aliases are not in it)."""
        return {model.name: model for model in self.models}

    @cached_property
    def limited(self) -> list[CatalogModel]:
        """The models that have limits."""
        return [model for model in self.models if model.limits != Limits()]

    def find(self, model: str, profile: str) -> tuple[CatalogModel, Profile] | None:
        """The model and the profile by their names, or None."""
        found = self.by_name.get(model)
        if found is None:
            return None
        for candidate in found.profiles:
            if candidate.name == profile:
                return found, candidate
        return None


def refuse_shared_names(models: list[CatalogModel]) -> None:
    """Raise KeyedError (its key begins with `models`) when two models have a name or an alias in common."""
    owner: dict[str, str] = {}
    for at, model in enumerate(models):
        for name in model.served_names:
            if name in owner:
                key = ("name",) if name == model.name else ("aliases", model.aliases.index(name))
                raise KeyedError(
                    f"the name {name!r} belongs to both {owner[name]!r} and {model.name!r}; "
                    "names and aliases are unique over the catalog, rename one",
                    *("models", at, *key),
                )
            owner[name] = model.name


def _model_name(value: str) -> str:
    if not _MODEL_NAME.match(value):
        raise ValueError(
            f"{value!r} is not a model name; it begins with a letter or digit and goes on with letters, digits "
            "and . _ : / @ + -, at most 200"
        )
    return value


def _hash(model: CatalogModel, profile: Profile) -> str:
    parts: Annotated[list[object], "what the running form depends on"] = [
        model.served_names,
        model.source,
        model.task,
        profile.engine,
        profile.nodes,
        profile.gpus_per_node,
        profile.tensor_parallel_size,
        profile.pipeline_parallel,
        profile.fabric,
        profile.args,
        sorted(profile.env.items()),
    ]
    if model.checksum is not None:  # added later: what runs without one keeps its hash
        parts.append(model.checksum)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:12]

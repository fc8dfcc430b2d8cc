"""The control host's user, folders and server.yaml, which is written once and then its operator's."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from llmgw.config.addresses import is_loopback, split_host_port
from llmgw.config.errors import SentenceError
from llmgw.config.server import ServerConfig
from llmgw.onboarding.local_host import Action, ControlHostError, LocalHost
from llmgw.release.layout import (
    CA,
    ETC,
    SERVER_CERT,
    SERVER_CONFIG,
    SERVER_KEY,
    SERVER_STATE,
    SERVER_USER,
)

DEFAULT_LISTEN = "127.0.0.1:8080"
RENEWAL_CERT = f"{ETC}/renewal.pem"
RENEWAL_KEY = f"{ETC}/renewal-key.pem"
SERVER_OWNER = f"{SERVER_USER}:{SERVER_USER}"
SHARED_WITH_SERVER = f"root:{SERVER_USER}"

_YAML = """\
# server.yaml: the control plane and the gateway, as `llmgw server install` wrote it. It is yours from now on: the
# installer reads it and never writes it again. Every key: docs/configuration.md.
#   llmgw server --config /etc/llmgw/server.yaml --check   says whether it is good
#   systemctl restart llmgw-server                         takes it (costs no request)
#   systemctl reload llmgw-server                          takes only `models:`
#   llmgw server install                                   after changes of listen, tls or router: makes the
#                                                          routers' units anew and restarts what differs

# The model API. Its socket is kept by llmgw-router.socket.
{listen_words}
listen: {listen}
#auth: keys
# Its certificate, for clients that come over https without a proxy; the user llmgw must be able to read both.
#tls:
  #cert: /etc/llmgw/gateway.pem
  #key: /etc/llmgw/gateway-key.pem

# Database, routers' sockets and the token by which root's `llmgw ctl` finds this server.
state: {state}

# Admin API, pages and metrics. From elsewhere: ssh -L 8081:127.0.0.1:8081 THIS-HOST, or a certificate here.
admin:
  listen: 127.0.0.1:8081

# Where agents dial in, over mutual TLS.
agents:
  listen: 0.0.0.0:8443
  tls:
    ca: {ca}
    cert: {cert}
    key: {key}
{more_tls}
# The data plane: the routers are units (llmgw-router@0, ...), which no restart of the server touches.
router:
  workers: 0
  #connections_max: 10000 # of all routers together
  #drain_grace: 1m        # how long streams of a router or replica that stops may go on

# The catalog that an empty store begins with; later changes by `llmgw ctl apply FILE` (docs/catalog.md).
#models:
  #- name: qwen2.5-7b
    #source: Qwen/Qwen2.5-7B-Instruct
    #profiles:
      #- engine: vllm
        #gpus_per_node: 1
"""


def check_user(host: LocalHost) -> None:
    """Raise ControlHostError when the user that is there is root by another name."""
    found = host.run(["getent", "passwd", SERVER_USER], None)
    # name:password:uid:…, passwd(5)
    if found.code == 0 and found.out.split(":")[2:3] == ["0"]:
        raise ControlHostError(
            f"The user {SERVER_USER} of this machine has the id 0, so server and routers would run as root; give "
            f"it an id of its own (usermod --uid), or remove it (userdel {SERVER_USER}), and run this again."
        )


def user(host: LocalHost) -> list[Action]:
    """The user that server and routers run as, and its group."""
    if host.ids(SERVER_OWNER) is not None:
        return []
    has_group = host.run(["getent", "group", SERVER_USER], None).code == 0
    if not has_group and host.run(["getent", "passwd", SERVER_USER], None).code == 0:
        # Somebody made the user with another group; the units run it with this one.
        argv = ["groupadd", "--system", SERVER_USER]

        def add_group() -> None:
            host.command(argv, f"The group {SERVER_USER} could not be made")

        return [Action(f"make the group {SERVER_USER}", add_group)]
    # useradd would refuse to make a group that is there.
    group = ["--gid", SERVER_USER] if has_group else ["--user-group"]
    argv = ["useradd", "--system", *group, "--home-dir", SERVER_STATE, "--no-create-home"]
    argv += ["--shell", "/usr/sbin/nologin", "--comment", "llmgw server and routers", SERVER_USER]

    def add() -> None:
        host.command(argv, f"The user {SERVER_USER} could not be made")

    return [Action(f"make the user {SERVER_USER}", add)]


def folders(host: LocalHost) -> list[Action]:
    """The configuration's folder. Keys in it are closed one by one."""
    return host.folder(ETC, 0o755)


def configuration(
    listen: str | None,
    host: LocalHost,
    load: Callable[[Path], ServerConfig],
    *,
    renews: bool,
    revocations: str | None,
) -> tuple[ServerConfig, str | None]:
    """The configuration that rules, and the text of it where it has to be written. Raises SentenceError."""
    place = host.path(SERVER_CONFIG)
    if place.exists():
        config = load(place)
        _check_fits_units(config, listen)
        return config, None
    listen = DEFAULT_LISTEN if listen is None else listen
    try:
        split_host_port(listen)
    except ValueError as error:
        raise ControlHostError(f"--listen: {error}") from None
    text = server_yaml(listen, renews=renews, revocations=revocations)
    # Read as it will be read: what a wrong address would do is said here, and not by a unit that fails.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="llmgw-") as file:
        file.write(text)
        file.flush()
        try:
            return load(Path(file.name)), text
        except SentenceError as error:
            said = str(error).replace(file.name, SERVER_CONFIG)
            raise ControlHostError(f"--listen {listen} makes no good configuration. {said}") from None


def server_yaml(listen: str, *, renews: bool, revocations: str | None) -> str:
    """The text of a new server.yaml."""
    host, _ = split_host_port(listen)
    words = "# Beyond loopback every client needs a key (`llmgw ctl keys create NAME`)."
    if is_loopback(host):
        words = (
            "# For this host alone. 0.0.0.0:8080 lets others in, each with a key (`llmgw ctl keys create NAME`)."
        )
    more = [f"    revocations: {revocations}"] if revocations is not None else []
    if renews:
        more += [
            "    # The intermediate whose only use is to renew agents' certificates.",
            f"    renewal_cert: {RENEWAL_CERT}",
            f"    renewal_key: {RENEWAL_KEY}",
        ]
    return _YAML.format(
        # Brackets, as IPv6 has them, begin a list in YAML.
        listen=listen if re.fullmatch(r"[0-9A-Za-z.-]+:[0-9]+", listen) else json.dumps(listen),
        listen_words=words,
        state=SERVER_STATE,
        ca=CA,
        cert=SERVER_CERT,
        key=SERVER_KEY,
        more_tls="".join(f"{line}\n" for line in more),
    )


def write_configuration(host: LocalHost, text: str | None) -> list[Action]:
    """The first server.yaml; models' environments may hold secrets, so others do not read it."""
    return [] if text is None else host.file(SERVER_CONFIG, text, 0o640, SHARED_WITH_SERVER)


def _check_fits_units(config: ServerConfig, listen: str | None) -> None:
    """Raise ControlHostError when an operator's server.yaml says what the units cannot do."""
    if listen is not None and listen != config.listen:
        raise ControlHostError(
            f"{SERVER_CONFIG} is there and says listen: {config.listen}; write {listen} there, and run this "
            "again without --listen."
        )
    if config.router.workers != 0:
        said = "nothing" if config.router.workers is None else str(config.router.workers)
        raise ControlHostError(
            f"{SERVER_CONFIG} says {said} for router.workers, so the server would keep routers of its own and "
            "end those of the units; write `workers: 0` below `router:`, and run this again."
        )
    if os.path.normpath(config.state) != SERVER_STATE:
        raise ControlHostError(
            f"{SERVER_CONFIG} says state: {config.state}, and the units may write to {SERVER_STATE} alone; "
            f"mount the disk that is meant there, write `state: {SERVER_STATE}`, and run this again."
        )

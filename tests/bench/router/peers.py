"""The programs that the gateway is measured beside, each as its own documents say how to run one worker of it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.router.processes import start
from tests.bench.router.targets import MODEL, Place, Target, TargetError
from tests.ports import free_port

INSTALL_S = 1800.0


class Nginx(Target):
    """nginx with one worker: what passing bytes on costs when nothing is known of them."""

    def __init__(self) -> None:
        super().__init__("nginx")

    def start(self, place: Place) -> None:
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            raise TargetError("nginx is left out: it is not installed (apt install nginx-light)")
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
        self.version = match[1] if (match := re.search(r"nginx/(\S+)", said)) else ""
        folder = place.folder / self.name
        folder.mkdir()
        self.port = free_port()
        servers = " ".join(f"server 127.0.0.1:{port};" for port in place.engine_ports)
        text = _NGINX.replace("@FOLDER@", str(folder)).replace("@SERVERS@", servers)
        if os.geteuid() == 0:  # else it gives its workers to somebody who may not write here
            text = "user root;\n" + text
        (folder / "nginx.conf").write_text(text.replace("@PORT@", str(self.port)))
        self.log = folder / "log"
        argv = [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "early.log"]
        self.processes = [start(argv, place.cores.gateway, self.log)]
        self.wait_serving()


_NGINX = """\
worker_processes 1; daemon off; pid @FOLDER@/pid; error_log @FOLDER@/error.log warn; worker_rlimit_nofile 20000;
events { worker_connections 16384; }
http {
  access_log off; client_body_temp_path @FOLDER@/body; proxy_temp_path @FOLDER@/proxy;
  fastcgi_temp_path @FOLDER@/fastcgi; uwsgi_temp_path @FOLDER@/uwsgi; scgi_temp_path @FOLDER@/scgi;
  tcp_nodelay on; keepalive_requests 1000000; keepalive_timeout 300s;
  upstream engines { least_conn; @SERVERS@ keepalive 1024; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:@PORT@ backlog=4096; client_max_body_size 64m; client_body_buffer_size 256k;
    location / {
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }
  }
}
"""


@dataclass(frozen=True)
class Package:
    """A peer from the package index. `argv(programs, port, place, folder)` starts it, out of a bin folder."""

    name: str
    version: str
    argv: Callable[[Path, int, Place, Path], list[str | Path]]
    requirement: str = ""
    env: dict[str, str] = field(default_factory=dict)
    slow: bool = False

    @property
    def pinned(self) -> str:
        return f"{self.requirement or self.name}=={self.version}"


class Peer(Target):
    """A package in an environment of its own, outside of this project's."""

    def __init__(self, package: Package, environment: Path | None) -> None:
        super().__init__(package.name, package.version)
        self._package = package
        self._environment = environment
        self.slow = package.slow

    def start(self, place: Place) -> None:
        package, environment = self._package, self._environment
        if environment is None:
            raise TargetError(
                f"{self.name} is left out: it needs an environment; --install DIR makes one, --peers DIR takes it"
            )
        found = installed_version(environment, package.name)
        if found != package.version:
            has = f"has {package.name} {found}" if found else f"has no {package.name}"
            raise TargetError(
                f"{self.name} is left out: {environment} {has}, and {package.version} is measured here"
            )
        folder = place.folder / self.name
        folder.mkdir()
        self.port = free_port()
        self.log = folder / "log"
        argv = package.argv(environment / "bin", self.port, place, folder)
        self.processes = [start(argv, place.cores.gateway, self.log, env=package.env)]
        self.wait_serving()


def _rust(command: Sequence[str], *options: str) -> Callable[[Path, int, Place, Path], list[str | Path]]:
    """The three that come from one code share most of their options."""

    def argv(programs: Path, port: int, place: Place, folder: Path) -> list[str | Path]:
        return [
            *(programs / command[0], *command[1:]),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--worker-urls", *place.engine_urls),
            *("--policy", "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
            *options,
        ]

    return argv


def _litellm(programs: Path, port: int, place: Place, folder: Path) -> list[str | Path]:
    entries = "".join(
        f"  - model_name: {MODEL}\n"
        f'    litellm_params: {{model: openai/{MODEL}, api_base: "{url}/v1", api_key: none}}\n'
        for url in place.engine_urls
    )
    settings = "general_settings: {dangerously_permit_weak_or_unset_master_key: true}\n"
    (folder / "litellm.yaml").write_text(f"model_list:\n{entries}{settings}")
    return [
        *(programs / "litellm", "--config", folder / "litellm.yaml"),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
    ]


PACKAGES = (
    Package("vllm-router", "0.1.17", _rust(["vllm-router"], "--log-level", "warning")),
    Package(
        "sglang-router", "0.3.2", _rust(["python", "-m", "sglang_router.launch_router"], "--log-level", "warn")
    ),
    Package(
        "smg",
        "1.13.0",
        _rust(["smg", "launch"], "--backend", "openai", "--history-backend", "none", "--log-level", "warn"),
    ),
    Package(
        "litellm",
        "1.108.7",
        _litellm,
        requirement="litellm[proxy]",
        env={"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        slow=True,
    ),
)


def install(environment: Path) -> list[str]:
    """Make the environment with all packages. What cannot be had is told in sentences and left out."""
    if not (environment / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    problems = []
    for package in PACKAGES:
        if installed_version(environment, package.name) == package.version:
            continue
        done = subprocess.run(
            [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", package.pinned],
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
            problems.append(f"{package.pinned} cannot be installed: {said[0][:300]}")
    return problems


def installed_version(environment: Path, name: str) -> str | None:
    """The version of a package in an environment; None when it is not there."""
    libraries = [str(path) for path in environment.glob("lib/python3.*/site-packages")]
    found = importlib.metadata.distributions(name=name, path=libraries)
    return next((distribution.version for distribution in found), None)

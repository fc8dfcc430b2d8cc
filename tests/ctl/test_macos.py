"""`llmgw ctl` on macOS, as far as Linux can play it: what Linux alone has is taken away before all else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Names that CPython has on Linux and not on macOS, by its documentation ("Availability: Linux").
PRELUDE = """
import os, select, signal, socket, sys, sysconfig, types
sysconfig.get_config_vars()  # which would look for the data of the other system
sys.platform = "darwin"
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)  # macOS has it
gone = {
    os: "epoll eventfd memfd_create pidfd_open sched_getaffinity sched_setaffinity splice setns unshare "
        "O_PATH O_TMPFILE copy_file_range getxattr setxattr posix_fallocate posix_fadvise",
    select: "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP",
    signal: "sigtimedwait sigwaitinfo pidfd_send_signal SIGPWR SIGSTKFLT",
    socket: "AF_NETLINK SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK AF_PACKET TCP_USER_TIMEOUT SO_BINDTODEVICE",
}
for module, names in gone.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys/")):
        raise RuntimeError(f"{arguments[0]} is not on this system")
    if event == "import" and arguments[0].partition(".")[0] in ("pynvml", "psutil"):
        raise ImportError(f"{arguments[0]} is not for ctl: it looks at this machine")
sys.addaudithook(refuse)
"""


def on_macos(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd=cwd,
        env={**os.environ, "HOME": str(cwd), "LLMGW_STATE": str(cwd / "state")},
    )


def llmgw(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return on_macos(
        f"import sys; sys.argv = {['llmgw', *arguments]!r}\nfrom llmgw.__main__ import main; main()", cwd
    )


def test_every_module_of_ctl_loads(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, llmgw.cli.ctl
for one in pkgutil.iter_modules(llmgw.cli.ctl.__path__, "llmgw.cli.ctl."):
    importlib.import_module(one.name)
print("all")
"""
    done = on_macos(code, tmp_path)
    assert done.stdout == "all\n", done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["ctl", "--help"], ["ctl", "nodes", "--help"]])
def test_what_asks_no_server_works(tmp_path: Path, arguments: list[str]) -> None:
    done = llmgw(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr


def test_a_server_is_asked(tmp_path: Path) -> None:
    done = llmgw(tmp_path, "ctl", "nodes", "--server", "http://127.0.0.1:9", "--token", "x")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_certificates_are_made(tmp_path: Path) -> None:
    done = llmgw(tmp_path, "ctl", "cert", "init-ca", "--pki", "pki")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pki" / "ca.pem").exists()

"""A machine to onboard, below a folder: what the scripts find there, stand-ins for the programs that would change
this host, and an `ssh` that runs commands as if on it and can fail as OpenSSH does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmgw import __version__
from llmgw.cli.onboard import main
from llmgw.release.files import Kind, name_of

REPOSITORY = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]
_SSH = r"""#!/bin/sh
# ssh of the tests: the command that stands last runs here, on the machine below LLMGW_TEST_MACHINE.
machine=$LLMGW_TEST_MACHINE
for word in "$@"; do last=$word; done
printf '%s\n' "$*" >>"$machine/ssh.log"
case " $* " in
  *" -G "*) echo "stricthostkeychecking ${LLMGW_TEST_STRICT:-ask}"; exit 0 ;;
  *" -O "*) exit 0 ;;
esac
if [ -f "$machine/ssh-fails" ]; then cat "$machine/ssh-fails" >&2; exit 255; fi
if [ -f "$machine/breaks-at" ]; then
  count=$(($(cat "$machine/breaks-at") - 1))
  echo "$count" >"$machine/breaks-at"
  if [ "$count" = 0 ]; then
    rm "$machine/breaks-at"
    # Half of what is sent arrives, and nothing of the answer.
    head -c 2000 | LLMGW_ROOT=$machine/root PATH=$machine/bin:$PATH sh -c "$last" >/dev/null 2>&1
    echo "client_loop: send disconnect: Broken pipe" >&2
    exit 255
  fi
fi
LLMGW_ROOT=$machine/root PATH=$machine/bin:$PATH exec sh -c "$last"
"""
_SYSTEMCTL = r"""#!/bin/sh
# systemctl of the tests: keeps state, and runs the agent of the machine where it is asked to.
machine=${LLMGW_ROOT%/root}
printf '%s\n' "$*" >>"$machine/systemctl.log"
agent="$machine/agent.pid"
running() { [ -f "$agent" ] && kill -0 "$(cat "$agent")" 2>/dev/null; }
begin() {
  rm -f "$machine/failed"
  if [ -f "$machine/runs-agents" ]; then
    root=$LLMGW_ROOT
    program=$root/usr/local/bin/llmgw
    "$program" agent --config "$root/etc/llmgw/agent.yaml" </dev/null >>"$machine/agent.log" 2>&1 &
    echo $! >"$agent"
  elif [ -f "$machine/agent-fails" ]; then
    touch "$machine/failed"
  else
    touch "$machine/active"
  fi
}
end() { rm -f "$machine/active"; if running; then kill "$(cat "$agent")"; fi; }
case " $* " in
  *" is-active "*)
    if [ -f "$machine/failed" ]; then echo failed; exit 3; fi
    if running || [ -f "$machine/active" ]; then echo active; else echo inactive; exit 3; fi ;;
  *" is-enabled "*) if [ -f "$machine/enabled" ]; then echo enabled; else echo disabled; exit 1; fi ;;
  *" enable "*) touch "$machine/enabled" ;;
  *" restart "*) end; begin ;;
  *" start "*) begin ;;
esac
exit 0
"""
_UNAME = r"""#!/bin/sh
machine=${LLMGW_ROOT%/root}
case "$1" in
  -n) cat "$machine/hostname" ;;
  -m) cat "$machine/machine" ;;
  *) exec /usr/bin/uname "$@" ;;
esac
"""
_IP = r"""#!/bin/sh
n=1
while read -r interface address; do
  echo "$n: $interface    inet $address/24 brd 0.0.0.0 scope global $interface"
  n=$((n + 1))
done <"${LLMGW_ROOT%/root}/addresses"
"""
_DATE = r"""#!/bin/sh
[ "$*" = +%s ] || exec /usr/bin/date "$@"
echo $(($(/usr/bin/date +%s) + $(cat "${LLMGW_ROOT%/root}/clock")))
"""
_TRUST = r"""#!/bin/sh
echo "$(basename "$0") $*" >>"${LLMGW_ROOT%/root}/trust.log"
"""
_JOURNAL = r"""#!/bin/sh
cat "${LLMGW_ROOT%/root}/agent.log" 2>/dev/null || echo "-- No entries --"
"""
_SINGLE = """#!/bin/sh
# A release in one file, as far as install.sh knows one: it unpacks itself.
[ "$1" = --unpack ] || exit 2
mkdir -p "$2/bin"
cat >"$2/bin/llmgw" <<'END'
#!/bin/sh
etc=$LLMGW_ROOT/etc/llmgw
export LLMGW_AGENT__TLS__CA=$etc/ca.pem
export LLMGW_AGENT__TLS__CERT=$etc/agent.pem LLMGW_AGENT__TLS__KEY=$etc/agent-key.pem
export LLMGW_AGENT__SUPERVISOR__WORK_DIR=$LLMGW_ROOT/var/lib/llmgw-agent PYTHONPATH={repository}
exec {python} -m llmgw "$@"
END
chmod 755 "$2/bin/llmgw"
# {mark}
"""


_QUICK = """#!/bin/sh
[ "$1" = --unpack ] || exit 2
mkdir -p "$2/bin"
cat >"$2/bin/llmgw" <<'END'
#!/bin/sh
# Answers at once what a node's program is asked; `refuses` and `findings.json` of the machine say how.
machine=${{LLMGW_ROOT%/root}}
case "$1" in
  --version) echo "llmgw {version}" ;;
  agent)
    [ ! -f "$machine/refuses" ] || {{ echo "error: $4: line 3: no such key: fabric" >&2; exit 1; }}
    echo "$4: good" ;;
  doctor) cat "$machine/findings.json" ;;
esac
END
chmod 755 "$2/bin/llmgw"
# {mark}
"""


class Machine:
    """A bare machine called `node`, at 127.0.0.1, below `folder`."""

    def __init__(self, folder: Path, node: str = "node01", address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.root = folder / "root"
        self.node = node
        self.address = address
        self.server: str | None = "https://gateway.internal:8443"
        """What --server is, unless the options say; None leaves it out."""
        for place in ("etc", "opt", "run/systemd/system", "tmp", "usr/local/bin", "var/tmp", "var/lib"):
            (self.root / place).mkdir(parents=True)
        (self.root / "etc" / "os-release").write_text('PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
        (folder / "hostname").write_text(f"{node}\n")
        (folder / "machine").write_text(f"{platform.machine()}\n")
        (folder / "addresses").write_text(f"lo 127.0.0.1\neno1 {address}\n")
        (folder / "clock").write_text("0\n")
        (folder / "findings.json").write_text('{"findings": [], "checks": ["configuration"]}')
        self.sends_release = True
        """Whether --binary names a file unless the options do; without it, this very program is sent."""
        self.path = folder / "path"
        _program(self.path / "ssh", _SSH)
        for name, text in {
            "systemctl": _SYSTEMCTL,
            "uname": _UNAME,
            "ip": _IP,
            "date": _DATE,
            "update-ca-certificates": _TRUST,
            "journalctl": _JOURNAL,
        }.items():
            _program(folder / "bin" / name, text)

    def release(self, mark: str = "", version: str = __version__, *, real: bool = False) -> Path:
        """A file of a release in one file; another `mark` makes it another one of the same version. `real` runs
        this very llmgw; otherwise it answers as one would, at once."""
        path = self.folder / f"release{mark}" / name_of(Kind.SINGLE, version, platform.machine())
        path.parent.mkdir(exist_ok=True)
        given = {"repository": REPOSITORY, "python": sys.executable, "mark": mark, "version": version}
        path.write_text((_SINGLE if real else _QUICK).format(**given))
        return path

    def etc(self, name: str) -> Path:
        return self.root / "etc" / "llmgw" / name

    def log(self, name: str) -> list[str]:
        path = self.folder / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []

    def restarts(self) -> int:
        """How often the agent was started or restarted."""
        return sum(" restart " in f" {line} " or " start " in f" {line} " for line in self.log("systemctl"))

    def left_behind(self) -> list[str]:
        """What of a run lies where temporary folders are made."""
        return [
            str(path) for folder in ("run", "tmp", "var/tmp") for path in (self.root / folder).glob("*.????????")
        ]

    def onboard(self, pki: Path, *options: str, real: bool = False, **env: str) -> Done:
        """`llmgw onboard-node` as a process, through the `ssh` of the tests; --wait 0 unless `options` say."""
        command = [sys.executable, "-m", "llmgw", "onboard-node", *self.arguments(pki, options, real=real)]
        return subprocess.run(
            command, env=self.env(**env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=270
        )

    def onboard_here(self, pki: Path, *options: str, **env: str) -> Done:
        """The same without a process, from the same front door."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.env(**env).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["llmgw-onboard-node", *self.arguments(pki, options)])
            patch.setattr(sys, "stdin", io.StringIO())
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.raises(SystemExit) as ended,
            ):
                main()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(list(options), code, out.getvalue(), err.getvalue())

    def arguments(self, pki: Path, options: Sequence[str], *, real: bool = False) -> list[str]:
        arguments = ["--node", self.node, "--pki", str(pki)]
        for option, value in (
            ("--addr", self.address),
            ("--binary", str(self.release(real=real)) if self.sends_release else None),
            ("--wait", "0"),
            ("--server", self.server),
        ):
            arguments += [] if option in options or value is None else [option, value]
        return [*arguments, *options]

    def env(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "PYTHONPATH": str(REPOSITORY),
            "LLMGW_TEST_MACHINE": str(self.folder),
            "LLMGW_DEBUG": "1",
            **more,
        }


def report_of(done: Done) -> dict[str, Any]:
    """What `-o json` printed."""
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def changed_by(done: Done) -> list[str]:
    """The steps that changed something, of a run with `-o json`."""
    return [step["name"] for step in report_of(done)["steps"] if step["changed"]]


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

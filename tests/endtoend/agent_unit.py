"""Runs an agent as systemd would by its unit: what comes before each start, and when it is started again.

Arguments: ROOT (below which the program is installed), STATE (the state folder), CONFIG. The lines are those of
examples/llmgw-agent.service.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

UNIT = Path(__file__).parent.parent.parent / "examples" / "llmgw-agent.service"
RESTART_S = 0.2
SYSTEMCTL = """#!/bin/sh
[ "$*" = "--no-block restart llmgw-agent.service" ] && : > "$ASKED_TO_START"
"""


def lines(name: str) -> list[str]:
    """The values of a key of the unit, as systemd would hand them on."""
    found = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return [value.replace("$$", "$") for value in found]


def main() -> None:
    root, state, config = sys.argv[1:]
    env = {**os.environ, "STATE_DIRECTORY": state}
    for line in lines("Environment"):
        name, _, value = line.partition("=")
        env[name] = root if name == "LLMGW_INSTALLED_BELOW" else value
    (before,), (after,) = lines("ExecStartPre"), lines("ExecStopPost")
    (again,) = lines("RestartForceExitStatus")
    (never,) = lines("RestartPreventExitStatus")
    programs = Path(state).with_name("systemd")
    programs.mkdir(exist_ok=True)
    (programs / "systemctl").write_text(SYSTEMCTL)
    (programs / "systemctl").chmod(0o755)
    asked = programs / "asked"
    env |= {"PATH": f"{programs}:{os.environ['PATH']}", "ASKED_TO_START": str(asked)}
    ended: list[int] = []
    agent: subprocess.Popen[bytes] | None = None

    def end(number: int, _frame: object) -> None:
        ended.append(number)
        if agent is not None:
            agent.terminate()

    signal.signal(signal.SIGTERM, end)
    while not ended:
        subprocess.run(["/bin/sh", "-c", shlex.split(before.removeprefix("-"))[2]], env=env, check=False)
        agent = subprocess.Popen([f"{root}/usr/local/bin/llmgw", "agent", "--config", config], env=env)
        code = agent.wait()
        print(f"the unit: the agent ended with {code}", flush=True)
        how = {"EXIT_CODE": "exited" if code >= 0 else "killed", "EXIT_STATUS": str(abs(code))}
        command = after.removeprefix("-").replace("%n", "llmgw-agent.service")
        subprocess.run(["/bin/sh", "-c", shlex.split(command)[2]], env=env | how, check=False)
        if asked.exists():
            asked.unlink()
            continue
        if code == 0 or (str(code) in never.split() and str(code) != again):
            return
        time.sleep(RESTART_S)


main()

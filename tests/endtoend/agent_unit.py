"""Runs an agent as systemd would by its unit: what comes before each start, and when it is started again.

Arguments: ROOT (below which the program is installed), STATE (the state folder), CONFIG. The lines are those of
examples/llmgw-agent.service.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

UNIT = Path(__file__).parent.parent.parent / "examples" / "llmgw-agent.service"
RESTART_S = 0.2


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
    (before,) = lines("ExecStartPre")
    (again,) = lines("RestartForceExitStatus")
    (never,) = lines("RestartPreventExitStatus")
    ended: list[int] = []
    agent: subprocess.Popen[bytes] | None = None

    def end(number: int, _frame: object) -> None:
        ended.append(number)
        if agent is not None:
            agent.terminate()

    signal.signal(signal.SIGTERM, end)
    while not ended:
        subprocess.run(["/bin/sh", "-c", before.removeprefix("-")], env=env, check=False)
        agent = subprocess.Popen([f"{root}/usr/local/bin/llmgw", "agent", "--config", config], env=env)
        code = agent.wait()
        print(f"the unit: the agent ended with {code}", flush=True)
        if code == 0 or (str(code) in never.split() and str(code) != again):
            return
        time.sleep(RESTART_S)


main()

"""A small engine for the tests: serves the checks over HTTP, and misbehaves as its arguments say.

Started as `python engine_program.py [--port N] [words…]`; each word is one behaviour.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    broken_until = 0.0
    seen: Path

    def do_GET(self) -> None:
        self.answer(200, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        key = os.environ.get("PROGRAM_API_KEY")
        if key is not None and self.headers.get("authorization") != f"Bearer {key}":
            self.answer(401, b'{"error": "Unauthorized"}')
        elif "never-answers" in sys.argv:
            self.answer(200, b'{"error": {"message": "core dead"}}')
        else:
            self.answer(200, b'{"choices": []}')

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def wait_for(name: str) -> None:
    while not Path(name).exists() or not Path(name).read_text():
        time.sleep(0.01)


def main() -> None:
    words = sys.argv[1:]
    if words == ["--version"]:
        return
    print("engine begins", flush=True)
    Path("environment.json").write_text(json.dumps(dict(os.environ)))
    if "ignores-sigterm" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "leaves-orphan" in words:
        # A grandchild in a session of its own that ignores SIGTERM; only the marker leads to it.
        script = (
            "import os,signal,time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "open('orphan.pid','w').write(str(os.getpid())); time.sleep(600)"
        )
        subprocess.Popen(["/bin/sh", "-c", f'"$0" -c "{script}" & exit 0', sys.executable]).wait()
        wait_for("orphan.pid")
    if "has-core" in words:
        # As vLLM's core: a child in the engine's session that goes on without its parent, deaf to SIGTERM. With
        # its environment wiped, as setproctitle does, no marker leads to it.
        script = (
            "import os,signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "open('core.pid','w').write(str(os.getpid())); time.sleep(600)"
        )
        subprocess.Popen([sys.executable, "-c", script], env={})
        wait_for("core.pid")
    if "has-helper" in words:
        # A helper that ends as it is told to, with a child in another session and without the marker: only the
        # helper leads to it.
        script = "import os,time; open('helped.pid','w').write(str(os.getpid())); time.sleep(600)"
        starter = "import subprocess,sys; subprocess.run(sys.argv[1:], env={}, start_new_session=True)"
        subprocess.Popen([sys.executable, "-c", starter, sys.executable, "-c", script], env={})
        wait_for("helped.pid")
    if "has-escaped" in words:
        # Another session, no marker, no parent: nothing but a cgroup leads to it.
        script = "import os,time; open('escaped.pid','w').write(str(os.getpid())); time.sleep(600)"
        starter = "import subprocess,sys; subprocess.Popen(sys.argv[1:], env={}, start_new_session=True)"
        subprocess.run([sys.executable, "-c", starter, sys.executable, "-c", script], env={}, check=True)
        wait_for("escaped.pid")
    if "leaks-memory" in words:
        # A helper that nothing leads to: another session, no marker, no parent. It holds memory of the GPU until
        # it is told to let go, as a worker does that hangs in the driver.
        script = (
            "import os,sys,time; used,release=sys.argv[1:];"
            "open(f'{used}.{os.getpid()}','w').write('20480\\n');"
            "open('leak.pid','w').write(str(os.getpid()));"
            "exec('while not os.path.exists(release): time.sleep(0.02)')"
        )
        helper = [sys.executable, "-c", script, os.environ["LEAK_USED"], os.environ["LEAK_RELEASE"]]
        starter = (
            "import subprocess,sys; subprocess.Popen(sys.argv[1:], env={}, start_new_session=True,"
            "stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
        )
        subprocess.run([sys.executable, "-c", starter, *helper], check=True)
        wait_for("leak.pid")
    if "--model" in words:
        path = Path(words[words.index("--model") + 1])
        print(f"engine reads {len(path.read_bytes())} bytes", flush=True)
    if "dies" in words:
        print("CUDA error: out of memory", flush=True)
        sys.exit(3)
    if "--port" not in words:
        time.sleep(600)
    port = int(words[words.index("--port") + 1])
    if "loads-for-ever" in words:
        time.sleep(600)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("engine serves", flush=True)
    server.serve_forever()


main()

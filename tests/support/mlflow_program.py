# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MLflow whose Python the variable GPUMESH_MLFLOW names, run as on a host, with another database and one process."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import settings

PASSWORD = "password-of-the-checker"
LOGIN = "Basic " + base64.b64encode(f"{settings.CHECKER_NAME}:{PASSWORD}".encode()).decode()
#: MiB that a process of the server may have.
MEMORY = 1024
#: Seconds, generously: MLflow starts, and answers.
_START, _PATIENCE = 600.0, 300.0


def python() -> str:
    """Return the Python of MLflow's environment. Skips the test if there is none."""
    if named := os.environ.get("GPUMESH_MLFLOW"):
        return named
    pytest.skip("not checked: GPUMESH_MLFLOW names no Python that has MLflow (tests/attack installs one)")


#: A program that runs each program that it reads in a fork, with everything that MLflow's stores import already loaded.
_FORKS = """
import json, os, signal, sys
import mlflow.server.auth.sqlalchemy_store, mlflow.store.tracking.sqlalchemy_store, mlflow.utils.crypto
for line in sys.stdin:
    program, files = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(600)
        for descriptor, (path, flags) in enumerate(zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))):
            os.dup2(os.open(path, flags), descriptor)
        sys.stdin = open(0, encoding="utf-8")
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.lru_cache(maxsize=None)
def _forks() -> subprocess.Popen[str]:
    """Start a Python of MLflow's environment that forks for each program: importing MLflow takes most of the time of
    each.
    """
    environment = {**_with_bytecode(), "MLFLOW_DISABLE_TELEMETRY": "true"}
    argv = [python(), "-c", _FORKS]
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(started.communicate)
    return started


def run(program: str, stdin: Any = None) -> Any:
    """Run a Python program in MLflow's environment. Returns the JSON in the last line of its output."""
    with tempfile.TemporaryDirectory() as folder:
        given, said, failure = (Path(folder, name) for name in ("given", "said", "failure"))
        given.write_text(json.dumps(stdin), encoding="utf-8")
        for path in (said, failure):
            path.touch()
        forks = _forks()
        assert forks.stdin and forks.stdout
        print(json.dumps([program, [str(given), str(said), str(failure)]]), file=forks.stdin, flush=True)
        assert forks.stdout.readline() == "0\n", failure.read_text(encoding="utf-8")
        return json.loads(said.read_text(encoding="utf-8").strip().splitlines()[-1])


def _with_bytecode() -> dict[str, str]:
    """Return the variables of a program that keeps the bytecode of its imports: compiling MLflow takes longer than its
    start.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Server:
    """A running MLflow."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        for name in ("LIBRARY", "FOLDER", "HOME", "SCRATCH"):
            (folder / name.lower()).mkdir(mode=0o700)
            monkeypatch.setattr(settings, name, str(folder / name.lower()))
        for name in ("AUTHENTICATION", "SECRET", "PASSPHRASE"):
            monkeypatch.setattr(settings, name, str(folder / "folder" / name.lower()))
        monkeypatch.setattr(settings, "ALLOWED_NOTE", str(folder / "scratch" / "allowed"))
        monkeypatch.setattr(settings, "LAUNCHER_PATH", settings.confine.__file__)
        own = settings.TrackingServer("lab", "localhost", "127.0.0.1", self.port, False, str(folder), 875)
        Path(own.artifact_directory).mkdir(parents=True)
        given, ours = settings.database_url(5432), f"sqlite:///{folder}/scratch/mlflow.db"
        self.database, self.passphrase = ours, "passphrase-of-the-gateway"
        for path, text in (
            (settings.SECRET, "secret-of-the-forms"),
            (settings.PASSPHRASE, self.passphrase),
            (settings.AUTHENTICATION, settings.format_authentication(5432, PASSWORD).replace(given, ours)),
        ):
            Path(path).write_text(text, encoding="ascii")
        environment = str(Path(python()).parent.parent)
        # The plugin is not put into the environment, where hosts have it, so that the environment stays as it is.
        packages = folder / "packages"
        for path, text in settings.plugin_files(environment, "3").items():
            copy = packages / path.partition("/site-packages/")[2]
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        program = settings.format_program(own, environment, 5432).replace(given, ours)
        program = re.sub(r"--workers=\d+", "--workers=1", re.sub(r"--memory=\d+", f"--memory={MEMORY}", program))
        program = program.replace("exec ", f"export PYTHONPATH={packages}\nexec ").replace(
            "--read=", f"--read={packages} --read=", 1
        )
        self._log = folder / "log"
        with self._log.open("wb") as log:
            argv = ["sh", "-c", program]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=_with_bytecode())

    def wait(self) -> None:
        end = time.monotonic() + _START
        while not self.answers():
            assert time.monotonic() < end and self._process.poll() is None, self._log.read_text()
            time.sleep(0.5)

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/api/2.0/mlflow/users/current")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Send a request as a user. Returns the status and the content of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Authorization": LOGIN, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def call(self, path: str, body: dict[str, Any], version: str = "2.0") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        status, said = self.ask("POST", f"/api/{version}/mlflow/{path}", json.dumps(body), **headers)
        assert status == 200, said
        return dict(json.loads(said))

    def memory(self, field: str) -> int:
        """Return the MiB of the largest process now (VmRSS), or at most until now (VmHWM)."""
        found = [0]
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(status.parent.name)) == self._process.pid:
                    found += [int(size) >> 10 for size in re.findall(rf"{field}:\s+(\d+) kB", status.read_text())]
        return max(found)

    def send(self, path: str, size: int, *headers: str, method: str = "POST", whole: bool = False) -> int:
        """Send a body of so many MiB in chunks, until there is a response. Returns its status."""
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers]
        with socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
            part = b"%x\r\n%s\r\n" % (1 << 20, os.urandom(1 << 20))
            for _part in range(size):
                if not whole and select.select([connection], [], [], 0)[0]:
                    break
                connection.sendall(part)
            else:
                connection.sendall(b"0\r\n\r\n")
            return int(connection.recv(4096).split()[1])

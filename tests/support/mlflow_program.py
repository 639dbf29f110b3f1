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

CHECKER_PASSWORD = "password-of-the-checker"
CHECKER_LOGIN = "Basic " + base64.b64encode(f"{settings.CHECKER_NAME}:{CHECKER_PASSWORD}".encode()).decode()
#: MiB that a process of the server may have.
MEMORY_MIB = 1024
#: Seconds, generously: MLflow starts, and answers.
_START_TIMEOUT, _RESPONSE_TIMEOUT = 600.0, 300.0


def find_python() -> str:
    """Return the Python of MLflow's environment. Skips the test if there is none."""
    if python_path := os.environ.get("GPUMESH_MLFLOW"):
        return python_path
    pytest.skip("not checked: GPUMESH_MLFLOW names no Python that has MLflow (tests/attack installs one)")


#: A program that runs each program that it reads in a fork, with everything that MLflow's stores import already loaded.
_FORK_SERVER = """
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
def _start_fork_server() -> subprocess.Popen[str]:
    """Start a Python of MLflow's environment that forks for each program: importing MLflow takes most of the time of
    each.
    """
    environment = {**_environment_with_bytecode(), "MLFLOW_DISABLE_TELEMETRY": "true"}
    argv = [find_python(), "-c", _FORK_SERVER]
    fork_server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(fork_server.communicate)
    return fork_server


def run_program(program: str, stdin: Any = None) -> Any:
    """Run a Python program in MLflow's environment. Returns the JSON in the last line of its output."""
    with tempfile.TemporaryDirectory() as directory:
        stdin_path, stdout_path, stderr_path = (Path(directory, name) for name in ("given", "said", "failure"))
        stdin_path.write_text(json.dumps(stdin), encoding="utf-8")
        for path in (stdout_path, stderr_path):
            path.touch()
        fork_server = _start_fork_server()
        assert fork_server.stdin and fork_server.stdout
        print(
            json.dumps([program, [str(stdin_path), str(stdout_path), str(stderr_path)]]),
            file=fork_server.stdin,
            flush=True,
        )
        assert fork_server.stdout.readline() == "0\n", stderr_path.read_text(encoding="utf-8")
        return json.loads(stdout_path.read_text(encoding="utf-8").strip().splitlines()[-1])


def _environment_with_bytecode() -> dict[str, str]:
    """Return the variables of a program that keeps the bytecode of its imports: compiling MLflow takes longer than its
    start.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class MlflowServer:
    """A running MLflow."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free_socket:
            self.port = free_socket.getsockname()[1]
        for name in ("LIBRARY", "FOLDER", "HOME", "SCRATCH"):
            (directory / name.lower()).mkdir(mode=0o700)
            monkeypatch.setattr(settings, name, str(directory / name.lower()))
        for name in ("AUTHENTICATION", "SECRET", "PASSPHRASE"):
            monkeypatch.setattr(settings, name, str(directory / "folder" / name.lower()))
        monkeypatch.setattr(settings, "ALLOWED_NOTE", str(directory / "scratch" / "allowed"))
        monkeypatch.setattr(settings, "LAUNCHER_PATH", settings.confine.__file__)
        tracking_server = settings.TrackingServer(
            "lab", "localhost", "127.0.0.1", self.port, False, str(directory), 875
        )
        Path(tracking_server.artifact_directory).mkdir(parents=True)
        configured_url, sqlite_url = settings.database_url(5432), f"sqlite:///{directory}/scratch/mlflow.db"
        self.database, self.passphrase = sqlite_url, "passphrase-of-the-gateway"
        for path, text in (
            (settings.SECRET, "secret-of-the-forms"),
            (settings.PASSPHRASE, self.passphrase),
            (
                settings.AUTHENTICATION,
                settings.format_authentication(5432, CHECKER_PASSWORD).replace(configured_url, sqlite_url),
            ),
        ):
            Path(path).write_text(text, encoding="ascii")
        environment = str(Path(find_python()).parent.parent)
        # The plugin is not put into the environment, where hosts have it, so that the environment stays as it is.
        package_directory = directory / "packages"
        for path, text in settings.plugin_files(environment, "3").items():
            copied_file = package_directory / path.partition("/site-packages/")[2]
            copied_file.parent.mkdir(parents=True, exist_ok=True)
            copied_file.write_text(text, encoding="utf-8")
        start_script = settings.format_program(tracking_server, environment, 5432).replace(configured_url, sqlite_url)
        start_script = re.sub(
            r"--workers=\d+", "--workers=1", re.sub(r"--memory=\d+", f"--memory={MEMORY_MIB}", start_script)
        )
        start_script = start_script.replace("exec ", f"export PYTHONPATH={package_directory}\nexec ").replace(
            "--read=", f"--read={package_directory} --read=", 1
        )
        self._log = directory / "log"
        with self._log.open("wb") as log:
            argv = ["sh", "-c", start_script]
            self._process = subprocess.Popen(
                argv, stdout=log, stderr=log, start_new_session=True, env=_environment_with_bytecode()
            )

    def await_start(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not self.is_responding():
            assert time.monotonic() < deadline and self._process.poll() is None, self._log.read_text()
            time.sleep(0.5)

    def is_responding(self) -> bool:
        try:
            return self.request("GET", "/api/2.0/mlflow/users/current")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Send a request as a user. Returns the status and the content of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_RESPONSE_TIMEOUT)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Authorization": CHECKER_LOGIN, **headers})
            response = connection.getresponse()
            return response.status, response.read()

    def call_api(self, path: str, body: dict[str, Any], version: str = "2.0") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        status, response_body = self.request("POST", f"/api/{version}/mlflow/{path}", json.dumps(body), **headers)
        assert status == 200, response_body
        return dict(json.loads(response_body))

    def read_memory(self, field: str) -> int:
        """Return the MiB of the largest process now (VmRSS), or at most until now (VmHWM)."""
        process_sizes = [0]
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(status.parent.name)) == self._process.pid:
                    process_sizes += [
                        int(size) >> 10 for size in re.findall(rf"{field}:\s+(\d+) kB", status.read_text())
                    ]
        return max(process_sizes)

    def send_body(
        self, path: str, mib_count: int, *headers: str, method: str = "POST", send_everything: bool = False
    ) -> int:
        """Send a body of so many MiB in chunks, until there is a response. Returns its status."""
        header_lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers]
        with socket.create_connection(("127.0.0.1", self.port), timeout=_RESPONSE_TIMEOUT) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in [*header_lines, ""]).encode())
            chunk = b"%x\r\n%s\r\n" % (1 << 20, os.urandom(1 << 20))
            for _chunk_number in range(mib_count):
                if not send_everything and select.select([connection], [], [], 0)[0]:
                    break
                connection.sendall(chunk)
            else:
                connection.sendall(b"0\r\n\r\n")
            return int(connection.recv(4096).split()[1])

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for the cluster's MLflow that an outage of its server neither stops nor slows, nor loses: ``import gpumesh_track``.

    gpumesh_track.params(lr=0.1, batch=32)            once
    gpumesh_track.log(step, loss=loss, accuracy=a)    after a step; only rank 0 does anything

It needs nothing but Python. Each call appends a line to a file in the directory of the run; a thread in the background hands
the lines in, and goes on where it was when the server is back, also in the next attempt. What is left when a run has ended
is handed in by ``srun python3 /usr/local/lib/gpumesh/python/gpumesh_track.py DIRECTORY``: jobs know where the server is.

Nothing arrives twice: MLflow keeps one of several points that are the same, with their time, so a batch whose answer was lost
is simply sent again. A run is looked for by a tag of its own before it is made.
"""

from __future__ import annotations

import atexit
import base64
import configparser
import contextlib
import fcntl
import http.client
import json
import math
import os
import re
import secrets
import ssl
import sys
import threading
import time
import urllib.parse
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

#: Seconds: between two batches, at most after failures, for one request, and at the end of the program.
_PERIOD = 2.0
_LONGEST_PAUSE = 30.0
_TIMEOUT = 20.0
_LAST = 10.0
#: What MLflow takes at once.
_MOST = 1000
_MOST_PARAMS = 100
_POINTS, _STATE = "points.jsonl", "state.json"
#: Where this file stays. A rank of gpumesh-train reads it from elsewhere, and only while it runs.
_INSTALLED = "/usr/local/lib/gpumesh/python/gpumesh_track.py"
_OTHER_NAME = re.compile(r"[^\w./: -]", re.ASCII)
_LATER = (408, 425, 429)


class ServerError(Exception):
    """The server has refused something, and would do so again; ``code`` is MLflow's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}"[:400])
        self.code = code


class UnreachableError(Exception):
    """The server does not answer, or not now."""


# --- The program's side: two functions that only write a line


def log(step: int, **metrics: float) -> None:
    """Note the metrics of a step. Names are of letters, digits and ``_``; for others, and for a mapping, ``**{...}``."""
    at = int(time.time() * 1000)
    points = [[_OTHER_NAME.sub("_", name)[:250], _number(value), at, int(step)] for name, value in metrics.items()]
    _append({"points": points})


def params(**given: Any) -> None:
    """Note parameters of the run. The first value of each is the one that counts, also after a restart."""
    _append({"params": [[_OTHER_NAME.sub("_", name)[:250], str(value)[:6000]] for name, value in given.items()]})


def _status(word: str) -> Dict[str, Any]:
    """The line for a beginning or an end, which MLflow shows as the run's status."""
    return {"status": word, "at": int(time.time() * 1000)}


def _number(value: Any) -> Any:
    """A number as JSON has it: others by their names."""
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def directory() -> str:
    """Where the lines are: with the run of gpumesh-train, or else where the program was started."""
    run = os.environ.get("GPUMESH_RUN_DIR")
    name = "track" if run else f"track-{os.environ.get('SLURM_JOB_ID', os.getpid())}"
    return os.path.join(run or os.getcwd(), name)


class _Writer:
    """The open file, and the thread that hands its lines in."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, _POINTS)
        self._lines = open(path, "ab", buffering=0)  # noqa: SIM115
        _end_line(path, self._lines.fileno())
        self._wake = threading.Event()
        self._over = False
        self._sender = Sender(folder, os.environ)
        self.write(_status("RUNNING"))
        self._thread = threading.Thread(target=self._send, name="gpumesh_track", daemon=True)
        if self._sender.uri:
            self._thread.start()
            atexit.register(self.close)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append the line in one go."""
        self._lines.write(json.dumps(line).encode("ascii") + b"\n")

    def close(self) -> None:
        """Say how the program has ended, and hand in the rest, for a few seconds at most."""
        self.write(_status("FAILED" if hasattr(sys, "last_value") else "FINISHED"))
        self._over = True
        self._wake.set()
        self._thread.join(_LAST)
        if self._sender.left():
            folder = self._sender.folder
            _say(
                f"the server has not got everything of {folder} yet. The next attempt goes on with it, or: "
                f"srun python3 {_INSTALLED} {folder}"
            )

    def _send(self) -> None:
        pause = _PERIOD
        while True:
            last = self._over
            try:
                self._sender.send()
                pause = _PERIOD
            except (UnreachableError, OSError):
                pause = min(pause * 2, _LONGEST_PAUSE)
            except (ServerError, ValueError) as failure:
                _say(f"{failure}. The lines stay in {self._sender.folder}.")
                return
            if last:
                return
            self._wake.wait(pause)


_writers: List[_Writer] = []
_warned: List[str] = []
_lock = threading.Lock()


def _append(line: Mapping[str, Any]) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    with _lock:
        try:
            if not _writers:
                _writers.append(_Writer(directory()))
            _writers[0].write(line)
        except OSError as failure:
            if not _warned:
                _warned.append(f"{failure}. There will be gaps in the metrics.")
                _say(_warned[0])


def _say(words: str) -> None:
    sys.stderr.write(f"gpumesh_track: {words}\n")


def _end_line(path: str, descriptor: int) -> None:
    """End a line at which an earlier attempt was killed, so that it spoils only itself."""
    with open(path, "rb") as stream:
        if stream.seek(0, os.SEEK_END) and stream.seek(-1, os.SEEK_END) is not None and stream.read(1) != b"\n":
            os.write(descriptor, b"\n")


# --- The server's side


class Sender:
    """Hands in the lines of a folder, each once. Several processes may try: one has the lock."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.uri = environment.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        self._environment = environment
        self._state: Dict[str, Any] = {}
        self._place = 0

    def left(self) -> bool:
        """Whether there are lines that the server has not got yet."""
        try:
            return os.path.getsize(os.path.join(self.folder, _POINTS)) > int(self._read_state().get("sent", 0))
        except FileNotFoundError:
            return False

    def send(self) -> None:
        """Hand in what there is. Raises UnreachableError, ServerError or OSError."""
        with open(os.path.join(self.folder, "lock"), "a", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnreachableError("another process hands them in") from None
            self._state = self._read_state()
            for end, points, given, status in self._batches(int(self._state.get("sent", 0))):
                self._hand_in(points, given, status)
                self._note(sent=end)

    def _batches(self, start: int) -> Iterator[Tuple[int, List[List[Any]], List[List[str]], Dict[str, Any]]]:
        """Whole lines from an offset on, as many as MLflow takes at once: where they end, points, parameters, status."""
        points: List[List[Any]] = []
        given: List[List[str]] = []
        status: Dict[str, Any] = {}
        with open(os.path.join(self.folder, _POINTS), "rb") as stream:
            stream.seek(start)
            end = start
            for raw in stream:
                if not raw.endswith(b"\n"):
                    break
                line = _parsed(raw)
                more, parameters = line.get("points", []), line.get("params", [])
                if (points and len(points) + len(more) > _MOST) or len(given) + len(parameters) > _MOST_PARAMS:
                    yield end, points, given, status
                    points, given, status = [], [], {}
                points = points + more
                given = given + parameters
                status = line if "status" in line else status
                end += len(raw)
        if end > start:
            yield end, points, given, status

    def _hand_in(self, points: List[List[Any]], given: List[List[str]], status: Mapping[str, Any]) -> None:
        run = self._run()
        if status:
            ended = {} if status["status"] == "RUNNING" else {"end_time": status["at"]}
            self._call("runs/update", {"run_id": run, "status": status["status"], **ended})
        for first in range(0, len(points), _MOST):
            batch = points[first : first + _MOST]
            metrics = [{"key": key, "value": value, "timestamp": at, "step": step} for key, value, at, step in batch]
            self._call("runs/log-batch", {"run_id": run, "metrics": metrics})
        for key, value in given:
            try:
                self._call("runs/log-parameter", {"run_id": run, "key": key, "value": value})
            except ServerError as failure:
                # The first value is the one that counts.
                if failure.code != "INVALID_PARAMETER_VALUE":
                    raise

    def _run(self) -> str:
        """The run of this folder, made where there is none."""
        if self._state.get("run_id"):
            return str(self._state["run_id"])
        # Noted before anything is asked for, so that a run whose making was not answered is found again.
        token = str(self._state.get("token") or secrets.token_hex(16))
        self._note(token=token)
        experiment = self._experiment()
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`gpumesh.token` = '{token}'", "max_results": 1}
        found = self._call("runs/search", wanted).get("runs", [])
        run = found[0] if found else self._make_run(experiment, token)
        self._note(run_id=run["info"]["run_id"])
        return str(self._state["run_id"])

    def _make_run(self, experiment: str, token: str) -> Dict[str, Any]:
        try:
            tags = dict(json.loads(self._environment.get("MLFLOW_RUN_CONTEXT") or "{}"))
        except ValueError:
            tags = {}
        name = tags.get("mlflow.runName") or os.path.basename(os.path.dirname(os.path.abspath(self.folder)))
        tags = {"mlflow.user": self._environment.get("USER", ""), **tags, "gpumesh.token": token}
        listed = [{"key": str(key), "value": str(value)} for key, value in tags.items() if value]
        begun = {"experiment_id": experiment, "run_name": name, "start_time": self._begun(), "tags": listed}
        return dict(self._call("runs/create", begun)["run"])

    def _begun(self) -> int:
        """When the first attempt began, which may be long before the server answers; in milliseconds."""
        with open(os.path.join(self.folder, _POINTS), "rb") as stream:
            return int(_parsed(stream.readline()).get("at", time.time() * 1000))

    def _experiment(self) -> str:
        name = self._environment.get("MLFLOW_EXPERIMENT_NAME") or self._environment.get("USER") or "gpumesh"
        asked = f"experiments/get-by-name?experiment_name={urllib.parse.quote(name)}"
        try:
            return str(self._call(asked)["experiment"]["experiment_id"])
        except ServerError as failure:
            if failure.code != "RESOURCE_DOES_NOT_EXIST":
                raise
        try:
            wanted = {"name": name, "tags": [{"key": "mlflow.experimentKind", "value": "custom_model_development"}]}
            return str(self._call("experiments/create", wanted)["experiment_id"])
        except ServerError as failure:
            # Another run has made it meanwhile.
            if failure.code != "RESOURCE_ALREADY_EXISTS":
                raise
        return str(self._call(asked)["experiment"]["experiment_id"])

    def _call(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Raises UnreachableError for what may pass, and ServerError."""
        login = credentials(self._environment)
        headers = {"Content-Type": "application/json"}
        if login:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        try:
            status, raw = self._request(path, headers, None if body is None else json.dumps(body))
            said = _parsed(raw)
        except (OSError, http.client.HTTPException) as failure:
            raise UnreachableError(str(failure)) from failure
        if status == 200:
            return said
        if status >= 500 or status in _LATER:
            raise UnreachableError(f"{self.uri} answers {status}")
        message = str(said.get("message", raw[:200].decode("utf-8", "replace")))
        if status in (401, 403):
            message += " (see ~/.mlflow/credentials)"
        raise ServerError(status, str(said.get("error_code", "")), message)

    def _request(self, path: str, headers: Mapping[str, str], body: Optional[str]) -> Tuple[int, bytes]:
        where = urllib.parse.urlsplit(self.uri)
        connection: http.client.HTTPConnection
        if where.scheme == "https":
            trust = self._environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None
            context = ssl.create_default_context(cafile=trust)
            connection = http.client.HTTPSConnection(where.netloc, timeout=_TIMEOUT, context=context)
        else:
            connection = http.client.HTTPConnection(where.netloc, timeout=_TIMEOUT)
        with contextlib.closing(connection):
            method = "GET" if body is None else "POST"
            connection.request(method, f"{where.path}/api/2.0/mlflow/{path}", body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _read_state(self) -> Dict[str, Any]:
        try:
            with open(os.path.join(self.folder, _STATE), encoding="ascii") as stream:
                return dict(json.load(stream))
        except FileNotFoundError:
            return {}

    def _note(self, **more: Any) -> None:
        """In one step that outlives a power cut."""
        self._state.update(more)
        path = os.path.join(self.folder, _STATE)
        with open(path + ".new", "w", encoding="ascii") as stream:
            json.dump(self._state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(path + ".new", path)


def _parsed(raw: bytes) -> Dict[str, Any]:
    """A line; nothing for one at which a program was killed."""
    try:
        line = json.loads(raw)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def credentials(environment: Mapping[str, str]) -> str:
    """NAME:PASSWORD, from where MLflow itself takes them: the environment, or ~/.mlflow/credentials; empty without them."""
    name, password = (environment.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD"))
    if not name:
        read = configparser.ConfigParser(interpolation=None)
        home = environment.get("HOME") or os.path.expanduser("~")
        try:
            read.read(os.path.join(home, ".mlflow", "credentials"), encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            return ""
        name = read.get("mlflow", "mlflow_tracking_username", fallback="")
        password = read.get("mlflow", "mlflow_tracking_password", fallback="")
    return f"{name}:{password or ''}" if name else ""


def main(arguments: List[str]) -> int:
    """Hand in what a run has left: ``gpumesh_track.py DIRECTORY``."""
    if len(arguments) != 1:
        _say(f"usage: {os.path.basename(__file__)} DIRECTORY")
        return 2
    sender = Sender(arguments[0], os.environ)
    if not sender.uri:
        _say("MLFLOW_TRACKING_URI is not set")
        return 2
    try:
        sender.send()
    except (UnreachableError, ServerError, OSError) as failure:
        _say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

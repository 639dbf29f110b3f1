# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for the cluster's MLflow: ``import gpumesh_track``.

    gpumesh_track.params(lr=0.1, batch=32)            once
    gpumesh_track.log(step, loss=loss, accuracy=a)    after a step; only rank 0 does anything
    gpumesh_track.artifact("report.html")             a file, as it is now

An outage of the server neither stops nor slows the program, and loses no metrics. It needs only Python. Each call
appends a line to a file in the directory of the run; a thread in the background sends the lines, and continues when the
server is back, also in the next attempt. What is left when a run has ended is sent by ``srun python3
/usr/local/lib/gpumesh/python/gpumesh_track.py DIRECTORY...``: jobs know where the server is.

Nothing is stored twice: MLflow keeps only one of several identical points with the same time, so a batch whose reply
was lost is simply sent again, and a file replaces itself. A run is searched for by a tag of its own before it is
created. So all lines are sent again if the server's database was replaced, such as by a backup, or lacks the run.
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
import shutil
import ssl
import sys
import threading
import time
import unicodedata
import urllib.parse
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Union

#: Seconds: between two batches, the maximum after failures, for one request, and at the end of the program.
_PERIOD = 2.0
_LONGEST_PAUSE = 30.0
_TIMEOUT = 20.0
_LAST = 10.0
#: Seconds between two questions whether the server's database has been replaced.
_QUESTIONS = 60.0
#: MLflow's limits for one request.
_MOST = 1000
_MOST_PARAMS = 100
_POINTS, _STATE = "points.jsonl", "state.json"
#: No answer has more bytes, whoever listens there, and no first line of the file.
_LARGEST = 4 << 20
#: Where this file is installed. A rank of gpumesh-train imports a copy that exists only while it runs.
_INSTALLED = "/usr/local/lib/gpumesh/python/gpumesh_track.py"
_OTHER_NAME = re.compile(r"[^\w./: -]", re.ASCII)
#: MLflow's code for a request that it cannot accept.
_INVALID = "INVALID_PARAMETER_VALUE"
_MISSING = "RESOURCE_DOES_NOT_EXIST"
_LATER = (408, 425, 429)
#: Responses of the server: the user is unknown, or has no permission.
_DENIED = 403
_NOT_ALLOWED = (401, _DENIED)
#: MLflow's permissions to change an experiment, and to do anything with it, and the tag with its owner.
_EDIT, _MANAGE, _OWNER = "EDIT", "MANAGE", "gpumesh.owner"
#: The experiment of each database that all users can read, and its tag with the identity of the database.
_DEFAULT, _DATABASE = "Default", "gpumesh.database"
#: The paths of the artifacts if the server stores them itself.
_KEPT = "mlflow-artifacts"


class ServerError(Exception):
    """The server has refused a request, and would do so again; ``code`` is MLflow's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}"[:400])
        self.status, self.code = status, code


class UnreachableError(Exception):
    """The server does not answer, or is temporarily unavailable."""


# --- The program's side: functions that only write a line


def log(step: int, **metrics: float) -> None:
    """Record the metrics of a step.

    Names consist of letters, digits and ``_``; for others, or a mapping, use ``**{...}``. They may have ``.``, ``-``,
    ``:``, spaces, and ``/`` between their parts; other characters become ``_``.
    """
    at = int(time.time() * 1000)
    points = [[_name(name), _number(value), at, int(step)] for name, value in metrics.items()]
    _append({"points": points})


def params(**given: Any) -> None:
    """Record parameters of the run. Only the first value of each counts, also after a restart."""
    _append({"params": [[_name(name), str(value)[:6000]] for name, value in given.items()]})


def artifact(path: str, name: str = "") -> None:
    """Copy a file, which is sent as an artifact of the run.

    ``name`` may contain folders; the default is that of the file.
    """
    parts = os.path.normpath(name or os.path.basename(path)).split("/")
    wanted = "/".join(part for part in parts if part not in ("", ".", ".."))
    _write(lambda writer: writer.keep(path, wanted))


def _name(given: str) -> str:
    """A name that MLflow accepts: its rule is that of paths that cannot be written in a shorter way."""
    parts = _OTHER_NAME.sub("_", given)[:250].split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    return re.sub(r"^\.\.", "__", name) or "_"


def _status(word: str) -> Dict[str, Any]:
    """The line for a start or an end, which MLflow shows as the run's status."""
    return {"status": word, "at": int(time.time() * 1000)}


def _number(value: Any) -> Any:
    """A number for JSON; infinity and NaN as their names."""
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def directory() -> str:
    """The directory of the lines: that of the run of gpumesh-train, or else where the program was started."""
    run = os.environ.get("GPUMESH_RUN_DIR")
    name = "track" if run else f"track-{os.environ.get('SLURM_JOB_ID', os.getpid())}"
    return os.path.join(run or os.getcwd(), name)


class _Writer:
    """The open file, and the thread that sends its lines."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, _POINTS)
        self._lines = open(path, "ab", buffering=0)  # noqa: SIM115
        _end_line(path, self._lines.fileno())
        self._torn = False
        self._wake = threading.Event()
        self._over = False
        self._sender = Sender(folder, os.environ)
        self.write(_status("RUNNING"))
        self._thread = threading.Thread(target=self._send, name="gpumesh_track", daemon=True)
        if self._sender.uri:
            self._thread.start()
            atexit.register(self.close)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append the line, in a single write unless the volume is full.

        A full volume may accept only a part of it, which is then ended before the next line, so that only one is lost.
        """
        rest = (b"\n" if self._torn else b"") + json.dumps(line).encode("ascii") + b"\n"
        self._torn = True
        while rest:
            rest = rest[self._lines.write(rest) :]
        self._torn = False

    def keep(self, path: str, name: str) -> None:
        """Copy the file, and then record it."""
        copy = f"artifact-{secrets.token_hex(8)}"
        shutil.copyfile(path, os.path.join(self._sender.folder, copy))
        self.write({"artifact": name, "copy": copy})

    def close(self) -> None:
        """Record how the program has ended, and send the rest, for a few seconds at most."""
        self.write(_status("FAILED" if hasattr(sys, "last_value") else "FINISHED"))
        self._sender.known = False
        self._over = True
        self._wake.set()
        self._thread.join(_LAST)
        if self._sender.left():
            folder = self._sender.folder
            _say(
                f"the server has not got everything of {folder} yet. The next attempt continues with it, or: "
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
    _write(lambda writer: writer.write(line))


def _write(what: Callable[[_Writer], None]) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    with _lock:
        try:
            if not _writers:
                _writers.append(_Writer(directory()))
            what(_writers[0])
        except OSError as failure:
            if str(failure) not in _warned:
                _warned.append(str(failure))
                _say(f"{failure}. This will be missing in the run.")


def _say(words: str) -> None:
    # What a server answers must not control the terminal.
    shown = "".join(letter if unicodedata.category(letter)[0] != "C" else "\ufffd" for letter in words)
    sys.stderr.write(f"gpumesh_track: {shown}\n")


def _end_line(path: str, descriptor: int) -> None:
    """End a line that a killed attempt left incomplete, so that only this line is lost."""
    with open(path, "rb") as stream:
        if stream.seek(0, os.SEEK_END) and stream.seek(-1, os.SEEK_END) is not None and stream.read(1) != b"\n":
            os.write(descriptor, b"\n")


# --- The server's side


class _Batch:
    """The content of one request, from several lines: points, parameters, the last status and the artifacts."""

    def __init__(self) -> None:
        self.points: List[List[Any]] = []
        self.params: List[List[str]] = []
        self.status: Dict[str, Any] = {}
        self.artifacts: List[Dict[str, Any]] = []

    def has_room(self, line: Mapping[str, Any]) -> bool:
        """Whether MLflow accepts this line in the same request. A single line may exceed the limit."""
        points = len(self.points) + len(line.get("points", []))
        return (points <= _MOST or not self.points) and len(self.params) + len(line.get("params", [])) <= _MOST_PARAMS

    def add(self, line: Dict[str, Any]) -> None:
        """Add the content of the line."""
        self.points += line.get("points", [])
        self.params += line.get("params", [])
        self.status = line if "status" in line else self.status
        self.artifacts += [line] if "artifact" in line else []


class Sender:
    """Sends the lines of a folder, each once. Several processes may try; one has the lock."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.uri = environment.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        self._environment = environment
        self._state: Dict[str, Any] = {}
        #: The names of metrics that were reported.
        self._refused: Set[str] = set()
        #: Whether the database is known to be the one of before, and since when.
        self.known, self._asked = False, 0.0

    def left(self) -> bool:
        """Whether there are lines that the server has not received yet."""
        try:
            return os.path.getsize(os.path.join(self.folder, _POINTS)) > int(self._read_state().get("sent", 0))
        except FileNotFoundError:
            return False

    def send(self) -> None:
        """Send what there is. Raises UnreachableError, ServerError or OSError."""
        with open(os.path.join(self.folder, "lock"), "a", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnreachableError("another process is sending them") from None
            self._state = self._read_state()
            try:
                self._send_all()
            except ServerError as failure:
                # The database may lack the run. Only administrators learn that; others may do nothing with such a run.
                lacks = failure.code == _MISSING or failure.status == _DENIED
                if not lacks or not self._state.get("run_id"):
                    raise
                self._forget()
                self._send_all()
            except UnreachableError:
                self.known = False
                raise

    def _send_all(self) -> None:
        """Send the lines that this database of the server may lack."""
        if not self.known or time.monotonic() > self._asked + _QUESTIONS:
            database = self._database()
            if database != self._state.get("database", ""):
                self._forget(database=database)
            self.known, self._asked = True, time.monotonic()
        for end, batch in self._batches(int(self._state.get("sent", 0))):
            self._hand_in(batch)
            self._note(sent=end)

    def _forget(self, **more: Any) -> None:
        """Begin again, with the run of this folder if there is one, since nothing is stored twice."""
        self._note(sent=0, run_id="", artifacts="", **more)

    def _database(self) -> str:
        """The identity of the server's database; the one of before if the server does not show it."""
        try:
            found = self._call(f"experiments/get-by-name?experiment_name={_DEFAULT}")["experiment"]
        except ServerError:
            found = {}
        tags = {tag.get("key"): tag.get("value") for tag in found.get("tags", [])}
        return str(tags.get(_DATABASE) or self._state.get("database", ""))

    def _batches(self, start: int) -> Iterator[Tuple[int, _Batch]]:
        """Yield batches of complete lines from an offset on, with the offset of their end."""
        batch = _Batch()
        with open(os.path.join(self.folder, _POINTS), "rb") as stream:
            stream.seek(start)
            end = start
            for raw in stream:
                if not raw.endswith(b"\n"):
                    break
                line = _parsed(raw)
                if not batch.has_room(line):
                    yield end, batch
                    batch = _Batch()
                batch.add(line)
                end += len(raw)
        if end > start:
            yield end, batch

    def _hand_in(self, batch: _Batch) -> None:
        run = self._run()
        if batch.status:
            word = batch.status["status"]
            ended = {} if word == "RUNNING" else {"end_time": batch.status["at"]}
            self._call("runs/update", {"run_id": run, "status": word, **ended})
        for first in range(0, len(batch.points), _MOST):
            self._send_points(run, batch.points[first : first + _MOST])
        for key, value in batch.params:
            try:
                self._call("runs/log-parameter", {"run_id": run, "key": key, "value": value})
            except ServerError as failure:
                # The first value counts.
                if failure.code != _INVALID:
                    raise
        for line in batch.artifacts:
            self._upload(run, str(line["artifact"]), os.path.join(self.folder, os.path.basename(str(line["copy"]))))

    def _send_points(self, run: str, points: List[List[Any]]) -> None:
        """Send points. Those that the server refuses are reported and skipped, since they must not hold up the others.

        It accepts all points of a request or none, so halves are sent until each refused point is alone.
        """
        metrics = [{"key": key, "value": value, "timestamp": at, "step": step} for key, value, at, step in points]
        try:
            self._call("runs/log-batch", {"run_id": run, "metrics": metrics})
        except ServerError as failure:
            if failure.code != _INVALID:
                raise
            if len(points) > 1:
                half = len(points) // 2
                self._send_points(run, points[:half])
                self._send_points(run, points[half:])
            elif points[0][0] not in self._refused:
                if self._is_deleted(run):
                    raise
                self._refused.add(points[0][0])
                _say(f"{failure}. Such points of {points[0][0]} will be missing in the run.")

    def _is_deleted(self, run: str) -> bool:
        """Whether the run was deleted, so that MLflow refuses every point of it, with the same code."""
        return bool(self._call(f"runs/get?run_id={run}")["run"]["info"].get("lifecycle_stage") == "deleted")

    def _upload(self, run: str, name: str, copy: str) -> None:
        """Send a file, and delete the copy. A missing copy has already been sent."""
        if not os.path.lexists(copy):
            return
        try:
            path = f"{_KEPT}/artifacts/{urllib.parse.quote(f'{self._artifacts(run)}/{name}')}"
            with open(copy, "rb") as stream:
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(os.path.getsize(copy))}
                self._ask("PUT", path, headers, stream)
        except ServerError as failure:
            if failure.status in _NOT_ALLOWED:
                raise
            # A file must not delay the metrics that follow.
            _say(f"{failure}. The artifact {name} stays in {copy}.")
            return
        os.unlink(copy)

    def _artifacts(self, run: str) -> str:
        """Where the server stores the artifacts of the run. Raises ServerError if it does not store them itself."""
        if not self._state.get("artifacts"):
            uri = urllib.parse.urlsplit(self._call(f"runs/get?run_id={run}")["run"]["info"]["artifact_uri"])
            if uri.scheme != _KEPT:
                raise ServerError(200, uri.scheme, f"{self.uri} does not accept artifacts")
            self._note(artifacts=uri.path.strip("/"))
        return str(self._state["artifacts"])

    def _run(self) -> str:
        """The MLflow run of this folder, which is created if necessary."""
        if self._state.get("run_id"):
            return str(self._state["run_id"])
        # Recorded before any request, so that a run is found again if the reply to its creation is lost.
        token = str(self._state.get("token") or secrets.token_hex(16))
        # Whoever sends the lines later may be another job.
        origin = self._state.get("origin") or self._origin()
        self._note(token=token, origin=origin)
        experiment = self._experiment(origin["experiment"])
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`gpumesh.token` = '{token}'", "max_results": 1}
        found = self._call("runs/search", wanted).get("runs", [])
        run = found[0] if found else self._make_run(experiment, {**origin["tags"], "gpumesh.token": token})
        self._note(run_id=run["info"]["run_id"])
        return str(self._state["run_id"])

    def _origin(self) -> Dict[str, Any]:
        """The name of the experiment, and the tags of the run."""
        try:
            tags = dict(json.loads(self._environment.get("MLFLOW_RUN_CONTEXT") or "{}"))
        except ValueError:
            tags = {}
        name = self._environment.get("MLFLOW_EXPERIMENT_NAME") or self._environment.get("USER") or "gpumesh"
        return {"experiment": name, "tags": {"mlflow.user": self._environment.get("USER", ""), **tags}}

    def _make_run(self, experiment: str, tags: Mapping[str, Any]) -> Dict[str, Any]:
        name = tags.get("mlflow.runName") or os.path.basename(os.path.dirname(os.path.abspath(self.folder)))
        listed = [{"key": str(key), "value": str(value)} for key, value in tags.items() if value]
        begun = {"experiment_id": experiment, "run_name": name, "start_time": self._begun(), "tags": listed}
        return dict(self._call("runs/create", begun)["run"])

    def _begun(self) -> int:
        """When the first attempt started, which may be long before the server answers; in milliseconds."""
        with open(os.path.join(self.folder, _POINTS), "rb") as stream:
            return int(_parsed(stream.readline(_LARGEST)).get("at", time.time() * 1000))

    def _experiment(self, name: str) -> str:
        asked = f"experiments/get-by-name?experiment_name={urllib.parse.quote(name)}"
        try:
            return self._active(name, self._permitted(name, self._call(asked)["experiment"]))
        except ServerError as failure:
            if failure.code != _MISSING:
                raise
        try:
            tags = {"mlflow.experimentKind": "custom_model_development", _OWNER: self._user()}
            listed = [{"key": key, "value": value} for key, value in tags.items() if value]
            return str(self._call("experiments/create", {"name": name, "tags": listed})["experiment_id"])
        except ServerError as failure:
            # Another run has created it meanwhile.
            if failure.code != "RESOURCE_ALREADY_EXISTS":
                raise
        return str(self._permitted(name, self._call(asked)["experiment"])["experiment_id"])

    def _user(self) -> str:
        """The user's name for MLflow; empty without credentials."""
        return credentials(self._environment).partition(":")[0]

    def _permitted(self, name: str, experiment: Mapping[str, Any]) -> Mapping[str, Any]:
        """The experiment, unless it is somebody else's. Raises ServerError.

        Whoever manages it can change and delete the runs in it. So one that the user may only edit is reported, and one
        with the user's own name that another user manages is refused.
        """
        user = self._user()
        permission = self._permission(user, str(experiment["experiment_id"])) if user else _MANAGE
        if permission == _MANAGE:
            return experiment
        owner = next((tag["value"] for tag in experiment.get("tags", []) if tag.get("key") == _OWNER), "another user")
        message = f"the experiment {name} belongs to {owner}, and {user} may not manage it"
        if permission != _EDIT or name in (user, self._environment.get("USER")):
            remedy = "Set MLFLOW_EXPERIMENT_NAME to another name, or ask an administrator of MLflow"
            raise ServerError(403, "PERMISSION_DENIED", f"{message}. {remedy}")
        _say(f"{message}, only add runs to it")
        return experiment

    def _permission(self, user: str, experiment: str) -> str:
        """What a user may do with an experiment. A server without permissions allows everything."""
        given = {"username": user, "resource_type": "experiment", "resource_id": experiment}
        try:
            found = self._users(f"permissions/get?{urllib.parse.urlencode(given)}").get("permission")
            administrator = found != _MANAGE and self._users("current/permissions").get("is_admin")
        except ServerError as failure:
            if failure.status in _NOT_ALLOWED:
                raise
            return _MANAGE
        return _MANAGE if administrator else str(found)

    def _users(self, path: str) -> Dict[str, Any]:
        """MLflow's interface for users, which has another version."""
        return self._ask("GET", f"mlflow/users/{path}", {}, None, "3.0")

    def _active(self, name: str, experiment: Mapping[str, Any]) -> str:
        """The ID of an experiment, which is restored if it was deleted: it keeps its name, and accepts no runs."""
        number = str(experiment["experiment_id"])
        if experiment.get("lifecycle_stage") != "deleted":
            return number
        try:
            self._call("experiments/restore", {"experiment_id": number})
        except ServerError as failure:
            if failure.status in _NOT_ALLOWED:
                message = f"the experiment {name} was deleted; an administrator of MLflow can restore it"
                raise ServerError(failure.status, failure.code, message) from failure
            # Another run has restored it meanwhile.
            if failure.code != _MISSING:
                raise
        return number

    def _call(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Send a request. Raises UnreachableError for temporary failures, and ServerError."""
        text = None if body is None else json.dumps(body)
        method = "GET" if body is None else "POST"
        return self._ask(method, f"mlflow/{path}", {"Content-Type": "application/json"}, text)

    def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Union[str, BinaryIO, None],
        version: str = "2.0",
    ) -> Dict[str, Any]:
        login = credentials(self._environment)
        if login:
            headers = {**headers, "Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        try:
            status, raw = self._request(method, f"{version}/{path}", headers, body)
            said = _parsed(raw)
        except (OSError, http.client.HTTPException) as failure:
            raise UnreachableError(str(failure)) from failure
        if status == 200:
            return said
        if status >= 500 or status in _LATER:
            raise UnreachableError(f"{self.uri} answers {status}")
        message = str(said.get("message", raw[:200].decode("utf-8", "replace")))
        if status in _NOT_ALLOWED:
            message += " (see ~/.mlflow/credentials)"
        raise ServerError(status, str(said.get("error_code", "")), message)

    def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: Union[str, BinaryIO, None]
    ) -> Tuple[int, bytes]:
        where = urllib.parse.urlsplit(self.uri)
        connection: http.client.HTTPConnection
        if where.scheme == "https":
            trust = self._environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None
            context = ssl.create_default_context(cafile=trust)
            connection = http.client.HTTPSConnection(where.netloc, timeout=_TIMEOUT, context=context)
        else:
            connection = http.client.HTTPConnection(where.netloc, timeout=_TIMEOUT)
        with contextlib.closing(connection):
            connection.request(method, f"{where.path}/api/{path}", body, dict(headers))
            answer = connection.getresponse()
            raw = answer.read(_LARGEST + 1)
            if len(raw) > _LARGEST:
                raise http.client.HTTPException(f"{self.uri} sends more than it can have to say")
            return answer.status, raw

    def _read_state(self) -> Dict[str, Any]:
        try:
            with open(os.path.join(self.folder, _STATE), encoding="ascii") as stream:
                return dict(json.load(stream))
        except FileNotFoundError:
            return {}

    def _note(self, **more: Any) -> None:
        """Update the state in one step that survives a power cut."""
        self._state.update(more)
        path = os.path.join(self.folder, _STATE)
        with open(path + ".new", "w", encoding="ascii") as stream:
            json.dump(self._state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(path + ".new", path)


def _parsed(raw: bytes) -> Dict[str, Any]:
    """The content of a line; empty for one that a killed program left incomplete."""
    try:
        line = json.loads(raw)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def credentials(environment: Mapping[str, str]) -> str:
    """NAME:PASSWORD, from the same sources as MLflow: the environment, or ~/.mlflow/credentials; empty if there are
    none.
    """
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
    """Send what runs have left, or what a restored server lacks of them: ``gpumesh_track.py DIRECTORY...``."""
    if not arguments:
        _say(f"usage: {os.path.basename(__file__)} DIRECTORY...")
        return 2
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        _say("MLFLOW_TRACKING_URI is not set")
        return 2
    status = 0
    for folder in arguments:
        try:
            Sender(folder, os.environ).send()
        except (UnreachableError, ServerError, ValueError, OSError) as failure:
            _say(f"{folder}: {failure}")
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send metrics to the cluster's MLflow: ``import gpumesh_track``.

    gpumesh_track.params(lr=0.1, batch=32)            once
    gpumesh_track.log(step, loss=loss, accuracy=a)    after a step; only rank 0 does anything
    gpumesh_track.artifact("report.html")             a file, as it is now

An outage of the server neither stops nor slows the program, and loses no metrics. The module needs only Python. Each
call appends a line to a file in the directory of the run; a thread in the background sends the lines, and continues
when the server is back, also in the next attempt. Lines that are not sent when a run has ended are sent by ``srun
python3 /usr/local/lib/gpumesh/python/gpumesh_track.py DIRECTORY...``: jobs know where the server is.

Nothing is stored twice: MLflow keeps only one of several identical points with the same time, so a batch whose response
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

#: Seconds between two batches, at most between two attempts after failures, for one request, and at the program's end.
_PERIOD = 2.0
_LONGEST_PAUSE = 30.0
_REQUEST_TIMEOUT = 20.0
_LAST = 10.0
#: Seconds between two checks whether the server's database has been replaced.
_DATABASE_CHECK_INTERVAL = 60.0
#: MLflow's limits for one request.
_MAX_POINTS = 1000
_MAX_PARAMS = 100
_POINTS_FILE, _STATE_FILE = "points.jsonl", "state.json"
#: The maximum number of bytes that are read of a response, whoever sends it, and of the first line of the file.
_MAX_RESPONSE_BYTES = 4 << 20
#: The path at which this file is installed. A rank of gpumesh-train imports a copy that exists only while it runs.
_INSTALLED_PATH = "/usr/local/lib/gpumesh/python/gpumesh_track.py"
_INVALID_CHARACTERS = re.compile(r"[^\w./: -]", re.ASCII)
#: MLflow's codes for a request that it cannot accept, and for something that does not exist; and statuses after which
#: a request is repeated.
_INVALID_CODE = "INVALID_PARAMETER_VALUE"
_MISSING_CODE = "RESOURCE_DOES_NOT_EXIST"
_RETRY_STATUSES = (408, 425, 429)
#: Statuses for a user without permission, and for one who is unknown or has none.
_FORBIDDEN_STATUS = 403
_DENIED_STATUSES = (401, _FORBIDDEN_STATUS)
#: MLflow's permissions to change an experiment, and to do anything with it, and the tag with its owner.
_EDIT_PERMISSION, _MANAGE_PERMISSION, _OWNER_TAG = "EDIT", "MANAGE", "gpumesh.owner"
#: The experiment of each database that all users can read, and its tag with the ID of the database.
_DEFAULT_EXPERIMENT, _DATABASE_TAG = "Default", "gpumesh.database"
#: The scheme of artifacts that the server stores itself, which is also the first part of their paths.
_ARTIFACT_SCHEME = "mlflow-artifacts"


class ServerError(Exception):
    """A request that the server has refused, and would refuse again; ``code`` is MLflow's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}"[:400])
        self.status, self.code = status, code


class UnreachableError(Exception):
    """A server that does not respond, or is temporarily unavailable."""


# --- The program's side, where a function only appends a line


def log(step: int, **metrics: float) -> None:
    """Record the metrics of a step.

    Names consist of letters, digits and ``_``; for others, or a mapping, use ``**{...}``. They may have ``.``, ``-``,
    ``:``, spaces, and ``/`` between their parts; other characters become ``_``.
    """
    timestamp_ms = int(time.time() * 1000)
    points = [[_mlflow_name(name), _json_number(value), timestamp_ms, int(step)] for name, value in metrics.items()]
    _append_line({"points": points})


def params(**parameters: Any) -> None:
    """Record parameters of the run. Only the first value of each parameter counts, also after a restart."""
    _append_line({"params": [[_mlflow_name(name), str(value)[:6000]] for name, value in parameters.items()]})


def artifact(path: str, name: str = "") -> None:
    """Copy a file, which is sent as an artifact of the run.

    ``name`` may contain directories; the default is the name of the file.
    """
    path_parts = os.path.normpath(name or os.path.basename(path)).split("/")
    artifact_path = "/".join(part for part in path_parts if part not in ("", ".", ".."))
    _with_writer(lambda writer: writer.add_artifact(path, artifact_path))


def _mlflow_name(requested_name: str) -> str:
    """Return a name that MLflow accepts: a path that cannot be written in a shorter way."""
    name_parts = _INVALID_CHARACTERS.sub("_", requested_name)[:250].split("/")
    name = "/".join(part for part in name_parts if part not in ("", ".", ".."))
    return re.sub(r"^\.\.", "__", name) or "_"


def _status_line(status: str) -> Dict[str, Any]:
    """Return the line for a start or an end, which MLflow shows as the run's status."""
    return {"status": status, "at": int(time.time() * 1000)}


def _json_number(value: Any) -> Any:
    """Return a number for JSON, where infinity and NaN are strings."""
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def directory() -> str:
    """Return the directory of the lines, in that of the run of gpumesh-train, or else where the program was started."""
    run_directory = os.environ.get("GPUMESH_RUN_DIR")
    directory_name = "track" if run_directory else f"track-{os.environ.get('SLURM_JOB_ID', os.getpid())}"
    return os.path.join(run_directory or os.getcwd(), directory_name)


class _Writer:
    """The open file, and the thread that sends its lines."""

    def __init__(self, lines_directory: str) -> None:
        os.makedirs(lines_directory, mode=0o700, exist_ok=True)
        points_path = os.path.join(lines_directory, _POINTS_FILE)
        self._points_stream = open(points_path, "ab", buffering=0)  # noqa: SIM115
        _end_torn_line(points_path, self._points_stream.fileno())
        self._line_torn = False
        self._wake = threading.Event()
        self._closing = False
        self._sender = Sender(lines_directory, os.environ)
        self.write(_status_line("RUNNING"))
        self._thread = threading.Thread(target=self._send_repeatedly, name="gpumesh_track", daemon=True)
        if self._sender.uri:
            self._thread.start()
            atexit.register(self.close)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append the line, in a single write unless the volume is full.

        A full volume may accept only a part of a line. The next line then starts with a newline, so that only one is
        lost.
        """
        remaining_bytes = (b"\n" if self._line_torn else b"") + json.dumps(line).encode("ascii") + b"\n"
        self._line_torn = True
        while remaining_bytes:
            remaining_bytes = remaining_bytes[self._points_stream.write(remaining_bytes) :]
        self._line_torn = False

    def add_artifact(self, path: str, artifact_name: str) -> None:
        """Copy the file, and then record it."""
        copy_name = f"artifact-{secrets.token_hex(8)}"
        shutil.copyfile(path, os.path.join(self._sender.directory, copy_name))
        self.write({"artifact": artifact_name, "copy": copy_name})

    def close(self) -> None:
        """Record how the program has ended, and send the remaining lines, for a few seconds at most."""
        self.write(_status_line("FAILED" if hasattr(sys, "last_value") else "FINISHED"))
        self._sender.database_known = False
        self._closing = True
        self._wake.set()
        self._thread.join(_LAST)
        if self._sender.has_unsent():
            lines_directory = self._sender.directory
            _say(
                f"the server has not received everything in {lines_directory} yet. The next attempt sends the rest, or: "
                f"srun python3 {_INSTALLED_PATH} {lines_directory}"
            )

    def _send_repeatedly(self) -> None:
        retry_delay = _PERIOD
        while True:
            is_last = self._closing
            try:
                self._sender.send()
                retry_delay = _PERIOD
            except (UnreachableError, OSError):
                retry_delay = min(retry_delay * 2, _LONGEST_PAUSE)
            except (ServerError, ValueError) as failure:
                _say(f"{failure}. The lines stay in {self._sender.directory}.")
                return
            if is_last:
                return
            self._wake.wait(retry_delay)


_writers: List[_Writer] = []
_warned_failures: List[str] = []
_writer_lock = threading.Lock()


def _append_line(line: Mapping[str, Any]) -> None:
    _with_writer(lambda writer: writer.write(line))


def _with_writer(action: Callable[[_Writer], None]) -> None:
    if os.environ.get("RANK", "0") != "0":
        return
    with _writer_lock:
        try:
            if not _writers:
                _writers.append(_Writer(directory()))
            action(_writers[0])
        except OSError as failure:
            if str(failure) not in _warned_failures:
                _warned_failures.append(str(failure))
                _say(f"{failure}. This will be missing in the run.")


def _say(message: str) -> None:
    # A response of the server must not control the terminal.
    printable_text = "".join(
        character if unicodedata.category(character)[0] != "C" else "\ufffd" for character in message
    )
    sys.stderr.write(f"gpumesh_track: {printable_text}\n")


def _end_torn_line(points_path: str, append_fd: int) -> None:
    """End a line that a killed attempt left incomplete, so that only this line is lost."""
    with open(points_path, "rb") as stream:
        if stream.seek(0, os.SEEK_END) and stream.seek(-1, os.SEEK_END) is not None and stream.read(1) != b"\n":
            os.write(append_fd, b"\n")


# --- The server's side


class _Batch:
    """The content of several lines: points, parameters, the last status and the artifacts."""

    def __init__(self) -> None:
        self.points: List[List[Any]] = []
        self.params: List[List[str]] = []
        self.status: Dict[str, Any] = {}
        self.artifacts: List[Dict[str, Any]] = []

    def has_room(self, line: Mapping[str, Any]) -> bool:
        """Whether MLflow accepts this line in the same request. A single line may exceed the limit."""
        point_count = len(self.points) + len(line.get("points", []))
        return (point_count <= _MAX_POINTS or not self.points) and len(self.params) + len(
            line.get("params", [])
        ) <= _MAX_PARAMS

    def add(self, line: Dict[str, Any]) -> None:
        """Add the content of the line."""
        self.points += line.get("points", [])
        self.params += line.get("params", [])
        self.status = line if "status" in line else self.status
        self.artifacts += [line] if "artifact" in line else []


class Sender:
    """Send the lines of a directory. Several processes may try at the same time; one of them has the lock."""

    def __init__(self, lines_directory: str, environment: Mapping[str, str]) -> None:
        self.directory = lines_directory
        self.uri = environment.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        self._environment = environment
        self._state: Dict[str, Any] = {}
        #: The names of metrics whose refusal was reported.
        self._refused_metrics: Set[str] = set()
        #: Whether the database is known to be the same as before, and when that was last checked.
        self.database_known, self._database_checked_at = False, 0.0

    def has_unsent(self) -> bool:
        """Whether there are lines that the server has not received yet."""
        try:
            return os.path.getsize(os.path.join(self.directory, _POINTS_FILE)) > int(self._read_state().get("sent", 0))
        except FileNotFoundError:
            return False

    def send(self) -> None:
        """Send all lines that the server lacks. Raises UnreachableError, ServerError or OSError."""
        with open(os.path.join(self.directory, "lock"), "a", encoding="ascii") as lock_stream:
            try:
                fcntl.flock(lock_stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnreachableError("another process is sending them") from None
            self._state = self._read_state()
            try:
                self._send_all()
            except ServerError as failure:
                # The database may lack the run. Only administrators are told so; for others, access to it is denied.
                run_missing = failure.code == _MISSING_CODE or failure.status == _FORBIDDEN_STATUS
                if not run_missing or not self._state.get("run_id"):
                    raise
                self._start_over()
                self._send_all()
            except UnreachableError:
                self.database_known = False
                raise

    def _send_all(self) -> None:
        """Send the lines that this database of the server may lack."""
        if not self.database_known or time.monotonic() > self._database_checked_at + _DATABASE_CHECK_INTERVAL:
            current_database = self._read_database()
            if current_database != self._state.get("database", ""):
                self._start_over(database=current_database)
            self.database_known, self._database_checked_at = True, time.monotonic()
        for end_offset, batch in self._read_batches(int(self._state.get("sent", 0))):
            self._send_batch(batch)
            self._update_state(sent=end_offset)

    def _start_over(self, **changes: Any) -> None:
        """Start over, with the run of this directory if there is one, since nothing is stored twice."""
        self._update_state(sent=0, run_id="", artifacts="", **changes)

    def _read_database(self) -> str:
        """Return the ID of the server's database; the previous one if the server does not show it."""
        try:
            experiment = self._call_api(f"experiments/get-by-name?experiment_name={_DEFAULT_EXPERIMENT}")["experiment"]
        except ServerError:
            experiment = {}
        tags = {tag.get("key"): tag.get("value") for tag in experiment.get("tags", [])}
        return str(tags.get(_DATABASE_TAG) or self._state.get("database", ""))

    def _read_batches(self, start_offset: int) -> Iterator[Tuple[int, _Batch]]:
        """Yield batches of complete lines after an offset, each with the offset of its end."""
        batch = _Batch()
        with open(os.path.join(self.directory, _POINTS_FILE), "rb") as stream:
            stream.seek(start_offset)
            end_offset = start_offset
            for raw_line in stream:
                if not raw_line.endswith(b"\n"):
                    break
                line = _parse_line(raw_line)
                if not batch.has_room(line):
                    yield end_offset, batch
                    batch = _Batch()
                batch.add(line)
                end_offset += len(raw_line)
        if end_offset > start_offset:
            yield end_offset, batch

    def _send_batch(self, batch: _Batch) -> None:
        run_id = self._find_or_create_run()
        if batch.status:
            run_status = batch.status["status"]
            end_fields = {} if run_status == "RUNNING" else {"end_time": batch.status["at"]}
            self._call_api("runs/update", {"run_id": run_id, "status": run_status, **end_fields})
        for first_point in range(0, len(batch.points), _MAX_POINTS):
            self._send_points(run_id, batch.points[first_point : first_point + _MAX_POINTS])
        for key, value in batch.params:
            try:
                self._call_api("runs/log-parameter", {"run_id": run_id, "key": key, "value": value})
            except ServerError as failure:
                # The first value counts.
                if failure.code != _INVALID_CODE:
                    raise
        for line in batch.artifacts:
            self._upload(
                run_id, str(line["artifact"]), os.path.join(self.directory, os.path.basename(str(line["copy"])))
            )

    def _send_points(self, run_id: str, points: List[List[Any]]) -> None:
        """Send points. Report and skip those that the server refuses, since they must not hold up the others.

        The server accepts all points of a request or none, so halves are sent until each refused point is alone.
        """
        metrics = [
            {"key": key, "value": value, "timestamp": timestamp_ms, "step": step}
            for key, value, timestamp_ms, step in points
        ]
        try:
            self._call_api("runs/log-batch", {"run_id": run_id, "metrics": metrics})
        except ServerError as failure:
            if failure.code != _INVALID_CODE:
                raise
            if len(points) > 1:
                middle = len(points) // 2
                self._send_points(run_id, points[:middle])
                self._send_points(run_id, points[middle:])
            elif points[0][0] not in self._refused_metrics:
                if self._is_deleted(run_id):
                    raise
                self._refused_metrics.add(points[0][0])
                _say(f"{failure}. Such points of {points[0][0]} will be missing in the run.")

    def _is_deleted(self, run_id: str) -> bool:
        """Whether the run was deleted, so that MLflow refuses every point of it, with the same code."""
        return bool(self._call_api(f"runs/get?run_id={run_id}")["run"]["info"].get("lifecycle_stage") == "deleted")

    def _upload(self, run_id: str, artifact_name: str, copy_path: str) -> None:
        """Send a file, and delete the copy. A missing copy has already been sent."""
        if not os.path.lexists(copy_path):
            return
        try:
            upload_path = (
                f"{_ARTIFACT_SCHEME}/artifacts/{urllib.parse.quote(f'{self._artifact_root(run_id)}/{artifact_name}')}"
            )
            with open(copy_path, "rb") as artifact_stream:
                headers = {
                    "Content-Type": "application/octet-stream",
                    "Content-Length": str(os.path.getsize(copy_path)),
                }
                self._send_request("PUT", upload_path, headers, artifact_stream)
        except ServerError as failure:
            if failure.status in _DENIED_STATUSES:
                raise
            # A file must not delay the metrics that follow.
            _say(f"{failure}. The artifact {artifact_name} stays in {copy_path}.")
            return
        os.unlink(copy_path)

    def _artifact_root(self, run_id: str) -> str:
        """Return the server's path for the run's artifacts. Raises ServerError if the server does not store them."""
        if not self._state.get("artifacts"):
            artifact_uri = urllib.parse.urlsplit(
                self._call_api(f"runs/get?run_id={run_id}")["run"]["info"]["artifact_uri"]
            )
            if artifact_uri.scheme != _ARTIFACT_SCHEME:
                raise ServerError(200, artifact_uri.scheme, f"{self.uri} does not accept artifacts")
            self._update_state(artifacts=artifact_uri.path.strip("/"))
        return str(self._state["artifacts"])

    def _find_or_create_run(self) -> str:
        """Return the ID of the MLflow run of this directory, which is created if necessary."""
        if self._state.get("run_id"):
            return str(self._state["run_id"])
        # The token is stored before any request, so that a run is found again if the response to its creation is lost.
        token = str(self._state.get("token") or secrets.token_hex(16))
        # The lines may be sent later by another job.
        origin = self._state.get("origin") or self._origin()
        self._update_state(token=token, origin=origin)
        experiment_id = self._find_or_create_experiment(origin["experiment"])
        search_query = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`gpumesh.token` = '{token}'",
            "max_results": 1,
        }
        matching_runs = self._call_api("runs/search", search_query).get("runs", [])
        mlflow_run = (
            matching_runs[0]
            if matching_runs
            else self._create_run(experiment_id, {**origin["tags"], "gpumesh.token": token})
        )
        self._update_state(run_id=mlflow_run["info"]["run_id"])
        return str(self._state["run_id"])

    def _origin(self) -> Dict[str, Any]:
        """Return the name of the experiment, and the tags of the run."""
        try:
            run_tags = dict(json.loads(self._environment.get("MLFLOW_RUN_CONTEXT") or "{}"))
        except ValueError:
            run_tags = {}
        experiment_name = self._environment.get("MLFLOW_EXPERIMENT_NAME") or self._environment.get("USER") or "gpumesh"
        return {"experiment": experiment_name, "tags": {"mlflow.user": self._environment.get("USER", ""), **run_tags}}

    def _create_run(self, experiment_id: str, tags: Mapping[str, Any]) -> Dict[str, Any]:
        run_name = tags.get("mlflow.runName") or os.path.basename(os.path.dirname(os.path.abspath(self.directory)))
        tag_entries = [{"key": str(key), "value": str(value)} for key, value in tags.items() if value]
        run_fields = {
            "experiment_id": experiment_id,
            "run_name": run_name,
            "start_time": self._start_time(),
            "tags": tag_entries,
        }
        return dict(self._call_api("runs/create", run_fields)["run"])

    def _start_time(self) -> int:
        """Return when the first attempt started, in milliseconds, which may be long before the server responds."""
        with open(os.path.join(self.directory, _POINTS_FILE), "rb") as stream:
            return int(_parse_line(stream.readline(_MAX_RESPONSE_BYTES)).get("at", time.time() * 1000))

    def _find_or_create_experiment(self, experiment_name: str) -> str:
        lookup_path = f"experiments/get-by-name?experiment_name={urllib.parse.quote(experiment_name)}"
        try:
            return self._restore_experiment(
                experiment_name, self._check_permission(experiment_name, self._call_api(lookup_path)["experiment"])
            )
        except ServerError as failure:
            if failure.code != _MISSING_CODE:
                raise
        try:
            tags = {"mlflow.experimentKind": "custom_model_development", _OWNER_TAG: self._user_name()}
            tag_entries = [{"key": key, "value": value} for key, value in tags.items() if value]
            return str(
                self._call_api("experiments/create", {"name": experiment_name, "tags": tag_entries})["experiment_id"]
            )
        except ServerError as failure:
            # Another run has created it meanwhile.
            if failure.code != "RESOURCE_ALREADY_EXISTS":
                raise
        return str(self._check_permission(experiment_name, self._call_api(lookup_path)["experiment"])["experiment_id"])

    def _user_name(self) -> str:
        """Return the user's name in MLflow; empty without credentials."""
        return credentials(self._environment).partition(":")[0]

    def _check_permission(self, experiment_name: str, experiment: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the experiment, unless it belongs to another user. Raises ServerError.

        Users who manage an experiment can change and delete the runs in it. So an experiment that the user may only
        edit is reported, and one with the user's own name that another user manages is refused.
        """
        user_name = self._user_name()
        permission = (
            self._get_permission(user_name, str(experiment["experiment_id"])) if user_name else _MANAGE_PERMISSION
        )
        if permission == _MANAGE_PERMISSION:
            return experiment
        owner = next(
            (tag["value"] for tag in experiment.get("tags", []) if tag.get("key") == _OWNER_TAG), "another user"
        )
        message = f"the experiment {experiment_name} belongs to {owner}, and {user_name} may not manage it"
        if permission != _EDIT_PERMISSION or experiment_name in (user_name, self._environment.get("USER")):
            remedy = "Set MLFLOW_EXPERIMENT_NAME to another name, or ask an administrator of MLflow"
            raise ServerError(403, "PERMISSION_DENIED", f"{message}. {remedy}")
        _say(f"{message}, only add runs to it")
        return experiment

    def _get_permission(self, user_name: str, experiment_id: str) -> str:
        """Return the user's permission for an experiment. A server without permissions allows everything."""
        permission_query = {"username": user_name, "resource_type": "experiment", "resource_id": experiment_id}
        try:
            permission = self._call_users_api(f"permissions/get?{urllib.parse.urlencode(permission_query)}").get(
                "permission"
            )
            is_administrator = permission != _MANAGE_PERMISSION and self._call_users_api("current/permissions").get(
                "is_admin"
            )
        except ServerError as failure:
            if failure.status in _DENIED_STATUSES:
                raise
            return _MANAGE_PERMISSION
        return _MANAGE_PERMISSION if is_administrator else str(permission)

    def _call_users_api(self, path: str) -> Dict[str, Any]:
        """Send a request to MLflow's interface for users, which has another version."""
        return self._send_request("GET", f"mlflow/users/{path}", {}, None, "3.0")

    def _restore_experiment(self, experiment_name: str, experiment: Mapping[str, Any]) -> str:
        """Return the ID of an experiment, and restore it if it was deleted, since it would accept no runs."""
        experiment_id = str(experiment["experiment_id"])
        if experiment.get("lifecycle_stage") != "deleted":
            return experiment_id
        try:
            self._call_api("experiments/restore", {"experiment_id": experiment_id})
        except ServerError as failure:
            if failure.status in _DENIED_STATUSES:
                message = f"the experiment {experiment_name} was deleted; an administrator of MLflow can restore it"
                raise ServerError(failure.status, failure.code, message) from failure
            # Another run has restored it meanwhile.
            if failure.code != _MISSING_CODE:
                raise
        return experiment_id

    def _call_api(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Send a request. Raises UnreachableError for temporary failures, and ServerError."""
        body_text = None if body is None else json.dumps(body)
        method = "GET" if body is None else "POST"
        return self._send_request(method, f"mlflow/{path}", {"Content-Type": "application/json"}, body_text)

    def _send_request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Union[str, BinaryIO, None],
        api_version: str = "2.0",
    ) -> Dict[str, Any]:
        basic_credentials = credentials(self._environment)
        if basic_credentials:
            headers = {**headers, "Authorization": "Basic " + base64.b64encode(basic_credentials.encode()).decode()}
        try:
            status, response_bytes = self._http_exchange(method, f"{api_version}/{path}", headers, body)
            response = _parse_line(response_bytes)
        except (OSError, http.client.HTTPException) as failure:
            raise UnreachableError(str(failure)) from failure
        if status == 200:
            return response
        if status >= 500 or status in _RETRY_STATUSES:
            raise UnreachableError(f"{self.uri} returned status {status}")
        message = str(response.get("message", response_bytes[:200].decode("utf-8", "replace")))
        if status in _DENIED_STATUSES:
            message += " (see ~/.mlflow/credentials)"
        raise ServerError(status, str(response.get("error_code", "")), message)

    def _http_exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: Union[str, BinaryIO, None]
    ) -> Tuple[int, bytes]:
        server_url = urllib.parse.urlsplit(self.uri)
        connection: http.client.HTTPConnection
        if server_url.scheme == "https":
            ca_path = self._environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None
            tls_context = ssl.create_default_context(cafile=ca_path)
            connection = http.client.HTTPSConnection(server_url.netloc, timeout=_REQUEST_TIMEOUT, context=tls_context)
        else:
            connection = http.client.HTTPConnection(server_url.netloc, timeout=_REQUEST_TIMEOUT)
        with contextlib.closing(connection):
            connection.request(method, f"{server_url.path}/api/{path}", body, dict(headers))
            response = connection.getresponse()
            response_bytes = response.read(_MAX_RESPONSE_BYTES + 1)
            if len(response_bytes) > _MAX_RESPONSE_BYTES:
                raise http.client.HTTPException(f"{self.uri} sends a longer response than expected")
            return response.status, response_bytes

    def _read_state(self) -> Dict[str, Any]:
        try:
            with open(os.path.join(self.directory, _STATE_FILE), encoding="ascii") as stream:
                return dict(json.load(stream))
        except FileNotFoundError:
            return {}

    def _update_state(self, **changes: Any) -> None:
        """Update the state in one step that survives a power cut."""
        self._state.update(changes)
        state_path = os.path.join(self.directory, _STATE_FILE)
        with open(state_path + ".new", "w", encoding="ascii") as stream:
            json.dump(self._state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(state_path + ".new", state_path)


def _parse_line(raw_line: bytes) -> Dict[str, Any]:
    """Parse a line; the result is empty for a line that a killed program left incomplete."""
    try:
        line = json.loads(raw_line)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def credentials(environment: Mapping[str, str]) -> str:
    """Return NAME:PASSWORD from the environment or ~/.mlflow/credentials, as MLflow does; empty if neither has them."""
    user_name, password = (environment.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD"))
    if not user_name:
        credentials_file = configparser.ConfigParser(interpolation=None)
        home_directory = environment.get("HOME") or os.path.expanduser("~")
        try:
            credentials_file.read(os.path.join(home_directory, ".mlflow", "credentials"), encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            return ""
        user_name = credentials_file.get("mlflow", "mlflow_tracking_username", fallback="")
        password = credentials_file.get("mlflow", "mlflow_tracking_password", fallback="")
    return f"{user_name}:{password or ''}" if user_name else ""


def main(arguments: List[str]) -> int:
    """Send lines of runs that the server has not received, or lacks again: ``gpumesh_track.py DIRECTORY...``."""
    if not arguments:
        _say(f"usage: {os.path.basename(__file__)} DIRECTORY...")
        return 2
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        _say("MLFLOW_TRACKING_URI is not set")
        return 2
    exit_status = 0
    for lines_directory in arguments:
        try:
            Sender(lines_directory, os.environ).send()
        except (UnreachableError, ServerError, ValueError, OSError) as failure:
            _say(f"{lines_directory}: {failure}")
            exit_status = 1
    return exit_status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

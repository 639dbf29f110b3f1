# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpumesh_track with a server that stores points as MLflow does, and is down, slow, or loses its replies."""

from __future__ import annotations

import base64
import copy
import json
import os
import posixpath
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import gpumesh_track, run_environment

Point = tuple[str, float, int, int]


class Handler(BaseHTTPRequestHandler):
    """The part of MLflow's API that gpumesh_track uses. ``trouble``: what happens to the next requests, in order."""

    protocol_version = "HTTP/1.1"
    trouble: ClassVar[list[str]]
    experiments: ClassVar[dict[str, str]]
    deleted: ClassVar[set[str]]
    runs: ClassVar[dict[str, dict[str, Any]]]
    logins: ClassVar[set[str]]
    asked: ClassVar[list[str]]
    files: ClassVar[dict[str, bytes]]
    #: What the user may do with each experiment, if not everything, and the owners of experiments.
    permissions: ClassVar[dict[str, str]]
    owners: ClassVar[dict[str, str]]
    #: The identity of the database, which the server of another cluster, or of an earlier version, does not show.
    database: ClassVar[str]
    administrator: ClassVar[bool]

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.respond({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})

    def do_POST(self) -> None:
        self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PUT(self) -> None:
        self.respond({"content": self.rfile.read(int(self.headers["Content-Length"]))})

    def respond(self, given: dict[str, Any]) -> None:
        what = self.trouble.pop(0) if self.trouble else ""
        path = unquote(urlsplit(self.path).path)
        name = path.removeprefix("/api/").removeprefix("2.0/").removeprefix("3.0/").removeprefix("mlflow/")
        self.asked.append(name)
        if "content" in given:
            given, name = {**given, "name": name.removeprefix("mlflow-artifacts/artifacts/")}, "put"
        self.logins.add(base64.b64decode(self.headers["Authorization"].split()[1]).decode())
        answer = getattr(self, name.replace("/", "_").replace("-", "_"))
        status, said = (503, {}) if what == "refuse" else self.missing(given) or answer(given)
        if what == "lose":
            self.close_connection = True
            return
        raw = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def missing(self, given: dict[str, Any]) -> Any:
        """As MLflow answers for a run that its database does not have, which other users may not even know."""
        run = given.get("run_id", "")
        if not run or run in self.runs:
            return None
        if not self.administrator:
            return 403, {}
        return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"Run with id={run} not found"}

    def put(self, given: dict[str, Any]) -> tuple[int, Any]:
        if "refused" in given["name"]:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid path"}
        self.files[given["name"]] = given["content"]
        return 200, {}

    def runs_get(self, given: dict[str, Any]) -> tuple[int, Any]:
        uri = f"mlflow-artifacts:/1/{given['run_id']}/artifacts"
        stage = self.runs[given["run_id"]].get("stage", "active")
        return 200, {"run": {"info": {"artifact_uri": uri, "lifecycle_stage": stage}}}

    def experiments_get_by_name(self, given: dict[str, Any]) -> tuple[int, Any]:
        if given["experiment_name"] == "Default":
            tags = [{"key": "gpumesh.database", "value": self.database}] if self.database else []
            return 200, {"experiment": {"experiment_id": "0", "tags": tags}}
        number = self.experiments.get(given["experiment_name"])
        if number is None:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}
        stage = "deleted" if number in self.deleted else "active"
        tags = [{"key": "gpumesh.owner", "value": self.owners[number]}] if number in self.owners else []
        return 200, {"experiment": {"experiment_id": number, "lifecycle_stage": stage, "tags": tags}}

    def users_permissions_get(self, given: dict[str, Any]) -> tuple[int, Any]:
        assert (given["username"], given["resource_type"]) == ("alice", "experiment")
        return 200, {"permission": self.permissions.get(given["resource_id"], "MANAGE")}

    def users_current_permissions(self, _given: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"is_admin": self.permissions.get("administrator") == "alice"}

    def experiments_restore(self, given: dict[str, Any]) -> tuple[int, Any]:
        if given["experiment_id"] not in self.deleted:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}
        self.deleted.remove(given["experiment_id"])
        return 200, {}

    def experiments_create(self, given: dict[str, Any]) -> tuple[int, Any]:
        if given["name"] in self.experiments:
            return 400, {"error_code": "RESOURCE_ALREADY_EXISTS"}
        self.experiments[given["name"]] = str(len(self.experiments) + 1)
        tags = {tag["key"]: tag["value"] for tag in given["tags"]}
        self.owners[self.experiments[given["name"]]] = tags["gpumesh.owner"]
        return 200, {"experiment_id": self.experiments[given["name"]]}

    def runs_search(self, given: dict[str, Any]) -> tuple[int, Any]:
        token = given["filter"].split("'")[1]
        found = [run for run in self.runs.values() if run["tags"]["gpumesh.token"] == token]
        return 200, {"runs": [{"info": {"run_id": run["id"]}} for run in found]}

    def runs_create(self, given: dict[str, Any]) -> tuple[int, Any]:
        if given["experiment_id"] in self.deleted:
            message = f"The experiment {given['experiment_id']} must be in the 'active' state."
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": message}
        number = f"run{len(self.runs)}{self.database}"
        tags = {tag["key"]: tag["value"] for tag in given["tags"]}
        begun = given["start_time"]
        self.runs[number] = {"id": number, "name": given["run_name"], "tags": tags}
        self.runs[number].update(points=[], params={}, begun=begun)
        return 200, {"run": {"info": {"run_id": number}}}

    def runs_update(self, given: dict[str, Any]) -> tuple[int, Any]:
        self.runs[given["run_id"]]["status"] = given["status"]
        return 200, {}

    def runs_log_batch(self, given: dict[str, Any]) -> tuple[int, Any]:
        assert 0 < len(given["metrics"]) <= 1000
        points = self.runs[given["run_id"]]["points"]
        deleted = self.runs[given["run_id"]].get("stage") == "deleted"
        if deleted or any(posixpath.normpath(one["key"]) != one["key"] or one["step"] < 0 for one in given["metrics"]):
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid value"}
        for one in given["metrics"]:
            point = (one["key"], one["value"], one["timestamp"], one["step"])
            # As observed with MLflow on PostgreSQL.
            if point not in points:
                points.append(point)
        return 200, {}

    def runs_log_parameter(self, given: dict[str, Any]) -> tuple[int, Any]:
        known = self.runs[given["run_id"]]["params"]
        if known.setdefault(given["key"], given["value"]) != given["value"]:
            return 400, {"error_code": "INVALID_PARAMETER_VALUE"}
        return 200, {}


class TrackedServer:
    """A server, and a folder of lines for it."""

    def __init__(self, folder: Path, port: int = 0, **known: Any) -> None:
        """``known``: what the server has from the beginning, such as the runs of one before."""
        state = {"trouble": [], "experiments": {}, "deleted": set(), "runs": {}, "logins": set(), "asked": []}
        state.update({"files": {}, "permissions": {}, "owners": {}, "database": "", "administrator": False, **known})
        self.handler = type("Own", (Handler,), state)
        self.folder = folder
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler)
        self.address = self.server.server_address
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        self.environment = {
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.address[1]}",
            "MLFLOW_TRACKING_USERNAME": "alice",
            "MLFLOW_TRACKING_PASSWORD": "secret",
            "MLFLOW_EXPERIMENT_NAME": "alice",
            "MLFLOW_RUN_CONTEXT": json.dumps({"mlflow.runName": "nano", "gpumesh.job": "17"}),
        }

    def write(self, *lines: dict[str, Any], end: str = "\n") -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "points.jsonl").open("a", encoding="ascii") as stream:
            stream.write("\n".join(map(json.dumps, lines)) + end)

    def send(self) -> None:
        gpumesh_track.Sender(str(self.folder), self.environment).send()

    @property
    def run(self) -> dict[str, Any]:
        runs = list(self.handler.runs.values())
        assert len(runs) == 1
        return dict(runs[0])

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(name="track")
def _track(tmp_path: Path) -> Iterator[TrackedServer]:
    track = TrackedServer(tmp_path / "track")
    yield track
    track.close()


def point_line(first: int, last: int) -> dict[str, Any]:
    return {"points": [["loss", 1.0 / step, 1000 + step, step] for step in range(first, last)]}


def logged_steps(run: dict[str, Any]) -> list[int]:
    return [point[3] for point in run["points"]]


def test_run_has_name_tags_points_and_parameters(track: TrackedServer) -> None:
    track.write({"status": "RUNNING", "at": 1}, {"params": [["lr", "0.1"]]}, point_line(1, 4))
    track.write({"params": [["lr", "0.2"]]}, {"status": "FINISHED", "at": 9})
    track.send()
    run = track.run
    assert (run["name"], run["tags"]["gpumesh.job"], run["status"]) == ("nano", "17", "FINISHED")
    assert run["begun"] == 1, "when the program began, and not when the server answered"
    assert (logged_steps(run), run["params"]) == ([1, 2, 3], {"lr": "0.1"})
    assert track.handler.logins == {"alice:secret"}


@pytest.mark.parametrize("place", range(11))
@pytest.mark.parametrize("what", ["refuse", "lose"])
def test_nothing_is_lost_or_duplicated_when_a_request_fails(track: TrackedServer, what: str, place: int) -> None:
    track.write({"status": "RUNNING", "at": 1}, {"params": [["lr", "0.1"]]}, point_line(1, 1500))
    track.write({"artifact": "report.html", "copy": "artifact-1"})
    (track.folder / "artifact-1").write_bytes(b"a report")
    track.handler.trouble[:] = [""] * place + [what]
    failures = 0
    for _try in range(3):
        try:
            track.send()
        except gpumesh_track.UnreachableError:
            failures += 1
    assert failures == 1
    assert logged_steps(track.run) == list(range(1, 1500))
    assert track.handler.files == {"1/run0/artifacts/report.html": b"a report"}
    assert not (track.folder / "artifact-1").exists()
    asked = len(track.handler.asked)
    track.send()
    assert track.handler.asked[asked:] == ["experiments/get-by-name"], "what has arrived is not sent again"


def test_incomplete_line_is_deferred_and_torn_line_is_skipped(track: TrackedServer) -> None:
    track.write(point_line(1, 2))
    track.write({"points": [["loss"]]}, end="")
    track.send()
    assert logged_steps(track.run) == [1]
    with (track.folder / "points.jsonl").open("a", encoding="ascii") as stream:
        stream.write('{"points": [["lo\n')
    track.folder.joinpath("points.jsonl").write_text(
        track.folder.joinpath("points.jsonl").read_text(encoding="ascii").replace('{"points": [["loss"]]}', ""),
        encoding="ascii",
    )
    track.write(point_line(2, 3))
    (track.folder / "state.json").unlink()
    track.send()
    assert [logged_steps(run) for run in track.handler.runs.values()][-1] == [1, 2]


def test_only_one_sender_runs_at_a_time(track: TrackedServer) -> None:
    track.write(point_line(1, 2))
    sender = gpumesh_track.Sender(str(track.folder), track.environment)
    holding = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print(flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", holding, str(track.folder / "lock")]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(gpumesh_track.UnreachableError, match="another process"):
            sender.send()
        holder.communicate(b"")
    sender.send()
    assert logged_steps(track.run) == [1]


def test_refused_points_do_not_delay_other_points(track: TrackedServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as those of an earlier version, or with a step that the database cannot store."""
    track.write(point_line(1, 700), {"points": [["eval//acc", 0.5, 1, 1], ["loss", 0.5, 1, -1]]}, point_line(700, 1800))
    track.write({"points": [["eval//acc", 0.5, 1, 2]]}, {"status": "FINISHED", "at": 9})
    track.send()
    assert logged_steps(track.run) == list(range(1, 1800)) and track.run["status"] == "FINISHED"
    said = capsys.readouterr().err.splitlines()
    assert ["eval//acc" in line for line in said] == [True, False] and "Such points of loss" in said[1]
    assert len(track.handler.asked) < 60


def restore_server(track: TrackedServer, backup: dict[str, Any]) -> None:
    """The server has the runs of a backup, and another database with them."""
    track.handler.runs = copy.deepcopy(backup)
    track.handler.database = f"{track.handler.database}-restored"


@pytest.mark.parametrize("administrator", [False, True])
def test_missing_run_is_sent_again_without_database_tag(track: TrackedServer, administrator: bool) -> None:
    track.handler.administrator = administrator
    track.write(point_line(1, 100))
    track.send()
    track.handler.runs.clear()
    track.write(point_line(100, 200))
    track.send()
    assert logged_steps(track.run) == list(range(1, 200))


def test_user_without_permission_creates_no_second_run(track: TrackedServer) -> None:
    track.write(point_line(1, 100))
    track.send()
    track.handler.runs_log_batch = lambda *_given: (403, {})
    track.write(point_line(100, 200))
    with pytest.raises(gpumesh_track.ServerError, match="403"):
        track.send()
    assert logged_steps(track.run) == list(range(1, 100))


@pytest.mark.parametrize("idle", [False, True])
def test_missing_run_is_sent_again_to_restored_server(track: TrackedServer, idle: bool) -> None:
    """Also one that has nothing new to report; and in this attempt, as in each later one."""
    track.handler.database = "first"
    track.write({"status": "RUNNING", "at": 1}, {"params": [["lr", "0.1"]]}, point_line(1, 1500))
    sender = gpumesh_track.Sender(str(track.folder), track.environment)
    sender.send()
    restore_server(track, {})
    track.write(*([] if idle else [point_line(1500, 1600)]))
    if idle:
        # Its user sends what is missing with a job that has another name and experiment.
        other = {"MLFLOW_EXPERIMENT_NAME": "team", "MLFLOW_RUN_CONTEXT": json.dumps({"mlflow.runName": "python3"})}
        gpumesh_track.Sender(str(track.folder), {**track.environment, **other}).send()
        assert list(track.handler.experiments) == ["alice"]
    else:
        sender.send()
    run = track.run
    assert logged_steps(run) == list(range(1, 1500 if idle else 1600))
    assert (run["status"], run["params"], run["name"]) == ("RUNNING", {"lr": "0.1"}, "nano")
    track.write({"artifact": "report.html", "copy": "artifact-1"})
    (track.folder / "artifact-1").write_bytes(b"a report")
    track.send()
    assert list(track.handler.files) == [f"1/{run['id']}/artifacts/report.html"], "in the new run"


@pytest.mark.parametrize("noticed", ["start", "outage", "time", "end"])
def test_points_between_backup_and_restore_are_sent_again(
    track: TrackedServer, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    track.handler.database = "first"
    sender = gpumesh_track.Sender(str(track.folder), track.environment)
    track.write(point_line(1, 100))
    sender.send()
    backup = copy.deepcopy(track.handler.runs)
    track.write(point_line(100, 200))
    sender.send()
    restore_server(track, backup)
    track.write(point_line(200, 300))
    if noticed == "outage":
        track.handler.trouble[:] = ["refuse"]
        with pytest.raises(gpumesh_track.UnreachableError):
            sender.send()
    elif noticed == "start":
        sender = gpumesh_track.Sender(str(track.folder), track.environment)
    else:
        sender.send()
        assert logged_steps(track.run) == [*range(1, 100), *range(200, 300)], "it was not asked again yet"
        if noticed == "end":
            sender.database_known = False
        else:
            monkeypatch.setattr(gpumesh_track, "_DATABASE_CHECK_INTERVAL", 0.0)
    sender.send()
    assert sorted(logged_steps(track.run)) == list(range(1, 300))
    asked = len(track.handler.asked)
    track.send()
    assert track.handler.asked[asked:] == ["experiments/get-by-name"]


@pytest.mark.parametrize("what", ["unknown", "denied", "no tag"])
def test_server_without_database_tag_is_assumed_unchanged(track: TrackedServer, what: str) -> None:
    track.handler.database = "first"
    track.write(point_line(1, 3))
    track.send()
    if what == "no tag":
        track.handler.database = ""
    else:
        status = 404 if what == "unknown" else 403
        track.handler.experiments_get_by_name = lambda *_given: (status, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
    track.write(point_line(3, 5))
    asked = len(track.handler.asked)
    track.send()
    assert track.handler.asked[asked:] == ["experiments/get-by-name", "runs/log-batch"]
    assert logged_steps(track.run) == [1, 2, 3, 4]


def test_points_of_deleted_run_are_deferred(track: TrackedServer) -> None:
    """MLflow can restore it."""
    track.write(point_line(1, 3))
    track.send()
    (run,) = track.handler.runs.values()
    run["stage"] = "deleted"
    track.write(point_line(3, 20))
    sender = gpumesh_track.Sender(str(track.folder), track.environment)
    with pytest.raises(gpumesh_track.ServerError, match="Invalid value"):
        sender.send()
    run["stage"] = "active"
    sender.send()
    assert logged_steps(track.run) == list(range(1, 20))


@pytest.mark.parametrize("trouble", ["", "lose", "meanwhile"])
def test_deleted_experiment_is_restored_for_next_run(track: TrackedServer, trouble: str) -> None:
    track.handler.experiments["alice"] = "7"
    track.handler.deleted.add("7")
    track.write(point_line(1, 3))
    if trouble == "lose":
        # The answer to the request to restore it.
        track.handler.trouble[:] = ["", "", "lose"]
        with pytest.raises(gpumesh_track.UnreachableError):
            track.send()
    if trouble == "meanwhile":
        track.handler.experiments_restore = lambda own, given: (
            own.deleted.clear() or (404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
        )
    track.send()
    assert logged_steps(track.run) == [1, 2] and not track.handler.deleted


@pytest.mark.parametrize(
    ("name", "permission", "owner", "said"),
    [
        # Somebody has made an experiment with the user's name, and let the user add runs.
        ("alice", "EDIT", "mallory", "the experiment alice belongs to mallory, and alice may not manage it"),
        ("alice", "READ", "", "the experiment alice belongs to another user, and alice may not manage it"),
        (
            "team",
            "READ",
            "bob",
            "the experiment team belongs to bob, and alice may not manage it. Set MLFLOW_EXPERIMENT",
        ),
    ],
)
def test_no_run_is_added_to_experiment_of_another_user(
    track: TrackedServer, name: str, permission: str, owner: str, said: str
) -> None:
    track.environment["MLFLOW_EXPERIMENT_NAME"] = name
    track.handler.experiments[name] = "7"
    track.handler.permissions["7"] = permission
    track.handler.owners.update({"7": owner} if owner else {})
    track.write({"points": [["loss", 0.5, 1, 1]]})
    with pytest.raises(gpumesh_track.ServerError, match=said):
        track.send()
    assert not track.handler.runs
    # An administrator may manage everything.
    track.handler.permissions["administrator"] = "alice"
    track.send()
    assert track.run["points"]


def test_owner_of_shared_experiment_is_reported(track: TrackedServer, capsys: pytest.CaptureFixture[str]) -> None:
    track.environment["MLFLOW_EXPERIMENT_NAME"] = "team"
    track.handler.experiments["team"] = "7"
    track.handler.permissions["7"], track.handler.owners["7"] = "EDIT", "bob"
    track.write({"points": [["loss", 0.5, 1, 1]]})
    track.send()
    assert track.run["points"]
    assert "the experiment team belongs to bob, and alice may not manage it, only add runs" in capsys.readouterr().err


def test_experiment_has_owner_tag(track: TrackedServer) -> None:
    track.write({"points": [["loss", 0.5, 1, 1]]})
    track.send()
    assert track.handler.owners == {"1": "alice"}


def test_server_without_permissions_accepts_runs(track: TrackedServer) -> None:
    track.handler.experiments["alice"] = "7"
    track.handler.users_permissions_get = lambda *_given: (404, {})
    track.write({"points": [["loss", 0.5, 1, 1]]})
    track.send()
    assert track.run["points"]


def test_deleted_experiment_without_permission_is_reported(track: TrackedServer) -> None:
    track.handler.experiments["alice"] = "7"
    track.handler.deleted.add("7")
    track.write(point_line(1, 3))
    track.handler.experiments_restore = lambda *_given: (403, {"message": "Permission denied"})
    with pytest.raises(gpumesh_track.ServerError, match="the experiment alice was deleted; an administrator"):
        track.send()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("loss", "loss"),
        ("eval/top-5: a.b", "eval/top-5: a.b"),
        ("eval//acc", "eval/acc"),
        ("loss/", "loss"),
        ("/loss", "loss"),
        ("//a/./b/../c", "a/b/c"),
        ("..a", "__a"),
        (".a/..b", ".a/..b"),
        ("../", "_"),
        ("", "_"),
        ("x" * 249 + "/y", "x" * 249),
        ("é?", "__"),
    ],
)
def test_names_are_valid_in_mlflow(given: str, name: str) -> None:
    found = gpumesh_track._mlflow_name(given)
    norm = posixpath.normpath(found)
    # The rule of MLflow.
    assert found == name and not (norm != found or norm == "." or norm.startswith(("..", "/")))


def test_line_torn_by_full_volume_affects_no_other_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    writer = gpumesh_track._Writer(str(tmp_path))
    path = tmp_path / "points.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Like a full volume, it accepts a part of what is written, and then nothing.
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 12, before[1]))
        for _step in (1, 2):
            with pytest.raises(OSError, match="File too large"):
                writer.write(point_line(1, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.write(point_line(2, 3))
    writer.write(point_line(3, 4))
    writer._points_stream.close()
    found = [gpumesh_track._parse_line(line) for line in path.read_bytes().splitlines()]
    assert found[0]["status"] == "RUNNING" and found[-2:] == [point_line(2, 3), point_line(3, 4)]
    assert all(line == {} for line in found[1:-2])


def test_permanently_refused_lines_are_reported_and_kept(track: TrackedServer) -> None:
    track.write(point_line(1, 2))
    denied = 403, {"message": "Permission denied"}
    track.handler.experiments_get_by_name = lambda *_given: denied
    sender = gpumesh_track.Sender(str(track.folder), track.environment)
    with pytest.raises(gpumesh_track.ServerError, match="403 .*Permission denied .see ~/.mlflow/credentials"):
        sender.send()
    assert sender.has_unsent()


def test_credentials_are_read_from_mlflow_sources(tmp_path: Path) -> None:
    assert gpumesh_track.credentials({"HOME": str(tmp_path)}) == ""
    (tmp_path / ".mlflow").mkdir()
    text = "[mlflow]\nmlflow_tracking_username = bob\nmlflow_tracking_password = a%b:c\n"
    (tmp_path / ".mlflow" / "credentials").write_text(text, encoding="utf-8")
    assert gpumesh_track.credentials({"HOME": str(tmp_path)}) == "bob:a%b:c"


PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import gpumesh_track
gpumesh_track._PERIOD = gpumesh_track._LONGEST_PAUSE = 0.1
for step in range(200):
    time.sleep(0.01)
    gpumesh_track.log(step, loss=float("nan") if step == 7 else 1.0, **{"a b/c?": 2})
print("all steps", flush=True)
"""
SOURCE = Path(gpumesh_track.__file__).parent


def training_program(track: TrackedServer, more: str = "", **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **track.environment, "GPUMESH_RUN_DIR": str(track.folder.parent), **variables}
    argv = [sys.executable, "-c", PROGRAM + more, str(SOURCE)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(argv, env=environment, text=True, **pipes)


def test_program_survives_server_outage(track: TrackedServer) -> None:
    # It ends when the server is back, since what it tries last is not repeated.
    with training_program(track, "sys.stdin.readline()\n") as process:
        while not track.handler.runs or not track.run["points"]:
            assert process.poll() is None
            time.sleep(0.02)
        track.close()
        # It accepts connections and never answers: a program that waited for it would wait in each of its steps.
        with socket.create_server(track.address):
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 120)[0] and process.stdout.readline() == "all steps\n"
        kept = {"runs": track.handler.runs, "experiments": track.handler.experiments}
        again = TrackedServer(track.folder, track.address[1], **kept)
        said, complaints = process.communicate(timeout=240)
    again.close()
    assert (process.returncode, said, complaints) == (0, "", "")
    assert sorted(logged_steps(again.run)) == sorted([*range(200), *range(200)])
    assert {point[0] for point in again.run["points"]} == {"loss", "a b/c_"}
    assert again.run["status"] == "FINISHED"


def test_failed_program_is_reported_by_rank_0_only(track: TrackedServer) -> None:
    with training_program(track, "raise SystemError") as process:
        process.communicate(timeout=240)
    assert track.run["status"] == "FAILED"
    asked = len(track.handler.asked)
    with training_program(track, RANK="1") as process:
        process.communicate(timeout=240)
    assert len(track.handler.asked) == asked


def test_artifact_is_sent_as_recorded_and_missing_file_is_skipped(track: TrackedServer, tmp_path: Path) -> None:
    """The server is down when the file is recorded, and metrics continue after one that it refuses."""
    report = tmp_path / "a report.html"
    more = (
        f"report = {str(report)!r}\n"
        "open(report, 'w').write('first')\n"
        "gpumesh_track._LAST = 0.3\n"
        "gpumesh_track.artifact(report)\n"
        "gpumesh_track.artifact(report, '../../plots/refused')\n"
        "gpumesh_track.artifact(report + '.gone')\n"
        "open(report, 'w').write('second')\n"
        "gpumesh_track.artifact(report, 'plots/x.html')\n"
        "gpumesh_track.artifact(report, './/.hydra/config.yaml')\n"
        "gpumesh_track.log(1000, loss=0)\n"
    )
    track.environment, kept = {**track.environment, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}, track.environment
    with training_program(track, more) as process:
        _said, complaints = process.communicate(timeout=240)
    assert process.returncode == 0 and "a report.html.gone" in complaints
    gpumesh_track.Sender(str(track.folder), kept).send()
    number = track.run["id"]
    assert track.handler.files == {
        f"1/{number}/artifacts/a report.html": b"first",
        f"1/{number}/artifacts/plots/x.html": b"second",
        f"1/{number}/artifacts/.hydra/config.yaml": b"second",
    }
    assert 1000 in logged_steps(track.run) and track.run["status"] == "FINISHED"
    (stays,) = track.folder.glob("artifact-*")
    assert stays.read_text(encoding="ascii") == "first"


def test_unsent_lines_are_reported_and_sent_by_command(
    track: TrackedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a server, at the end or at all, no program fails."""
    nowhere = {**track.environment, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    track.environment, kept = nowhere, track.environment
    with training_program(track, "gpumesh_track._LAST = 0.3\n") as process:
        _said, complaints = process.communicate(timeout=240)
    assert process.returncode == 0 and f"has not received everything in {track.folder} yet" in complaints
    environment = {**os.environ, **kept}
    argv = [sys.executable, str(SOURCE / "gpumesh_track.py"), str(track.folder)]
    assert subprocess.run(argv, env=environment, check=False, timeout=240).returncode == 0
    # Of several, each is tried.
    several = [*argv[:2], str(track.folder.parent / "none"), str(track.folder)]
    restore_server(track, {})
    again = subprocess.run(several, env=environment, check=False, timeout=240, capture_output=True, text=True)
    assert again.returncode == 1 and f"{track.folder.parent}/none: [Errno 2]" in again.stderr
    assert len(logged_steps(track.run)) == 400 and track.run["status"] == "FINISHED"
    assert gpumesh_track.main([]) == 2 and "usage" in capsys.readouterr().err


def test_run_of_gpumesh_train_has_mlflow_tags() -> None:
    def context(commit: str, **inherited: str) -> Any:
        place = run_environment.RankPosition(["n1", "n2"], "n2", 0, 1)
        found = run_environment.environment(inherited, place, "nano", "/x/nano", 3, {}, "/tmp/l", code_commit=commit)
        return json.loads(found.get("MLFLOW_RUN_CONTEXT", "null"))

    job = json.dumps({"mlflow.runName": "job", "gpumesh.job": "17"})
    assert context("") is None
    assert context("abc", MLFLOW_RUN_CONTEXT=job) == {
        "mlflow.runName": "nano",
        "gpumesh.job": "17",
        "gpumesh.nodes": "n1,n2",
        "gpumesh.attempt": "3",
        "gpumesh.commit": "abc",
        "mlflow.source.git.commit": "abc",
    }
    assert "gpumesh.commit" not in context("", MLFLOW_RUN_CONTEXT=job)

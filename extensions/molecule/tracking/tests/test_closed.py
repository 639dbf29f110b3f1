# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An attack on the installed MLflow: a user makes an experiment whose artifacts are a directory of their own, and links
from there to what only the server can read and write.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tracking_lab import LAB_NAME, MANAGER, PASSWORDS, SERVICE, TrackingLab, build_opener
from trials import TRIES_PROGRAM, find_denied

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import confine, limits, settings

MALLORY = "mallory"
PASSWORD = PASSWORDS[MALLORY]
#: Directories that users can write to, as a volume would be.
VISIBLE = "/mnt/visible"
LOCATION = f"file://{VISIBLE}/mallory"
CONTAINER = f"gpumesh-{LAB_NAME}-plain"


class Client(NamedTuple):
    """A user of a server."""

    uri: str
    user: str = MALLORY
    password: str = PASSWORD
    trust: str = ""

    def ask(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, bytes]:
        """The status and the content of the response. A body of bytes is sent as it is."""
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.uri}/{path}", data, headers, method=method)
        try:
            with build_opener(self.trust).open(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    def call(self, path: str, body: Any = None) -> dict[str, Any]:
        status, said = self.ask(f"api/2.0/mlflow/{path}", body)
        assert status == 200, said
        return dict(json.loads(said))


def artifact_read(client: Client, run: str, path: str) -> tuple[int, bytes]:
    return client.ask(f"get-artifact?run_uuid={run}&path={path}")


def artifact_written(client: Client, run: str, path: str) -> tuple[int, bytes]:
    return client.ask(f"ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path={path}", b"planted", "POST")


# --- The server of the lab


@pytest.fixture(name="mallory", scope="module")
def _mallory(lab: TrackingLab) -> Client:
    lab.query("mlflow/users/create", {"username": MALLORY, "password": PASSWORD})
    return Client(lab.server_uri, trust=lab.trusted_certificates)


def text(lab: TrackingLab, path: str) -> str:
    return lab.read(MANAGER, path).decode()


@pytest.mark.parametrize(
    "location",
    [
        LOCATION,
        f"{VISIBLE}/mallory",
        "s3://bucket/x",
        "http://10.79.92.1/x",
        "mlflow-artifacts://10.79.92.1:80/x",
        "mlflow-artifacts:/../x",
        # Inside the experiment of somebody else.
        "mlflow-artifacts:/1/x",
    ],
)
@pytest.mark.parametrize("field", ["artifact_location", "artifactLocation"])
def test_an_experiment_has_its_artifacts_on_the_server(mallory: Client, location: str, field: str) -> None:
    body = {"name": f"{field} {location}".replace("/", "|"), field: location}
    # MLflow accepts JSON as a text in JSON.
    for sent in (body, json.dumps(body)):
        status, said = mallory.ask("api/2.0/mlflow/experiments/create", sent)
        assert status == 400 and b"is not among the artifacts of this server" in said, said


def test_neither_models_nor_traces_have_theirs_elsewhere(mallory: Client) -> None:
    mallory.call("registered-models/create", {"name": "of-mallory"})
    experiment = mallory.call("experiments/create", {"name": "traces of mallory"})["experiment_id"]
    where = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    trace = {"trace_id": "tr-1", "trace_location": where, "request_time": "2026-11-26T00:00:00Z", "state": "OK"}
    tagged = {**trace, "tags": {"mlflow.artifactLocation": LOCATION}}
    created = "api/2.0/mlflow/model-versions/create"
    tag = {"key": "mlflow.artifactLocation", "value": LOCATION}
    assert mallory.ask("api/3.0/mlflow/traces", {"trace": {"trace_info": trace}})[0] == 200
    for path, body, method in (
        (created, {"name": "of-mallory", "source": LOCATION}, "POST"),
        (created, {"name": "of-mallory", "source": "s3://bucket/x"}, "POST"),
        (created, {"name": "of-mallory", "source": "mlflow-artifacts://10.79.92.1:80/x"}, "POST"),
        ("api/3.0/mlflow/traces", {"trace": {"trace_info": {**tagged, "trace_id": "tr-2"}}}, "POST"),
        ("api/2.0/mlflow/traces/tr-1/tags", tag, "PATCH"),
        ("api/3.0/mlflow/traces/tr-1/tags", tag, "PATCH"),
    ):
        status, said = mallory.ask(path, body, method)
        assert status == 400 and b"is not among the artifacts of this server" in said, (path, body, said)


def test_a_location_that_is_in_the_database_already_is_not_served(lab: TrackingLab, mallory: Client) -> None:
    experiment = mallory.call("experiments/create", {"name": "before"})["experiment_id"]
    run = mallory.call("runs/create", {"experiment_id": experiment})["run"]["info"]["run_id"]
    assert artifact_written(mallory, run, "own.txt")[0] == 200
    assert artifact_read(mallory, run, "own.txt") == (200, b"planted")
    ours, own = (403, b"is not among the artifacts of this server"), (400, b"does not connect to artifact location")
    given = {f"{LOCATION}/{run}/artifacts": ours, f"{VISIBLE}/mallory": ours, "s3://bucket/x": ours}
    # MLflow refuses the last one by itself.
    for location, (code, message) in {**given, "ftp://10.79.92.1/x": own}.items():
        change = f"UPDATE runs SET artifact_uri = '{location}' WHERE run_uuid = '{run}'"
        lab.query_database(MANAGER, change, "gpumesh_tracking")
        listed = mallory.ask(f"api/2.0/mlflow/artifacts/list?run_id={run}")
        for status, said in (artifact_read(mallory, run, "x"), artifact_written(mallory, run, "x"), listed):
            assert status == code and message in said, said


def test_no_experiment_has_the_name_of_another_user(lab: TrackingLab, mallory: Client) -> None:
    lab.query("mlflow/users/create", {"username": "carol", "password": "password-of-carol"})
    own = mallory.call("experiments/create", {"name": "to be renamed"})["experiment_id"]
    owner = [{"key": "gpumesh.owner", "value": "alice"}]
    for path, body in (
        ("experiments/create", {"name": "carol"}),
        ("experiments/update", {"experiment_id": own, "new_name": "carol"}),
        ("experiments/update", {"experimentId": own, "newName": "carol"}),
        ("experiments/create", {"name": "anything", "tags": owner}),
        ("experiments/set-experiment-tag", {"experiment_id": own, **owner[0]}),
    ):
        status, said = mallory.ask(f"api/2.0/mlflow/{path}", body)
        assert status == 403 and b"can have an experiment of that name or owner" in said, (path, said)
    assert Client(lab.server_uri, "carol", "password-of-carol", lab.trusted_certificates).call(
        "experiments/create", {"name": "carol"}
    )


def test_who_is_no_user_has_no_large_body(lab: TrackingLab, mallory: Client) -> None:
    body = bytes(limits.MAX_ANONYMOUS_BYTES + 1)
    stranger = mallory._replace(password="not-that-of-mallory")
    assert stranger.ask("api/2.0/mlflow/runs/log-batch", body)[0] == 401
    assert mallory.ask("api/2.0/mlflow/runs/log-batch", body)[0] == 400
    score = "for one in $(pgrep -u gpumesh_tracking); do cat /proc/$one/oom_score_adj; done"
    assert set(lab.run(MANAGER, "sh", "-c", score).split()) == {"1000"}


def test_no_password_that_the_server_can_read_is_valid(lab: TrackingLab) -> None:
    read = dict(line.split(" = ", 1) for line in text(lab, settings.AUTHENTICATION).splitlines() if " = " in line)
    path = "api/2.0/mlflow/experiments/get?experiment_id=0"
    assert (
        Client(lab.server_uri, "gpumesh", text(lab, settings.CHECKER_PASSWORD), lab.trusted_certificates).ask(path)[0]
        == 200
    )
    assert (
        Client(lab.server_uri, read["admin_username"], read["admin_password"], lab.trusted_certificates).ask(path)[0]
        == 401
    )
    owner = lab.run(MANAGER, "stat", "--format=%a %U", settings.CHECKER_PASSWORD).split()
    assert owner == ["600", "root"]


def test_the_running_server_has_no_core_dumps_and_no_privileges(lab: TrackingLab) -> None:
    number = lab.run(MANAGER, "systemctl", "show", "--property=MainPID", "--value", SERVICE).strip()
    status = dict(line.split(":", 1) for line in text(lab, f"/proc/{number}/status").splitlines())
    assert status["NoNewPrivs"].strip() == "1" and int(status["CapBnd"], 16) == 0
    (limit,) = (line for line in text(lab, f"/proc/{number}/limits").splitlines() if "core file" in line)
    assert limit.split()[4:6] == ["0", "0"]
    assert lab.run(MANAGER, "readlink", f"/proc/{number}/cwd").strip() == settings.LIBRARY
    assert "PYTHONSAFEPATH=1" in text(lab, f"/proc/{number}/environ").split("\0")


# --- A rented container: the capabilities and the filter of system calls that Docker gives by default


def docker(*argv: str, **options: Any) -> str:
    return subprocess.run(["docker", *argv], check=True, capture_output=True, text=True, **options).stdout


class Plain:
    """Two MLflow servers without gpumesh's authorization function: one is started as the product does it, the other as
    before, without its launcher. Only the database is another one, and one process serves instead of several.
    """

    def __init__(self) -> None:
        self.server = settings.TrackingServer("lab", "plain", "0.0.0.0", 5000, False, "/srv", 875)

    def run(self, *argv: str, user: str = "root", stdin: str = "") -> str:
        return docker("exec", "--interactive", "--user", user, CONTAINER, *argv, input=stdin)

    def write(self, path: str, text: str, owner: str = "gpumesh_tracking", mode: str = "600") -> None:
        self.run("install", "-D", "-o", owner, "-m", mode, "/dev/stdin", path, stdin=text)

    def make(self, library: Path) -> None:
        image = docker("inspect", "--format={{.Image}}", f"gpumesh-{LAB_NAME}-{MANAGER}").strip()
        mount = f"--volume={library}:{settings.LIBRARY}"
        docker("run", "--detach", "--name", CONTAINER, "--entrypoint", "", mount, image, "sleep", "infinity")
        self.run("useradd", "--system", "--uid=875", "--no-create-home", "gpumesh_tracking")
        self.run("useradd", "--uid=2002", MALLORY)
        for path, owner, mode in (
            (self.server.volume_directory, "gpumesh_tracking", "700"),
            (self.server.artifact_directory, "gpumesh_tracking", "700"),
            (settings.SCRATCH, "gpumesh_tracking", "700"),
            (f"{settings.HOME}/before", "gpumesh_tracking", "700"),
            (f"{VISIBLE}/mallory", MALLORY, "755"),
        ):
            self.run("install", "-d", "-o", owner, "-m", mode, path)
        self.write(settings.SECRET, "secret-of-the-server")
        self.write(settings.PASSPHRASE, "passphrase-of-the-gateway")

    def start(self, confined: bool) -> str:
        """Start a server. Returns its address for this machine."""
        environment = self.run("sh", "-c", f"dirname {settings.LIBRARY}/*/gpumesh.json").strip()
        folder = settings.SCRATCH if confined else f"{settings.HOME}/before"
        port = 5000 if confined else 5001
        own = self.server._replace(port=port)
        database, ours = settings.database_url(5432), f"sqlite:///{folder}/mlflow.db"
        authentication = f"{settings.FOLDER}/auth-{port}.ini"
        text = settings.format_authentication(5432, "password-of-the-admin").replace(database, ours)
        text = text.replace(
            f"{settings.AUTHORIZATION_MODULE}:authenticate", "mlflow.server.auth:authenticate_request_basic_auth"
        )
        self.write(authentication, text)
        program = settings.format_program(own, environment, 5432).replace(database, ours)
        program = program.replace(settings.AUTHENTICATION, authentication).replace("$workers", "1")
        if not confined:
            before, _dashes, command = program.rpartition(" -- ")
            program = f"{before.rpartition('exec ')[0]}exec {command}"
        self.write(f"/opt/serve-{port}", program, "root", "755")
        script = f"/opt/serve-{port} > {folder}/log 2>&1"
        docker("exec", "--detach", "--user", "gpumesh_tracking", CONTAINER, "sh", "-c", script)
        address = docker("inspect", "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", CONTAINER)
        return f"http://{address.strip()}:{port}"

    def log(self) -> str:
        return self.run("sh", "-c", f"tail -n 50 {settings.SCRATCH}/log {settings.HOME}/before/log")


@pytest.fixture(name="plain", scope="module")
def _plain(lab: TrackingLab, library: Path) -> Iterator[tuple[Plain, dict[bool, Client]]]:
    subprocess.run(["docker", "rm", "--force", CONTAINER], check=False, capture_output=True)
    plain = Plain()
    try:
        plain.make(library)
        uris = {confined: plain.start(confined) for confined in (True, False)}
        for uri in uris.values():
            admin = Client(uri, "gpumesh", "password-of-the-admin")
            try:
                lab.wait_until(f"{uri} answers", lambda admin=admin: answers(admin), 600)
            except AssertionError:
                print(plain.log())
                raise
            admin.call("users/create", {"username": MALLORY, "password": PASSWORD})
        yield plain, {confined: Client(uri) for confined, uri in uris.items()}
    finally:
        subprocess.run(["docker", "rm", "--force", CONTAINER], check=False, capture_output=True)


def answers(client: Client) -> bool:
    try:
        return client.ask("api/2.0/mlflow/experiments/get?experiment_id=0")[0] == 200
    except OSError:
        return False


def linked(plain: Plain, client: Client, target: str) -> str:
    """A run whose artifacts are, for the server, a directory of the attacker's choice."""
    name = f"{client.uri} {target}".replace("/", "|")
    experiment = client.call("experiments/create", {"name": name, "artifact_location": LOCATION})["experiment_id"]
    run = str(client.call("runs/create", {"experiment_id": experiment})["run"]["info"]["run_id"])
    line = f"mkdir -p {VISIBLE}/mallory/{run} && ln -s {shlex.quote(target)} {VISIBLE}/mallory/{run}/artifacts"
    plain.run("sh", "-c", line, user=MALLORY)
    return run


@pytest.mark.parametrize("confined", [False, True])
def test_a_link_leads_the_server_nowhere(plain: tuple[Plain, dict[bool, Client]], confined: bool) -> None:
    """The one that is not confined shows that the attack works: it reads its secrets and writes where it was started."""
    container, clients = plain
    client = clients[confined]
    etc, home = (linked(container, client, target) for target in (settings.FOLDER, settings.HOME))
    read = artifact_read(client, etc, "secret")
    artifact_written(client, home, "before/uvicorn.py")
    planted = container.run("sh", "-c", f"ls {settings.HOME}/before/uvicorn.py || true").strip()
    if not confined:
        assert read == (200, b"secret-of-the-server") and planted
        container.run("rm", planted)
        return
    assert read[0] >= 400 and b"secret-of" not in read[1] and not planted
    system = linked(container, client, "/proc/self")
    assert artifact_read(client, system, "environ")[0] >= 400
    # Its own artifacts are served.
    experiment = client.call("experiments/create", {"name": "own"})["experiment_id"]
    run = client.call("runs/create", {"experiment_id": experiment})["run"]["info"]["run_id"]
    assert artifact_written(client, run, "own.txt")[0] == 200
    assert artifact_read(client, run, "own.txt") == (200, b"planted")


#: What a program that has taken over the server would try.
TRIALS = f"""
import os, socket, subprocess, tempfile
{TRIES_PROGRAM}
tries("secret", lambda: open("{settings.SECRET}").read())
tries("volume", lambda: os.listdir("{VISIBLE}"))
tries("mounts", lambda: open("/proc/self/mounts").read())
tries("home", lambda: open("{settings.HOME}/x", "w"))
tries("library", lambda: open("{settings.LIBRARY}/x", "w"))
tries("temporary", lambda: open("/tmp/x", "w"))
tries("shell", lambda: subprocess.run(["/bin/sh", "-c", "true"]))
tries("connect", lambda: socket.create_connection(("127.0.0.1", 5000), 5))
tries("listen", lambda: socket.create_server(("127.0.0.1", 5099)))
tries("artifacts", lambda: open("/srv/mlflow-lab/artifacts/x", "w"))
tries("scratch", lambda: tempfile.TemporaryFile())
tries("import", lambda: __import__("mlflow"))
"""


def test_a_program_in_its_place_reaches_only_the_artifacts(plain: tuple[Plain, dict[bool, Client]]) -> None:
    container, _clients = plain
    program = container.run("cat", "/opt/serve-5000")
    before, _dashes, _command = program.rpartition(" -- ")
    python = container.run("sh", "-c", f"ls {settings.LIBRARY}/*/bin/python").strip()
    container.write("/opt/trials", f"{before} -- {python} -c {shlex.quote(TRIALS)}\n", "root", "755")
    said = dict(line.split() for line in container.run("/opt/trials", user="gpumesh_tracking").splitlines())
    # Linux 6.7 and later restrict ports as well. The container has the kernel of this machine.
    ports = {"connect", "listen"} if confine.landlock_version() < 4 else set()
    assert set(said) - find_denied(said) == {"artifacts", "scratch", "import", *ports}, said

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server after the guide's runs: access control, the environment of jobs, an outage, and what changes it, as the guide
says: TLS, an upgrade, a backup, off and on, a move. Each run of a playbook shows several of these at once.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from desk import GUIDES_DIRECTORY, GuideRunner
from tracking_lab import (
    ADDRESS_BY_MACHINE,
    BARE_HOST,
    GUIDE_NAME,
    GUIDE_STEPS,
    MACHINES,
    MANAGER,
    PASSWORDS,
    SERVICE,
    SHARED_VOLUME,
    START_COMMAND,
    TRACKING_COMMAND,
    StartRuns,
    TrackingLab,
    create_certificate,
    run_tags,
)
from train_programs import SCENARIO

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import settings
from ansible_collections.gpumesh.cluster.tests.publication.guides import console_lines
from ansible_collections.gpumesh.cluster.tests.support.certificates import age_certificate

#: The run whose server is away and gets another certificate: its name, its steps, the seconds of one until it is hurried,
#: and those that it makes while the server is away.
LASTING, LASTING_STEPS, SECONDS, AWAY = "lasting", 1000, 1, 12
#: Commands of the guide that are not typed here, and why.
ELSEWHERE = {
    # These machines have no GPU, and no non-free packages. The unit tests cover the command line of nsys.
    "gpumesh-train --name nano-nsys --nodes 3 --gpus-per-node 8 --profile nsys -- python3 train.py --steps 20000",
}
OLD = "3.16.1"
#: Creates the database with a previous version of MLflow, on top of the packages of the current one.
OLDER = """
set -e
environment=$(ls -d /usr/local/lib/gpumesh/mlflow/*/)
$environment/bin/python -m pip install -q --no-deps --no-compile --target /root/older mlflow==$1 mlflow-skinny==$1 mlflow-tracing==$1
chmod -R go+rX /root/older && mv /root/older /opt/older
runuser -u postgres -- psql -q -c 'DROP DATABASE gpumesh_tracking WITH (FORCE)' \
    -c 'CREATE DATABASE gpumesh_tracking OWNER gpumesh_tracking'
cd / && PYTHONPATH=/opt/older runuser -u gpumesh_tracking -- env HOME=/var/lib/gpumesh/tracking \
    $environment/bin/python -c "
import mlflow
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore
assert mlflow.__version__ == '$1', mlflow.__version__
url = 'postgresql+psycopg://gpumesh_tracking@/gpumesh_tracking?host=/run/postgresql'
users = SqlAlchemyStore()
users.init_db(url)
users.create_user('admin', 'an-administrator-of-mlflow', is_admin=True)
mlflow.set_tracking_uri(url)
mlflow.set_experiment('older')
with mlflow.start_run(run_name='old'):
    mlflow.log_metric('loss', 0.5, step=7)
"
"""
#: What a job finds out about the server: its answer, verified with the certificates that the job trusts.
VERIFY = """
import os, ssl, urllib.request as u
trust = os.environ.get('MLFLOW_TRACKING_SERVER_CERT_PATH')
print(u.urlopen(os.environ['MLFLOW_TRACKING_URI'] + '/health',
                context=ssl.create_default_context(cafile=trust) if trust else None).url)"""
LOOK = f'python3 -c "{VERIFY}" '
#: Runs a Python program with the variables of the training that runs on this host.
AS_TRAINING = (
    """xargs -0 sh -c 'exec env -i "$@" python3 -c "$0"' "$0" """
    "< /proc/$(pgrep --oldest --full '^[^ ]*python3 trainer.py')/environ"
)

#: A run that begins after the backup.
LATE = (
    "export GPUMESH_RUN_DIR=/mnt/shared/alice/runs/late PYTHONPATH=/usr/local/lib/gpumesh/python; "
    "srun --job-name=late python3 -c 'import gpumesh_track; "
    f"[gpumesh_track.log(step, loss=1 / step) for step in range(1, {GUIDE_STEPS + 1})]'"
)


def experiments(lab: TrackingLab) -> dict[str, dict[str, Any]]:
    """The experiments by name."""
    return {one["name"]: one for one in lab.query("mlflow/experiments/search", {"max_results": 99})["experiments"]}


def as_root(desk: GuideRunner, line: str) -> None:
    """Type a line on the machine of the server."""
    desk.type_as_user(MANAGER, "root", "/root", GUIDE_NAME, line)


def test_show_knows_it_and_the_check_writes_a_run(told: StartRuns) -> None:
    (cluster,) = told.show_run.shown_clusters
    layers = {member["machine"]: member["layers"] for member in cluster["members"]}
    assert [machine for machine in layers if "tracking" in layers[machine]] == [MANAGER]
    assert {member["machine"]: member["drift"].get("tracking") for member in cluster["members"]} == dict.fromkeys(
        layers
    )
    verdict = json.loads((told.report_directory / "lan" / "part" / "verdict.json").read_text(encoding="utf-8"))
    found = {(one["id"], one["host"]): one["status"] for one in verdict["checks"] if one["id"].startswith("tracking")}
    assert found == {
        ("tracking.run", MANAGER): "pass",
        ("tracking.certificate", MANAGER): "pass",
        **{("tracking.answer", machine): "pass" for machine in MACHINES if machine != MANAGER},
    }, told.check_run.output


def test_only_users_get_in_and_nobody_else_reads_the_secrets(lab: TrackingLab) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        lab.query("mlflow/experiments/get?experiment_id=0", user="nobody")
    for name in ("auth.ini", "secret"):
        assert lab.run(MANAGER, "stat", "--format=%a %U", f"/etc/gpumesh/tracking/{name}").split() == [
            "600",
            "gpumesh_tracking",
        ]
    listed = lab.run(MANAGER, "ps", "axwwe", "-o", "args")
    assert "an-administrator" not in listed
    addresses = lab.run(MANAGER, "ss", "-Htln", "sport = :5000")
    assert addresses.split()[3] == f"{ADDRESS_BY_MACHINE[MANAGER]}:5000"


def test_nothing_tells_a_secret(lab: TrackingLab, told: StartRuns) -> None:
    assert [run.exit_status for run in told.runs] == [0, 0, 0], told.tracking_run.failure_report
    assert lab.query("mlflow/experiments/get-by-name?experiment_name=eve")
    own = lab.read_secrets()
    assert len(own) >= 3, "no key was made besides the password, so nothing was tried"
    in_environment = {lab.run(MANAGER, "cat", path).strip() for path in (settings.SECRET, settings.PASSPHRASE)}
    secrets = {form for word in (*own, *told.passwords.values()) for form in (word, json.dumps(word)[1:-1])}
    words = "\n".join(run.output for run in told.runs)
    words += "\n".join(path.read_text("latin-1") for path in told.report_directory.rglob("*") if path.is_file())
    logs = "journalctl --no-pager --output=cat; find /var/log /var/lib/gpumesh/clusters -xdev -type f -not -path '*/journal/*'"
    for machine in MACHINES:
        words += lab.run(machine, "sh", "-c", f"({logs} -exec cat {{}} +) 2>/dev/null; true")
    # MLflow has them in its environment.
    assert not [secret for secret in in_environment if secret in words]
    for machine in MACHINES:
        words += lab.read(machine, "/root/seen").decode("latin-1")
        lab.run(machine, "rm", "/root/seen", "/root/enough")
    assert not [secret for secret in secrets if secret in words]
    homes = {f"{settings.FOLDER}/{name}" for name in ("checker", "own.key", "passphrase", "secret")}
    for machine in MACHINES:
        lab.run(
            machine,
            "python3",
            "-c",
            f"open('/root/lines', 'w').write({chr(10).join(sorted({*own, *in_environment}))!r})",
        )
        grep = "grep -rlaF -f /root/lines /etc /var /run /tmp /root/.ansible /home 2>/dev/null; rm /root/lines"
        assert set(lab.run(machine, "sh", "-c", grep).split()) == (homes if machine == MANAGER else set()), machine
    for path in homes:
        assert lab.run(MANAGER, "stat", "--format=%a", path).strip() == "600", path
    limits = lab.run(MANAGER, "sh", "-c", f"cat /proc/$(systemctl show --value --property=MainPID {SERVICE})/limits")
    (core,) = (line.split() for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core[4:6] == ["0", "0"]


def test_every_job_finds_it(lab: TrackingLab) -> None:
    assert (
        lab.server_uri.startswith("https:")
        and lab.run_job("sh", "-c", LOOK).split() == [f"{lab.server_uri}/health"] * 2
    )
    # Two jobs may be on different nodes.
    lines = [line.partition("=") for line in lab.run_job("sh", "-c", "echo NODE=$(hostname); exec env").splitlines()]
    said = {name: value for name, _equals, value in lines if name.startswith("MLFLOW")}
    assert (said["MLFLOW_TRACKING_URI"], said["MLFLOW_EXPERIMENT_NAME"]) == (lab.server_uri, "root")
    context = json.loads(said["MLFLOW_RUN_CONTEXT"])
    nodes = [value for name, _equals, value in lines if name == "NODE"]
    assert context["mlflow.runName"] == "look" and sorted(context["gpumesh.nodes"].split(",")) == sorted(nodes)
    assert context["gpumesh.generation"] == str(lab.read_record()["generation"])


def alice(lab: TrackingLab, line: str) -> None:
    lab.run(MANAGER, "su", "-", "alice", "-c", line, timeout=600)


def send_rest(lab: TrackingLab, name: str) -> None:
    """Run the command that a run of alice prints if the server lacks a part of it when the program ends, which waits for at
    most 10 seconds.
    """
    alice(lab, f"srun python3 /usr/local/lib/gpumesh/python/gpumesh_track.py /mnt/shared/alice/runs/{name}/track")


class Lasting:
    """A training on three nodes, whose code is copied. It goes on until it is hurried."""

    def __init__(self, lab: TrackingLab) -> None:
        self.lab = lab
        self.hurry = SHARED_VOLUME / "hurry"
        shutil.copy(SCENARIO / "tests" / "trainer.py", SHARED_VOLUME / "trainer.py")
        code = "/mnt/shared/alice/code"
        alice(lab, f"mkdir -p {code} && cp /mnt/shared/trainer.py {code}")
        begin = f"gpumesh-train --detach --name {LASTING} --nodes 3 --code {code}"
        program = f"trainer.py {LASTING_STEPS} {SECONDS} --track --hurry /mnt/shared/{self.hurry.name}"
        alice(lab, f"{begin} -- python3 {program}")
        lab.wait_until("the first points are there", lambda: bool(self.points()), 300, 2)

    def state(self) -> dict[str, Any]:
        return dict(json.loads((SHARED_VOLUME / "alice" / "runs" / LASTING / "run.json").read_text(encoding="utf-8")))

    def step(self) -> int:
        return int(self.state()["step"])

    def points(self) -> list[int]:
        """Those that the server has stored."""
        run: dict[str, Any] | None = self.lab.find_runs("alice").get(LASTING)
        return self.lab.stored_steps(run, "loss") if run else []

    def await_points(self, step: int) -> None:
        """Wait until the server has the points up to this step, each once. The program may try again only after 30 seconds."""
        wanted = list(range(1, step + 1))
        self.lab.wait_until(f"the points up to {step} arrive", lambda: self.points()[:step] == wanted, 300, 2)


@pytest.fixture(name="lasting", scope="module")
def _lasting(lab: TrackingLab) -> Lasting:
    return Lasting(lab)


def test_an_outage_neither_stops_a_run_nor_loses_a_point(lab: TrackingLab, lasting: Lasting) -> None:
    """The server no longer answers, in the middle of a training."""

    def signal(name: str) -> None:
        lab.run(MANAGER, "systemctl", "kill", f"--signal={name}", SERVICE)

    signal("STOP")
    try:
        away = lasting.step() + AWAY
        # A request is given up after 20 seconds: a step that waited for one would make this take far longer.
        lab.wait_until("the run goes on", lambda: lasting.step() >= away, AWAY * 20 / 2, 0.5)
    finally:
        signal("CONT")
    lasting.await_points(away)
    found, (attempt,) = lab.find_runs("alice")[LASTING], lasting.state()["attempts"]
    known = run_tags(found)
    assert known["mlflow.runName"] == LASTING and sorted(known["gpumesh.nodes"].split(",")) == sorted(attempt["nodes"])


def test_a_job_loses_no_point_while_the_certificate_is_renewed(lab: TrackingLab, lasting: Lasting) -> None:
    """A run of the playbook makes the next certificate, as in the second year; another one, as a month later, uses it."""

    def renewed(kind: str, days: int) -> list[str]:
        with age_certificate(lab, MANAGER, f"{settings.FOLDER}/{kind}.crt", days):
            done = lab.run_tracking()
        assert done.exit_status == 0, done.output
        return trusted(lab)

    (own,) = trusted(lab)
    (former, following) = renewed("own", 400)
    assert former == own != following
    assert renewed("next", 40) == [following]
    lab.wait_until("the server answers", lab.is_responding, 300)
    assert ssl.get_server_certificate((ADDRESS_BY_MACHINE[MANAGER], 5000)).split() == following.split()
    before, (attempt,) = len(lasting.points()), lasting.state()["attempts"]
    for node in attempt["nodes"]:
        assert lab.run(node, "sh", "-c", AS_TRAINING, VERIFY).split() == [f"{lab.server_uri}/health"]
    lasting.await_points(before + 1)
    assert lasting.state()["state"] == "running"
    lasting.hurry.touch()
    lab.wait_until("the run has ended", lambda: lasting.state()["state"] == "finished", 300)
    lasting.hurry.unlink()
    send_rest(lab, LASTING)
    assert lasting.points() == list(range(1, LASTING_STEPS + 1))
    assert lab.find_runs("alice")[LASTING]["info"]["status"] == "FINISHED"


def trusted(lab: TrackingLab) -> list[str]:
    """The certificates that the members trust: on each the same, and those in the record."""
    (found,) = {lab.read(machine, settings.trust_path("lan")).decode() for machine in MACHINES}
    certificates = list(lab.read_record()["tracking"]["certificates"])
    assert found == "".join(certificates)
    return certificates


@pytest.fixture(name="backup", scope="module")
def _backup(desk: GuideRunner, lab: TrackingLab) -> dict[str, Any]:
    """The runs of alice in a backup. A user in it has no experiment yet: somebody else took the name before."""
    lab.query("mlflow/experiments/create", {"name": "dave"}, user="mallory")
    lab.query("mlflow/users/create", {"username": "dave", "password": PASSWORDS["dave"]})
    send_rest(lab, "*")
    as_root(
        desk, "(umask 077; runuser -u gpumesh_tracking -- pg_dump --format=custom gpumesh_tracking > tracking.dump)"
    )
    assert lab.run(MANAGER, "stat", "--format=%a", "/root/tracking.dump").strip() == "600"
    runs = lab.identify_runs("alice")
    alice(lab, LATE)
    send_rest(lab, "late")
    assert lab.stored_steps(lab.find_runs("alice")["late"], "loss") == list(range(1, GUIDE_STEPS + 1))
    return runs


@pytest.mark.usefixtures("library")
def test_off_and_on_again_with_an_older_schema_and_a_certificate(
    desk: GuideRunner, lab: TrackingLab, backup: dict[str, Any], tmp_path: Path
) -> None:
    """It is on again with a database with a run, as the last minor version of MLflow created it."""
    heads = lab.schema_version(MANAGER)
    desk.run_playbook(GUIDE_NAME, f"{TRACKING_COMMAND} -e tracking_state=absent")
    assert lab.read_record()["tracking"] is None and not lab.is_responding()
    assert "MLFLOW" not in lab.run_job("env")
    for machine in MACHINES:
        assert not lab.run(machine, "find", "/etc/gpumesh", "-name", "*tracking*", check=False), machine
    assert not lab.run(MANAGER, "find", settings.LIBRARY, check=False)
    kept = lab.query_database(MANAGER, "SELECT name FROM runs", "gpumesh_tracking").split()
    assert set(kept) >= set(backup)
    lab.restore_library(MANAGER)
    lab.run(MANAGER, "sh", "-c", OLDER, "-", OLD, timeout=900)
    assert lab.schema_version(MANAGER) != heads
    made, key = create_certificate(MANAGER, tmp_path)
    for name, source in (("gpu1.pem", made), ("our-ca.pem", made), ("secrets/gpu1.key", key)):
        desk.write(name, source.read_text())
    provided = desk.type_line(
        GUIDE_NAME,
        f"{TRACKING_COMMAND} -e tracking_certificate_file=gpu1.pem -e tracking_key_file=secrets/gpu1.key "
        "-e tracking_ca_file=our-ca.pem",
    )
    *_command, users = desk.type_line(GUIDE_NAME, START_COMMAND)
    done = desk.run_ansible(*provided, "-e", users)
    assert done.exit_status == 0, done.output
    lab.trusted_certificates = made.read_text()
    lab.find_server()
    assert lab.schema_version(MANAGER) == heads
    assert lab.server_uri.startswith("https:") and lab.stored_steps(lab.find_runs("older")["old"], "loss") == [7]
    assert lab.run_job("sh", "-c", LOOK).split() == ["https://gpu1:5000/health"] * 2
    assert lab.read_record()["tracking"]["certificates"] == []


def test_a_backup_is_restored_and_each_user_in_it_gets_an_experiment(
    desk: GuideRunner, lab: TrackingLab, backup: dict[str, Any]
) -> None:
    """The same run switches TLS off."""
    as_root(
        desk,
        "runuser -u gpumesh_tracking -- sh -ec 'cd /mnt/shared/mlflow-lan; umask 077; cat > new; mv new database.dump' "
        "< tracking.dump",
    )
    desk.type_line(GUIDE_NAME, TRACKING_COMMAND)
    desk.run_playbook(GUIDE_NAME, f"{TRACKING_COMMAND} -e tracking_tls=false")
    lab.find_server()
    assert lab.server_uri.startswith("http:")
    for machine in MACHINES:
        assert not lab.run(machine, "find", "/etc/gpumesh", "-name", "tracking-ca*", check=False), machine
    assert lab.run_job("sh", "-c", LOOK).split() == [f"{lab.server_uri}/health"] * 2
    assert lab.identify_runs("alice") == backup
    line = "srun python3 /usr/local/lib/gpumesh/python/gpumesh_track.py /mnt/shared/alice/runs/*/track"
    desk.type_as_user(MANAGER, "alice", "/mnt/shared/alice", GUIDE_NAME, line)
    assert lab.stored_steps(lab.find_runs("alice")["late"], "loss") == list(range(1, GUIDE_STEPS + 1))
    assert {name: run for name, run in lab.identify_runs("alice").items() if name != "late"} == backup
    found = experiments(lab)
    assert "alice" in found and "older" not in found
    kept_database = lab.query_database(MANAGER, "SELECT datname FROM pg_database WHERE datname ~ '_before_'")
    assert kept_database.startswith("gpumesh_tracking_before_")
    # As long as it is there, so is its owner.
    lab.query_database(MANAGER, f'DROP DATABASE "{kept_database.strip()}"')
    assert lab.run(MANAGER, "systemctl", "is-active", SERVICE).strip() == "active"
    assert lab.run(MANAGER, "ls", "/mnt/shared/mlflow-lan").split() == ["artifacts"]
    # That of the other user is kept by another name, and its owner cannot add anything to the new one.
    own = found["dave"]["experiment_id"]
    (kept,) = (name for name in found if name.startswith("dave ("))
    # Nobody can guess the name, and take it as well.
    assert re.fullmatch(r"dave \(of mallory, [0-9a-f]{8}\)", kept) and found[kept]["experiment_id"] != own
    assert {tag["key"]: tag["value"] for tag in found["dave"]["tags"]}["gpumesh.owner"] == "dave"
    assert lab.query("mlflow/runs/create", {"experiment_id": own}, user="dave")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        lab.query("mlflow/runs/create", {"experiment_id": own}, user="mallory")


def test_a_second_run_changes_nothing_on_the_server(lab: TrackingLab) -> None:
    """On all members after the move, where no systemd keeps the server running."""
    done = lab.run_tracking("--limit", MANAGER)
    assert (done.exit_status, done.changed) == (0, {MANAGER: 0}), done.output


@pytest.mark.usefixtures("library")
def test_it_moves_to_a_machine_without_systemd_and_the_former_server_leaves_nothing(
    desk: GuideRunner, lab: TrackingLab
) -> None:
    """With TLS again."""
    runs = lab.identify_runs("alice")
    lab.restore_library(BARE_HOST)
    *command, _server = desk.type_line(GUIDE_NAME, f"{TRACKING_COMMAND} -e tracking_server=gpu2")
    *_command, tls = desk.type_line(GUIDE_NAME, f"{TRACKING_COMMAND} -e tracking_tls=true")
    done = desk.run_ansible(*command, f"tracking_server={BARE_HOST}", "-e", tls)
    assert done.exit_status == 0, done.output
    lab.find_server()
    moved = lab.find_runs("alice")["tracked"]
    assert lab.server_uri == f"https://{ADDRESS_BY_MACHINE[BARE_HOST]}:5000" and lab.identify_runs("alice") == runs
    assert lab.stored_steps(moved, "loss") == list(range(1, GUIDE_STEPS + 1))
    assert lab.read_artifact(moved, "losses.csv").startswith("step,loss")
    assert lab.run_job("sh", "-c", LOOK).split() == [f"{lab.server_uri}/health"] * 2
    # supervisord has no such setting: the launcher has confined it.
    (number, *_workers) = lab.run(BARE_HOST, "pgrep", "--uid", "gpumesh_tracking", "--full", "--", "-m uvicorn").split()
    assert "NoNewPrivs:\t1" in lab.read(BARE_HOST, f"/proc/{number}/status").decode().splitlines()
    for folder in ("/etc/gpumesh/tracking", settings.LIBRARY):
        assert not lab.run(MANAGER, "find", folder, check=False), folder
    # The new server has confirmed that it has loaded the database, and the former one has kept it by another name.
    (receipt,) = json.loads((SHARED_VOLUME / "mlflow-lan" / "moves.json").read_text(encoding="utf-8"))
    assert (receipt["former"], receipt["loaded"]) == (MANAGER, BARE_HOST)
    (kept,) = lab.query_database(MANAGER, "SELECT datname FROM pg_database WHERE datname ~ 'gpumesh'").split()
    assert kept.startswith("gpumesh_tracking_moved_")
    assert int(lab.query_database(MANAGER, "SELECT count(*) FROM runs", kept)) >= len(runs)
    again = lab.run_tracking()
    assert again.exit_status == 0 and set(again.changed.values()) == {0}, again.output


def test_delete_removes_it_and_leaves_the_data(lab: TrackingLab) -> None:
    done = lab.run_playbook("gpumesh.cluster.delete", "-e", "cluster_force=true")
    assert done.exit_status == 0, done.output
    assert not lab.is_responding()
    assert lab.run(BARE_HOST, "ls", "/mnt/shared/mlflow-lan").split() == ["artifacts", "moves.json"]
    # On a host without systemd, nothing keeps the database running.
    lab.run(BARE_HOST, "sh", "-c", "pg_ctlcluster $(pg_lsclusters --no-header | cut -d ' ' -f 1) main start")
    assert lab.schema_version(BARE_HOST)
    for folder in ("/etc/gpumesh/tracking", "/usr/local/lib/gpumesh"):
        assert not lab.run(BARE_HOST, "find", folder, check=False), folder


def test_nothing_that_the_guide_says_was_left_out(desk: GuideRunner) -> None:
    assert set(console_lines(GUIDES_DIRECTORY / f"{GUIDE_NAME}.md")) - desk.typed_lines - ELSEWHERE == set()

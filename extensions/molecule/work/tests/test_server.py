# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server after the guide, which has moved it to the second machine: access control, the environment of jobs, an
outage, an upgrade, and a machine that leaves.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from told_secrets import watched
from tracking_lab import (
    ADDRESS,
    BARE,
    MACHINES,
    MANAGER,
    OTHER,
    SERVICE,
    SHARED,
    TrackingLab,
    certificate,
    tags,
)

from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings

HERE = Path(__file__).resolve().parent
#: The steps of a run and during an outage, the seconds of a step, and the part of the time that an outage may cost.
STEPS, OUTAGE, SECONDS, PART = 360, 120, 0.25, 0.02
OLD = "3.16.1"
#: Creates the database with a previous version of MLflow, on top of the packages of the current one.
OLDER = """
set -e
environment=$(ls -d /usr/local/lib/gpumesh/mlflow/*/)
$environment/bin/python -m pip install -q --no-deps --target /root/older mlflow==$1 mlflow-skinny==$1 mlflow-tracing==$1
chmod -R go+rX /root/older && mv /root/older /opt/older
systemctl stop gpumesh-tracking
runuser -u postgres -- psql -q -c 'DROP DATABASE gpumesh_tracking WITH (FORCE)' \
    -c 'CREATE DATABASE gpumesh_tracking OWNER gpumesh_tracking'
cd / && PYTHONPATH=/opt/older runuser -u gpumesh_tracking -- env HOME=/var/lib/gpumesh/tracking \
    $environment/bin/python -c "
import mlflow
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore
assert mlflow.__version__ == '$1', mlflow.__version__
url = 'postgresql+psycopg://gpumesh_tracking@/gpumesh_tracking?host=/run/postgresql'
SqlAlchemyStore().init_db(url)
mlflow.set_tracking_uri(url)
mlflow.set_experiment('before')
with mlflow.start_run(run_name='old'):
    mlflow.log_metric('loss', 0.5, step=7)
"
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrackingLab:
    return TrackingLab()


@pytest.fixture(name="users", scope="module")
def _users(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The option with the users of the guide, for a database that does not have them."""
    path = tmp_path_factory.mktemp("users") / "users"
    path.write_text("admin:an-administrator-of-mlflow\nalice:only-alice-knows-this\n", encoding="ascii")
    return ("-e", f"tracking_users_file={path}")


def test_a_second_run_changes_nothing(lab: TrackingLab) -> None:
    done = lab.track()
    assert done.code == 0 and set(done.changed.values()) == {0}, done.output


def test_what_cannot_be_is_refused_before_anything_changes(lab: TrackingLab) -> None:
    before = lab.record()
    done = lab.track("-e", "tracking_server=bad")
    assert done.code and "tracking_server 'bad' is not among the members of 'lan'" in done.words, done.output
    assert lab.record() == before and lab.answers()


def test_show_knows_it_and_the_check_writes_a_run(lab: TrackingLab, tmp_path: Path) -> None:
    shown = lab.play("gpumesh.cluster.show", "-e", "show_output=json")
    (cluster,) = shown.shown
    layers = {member["machine"]: member["layers"] for member in cluster["members"]}
    assert [machine for machine in layers if "tracking" in layers[machine]] == [OTHER]
    assert {member["machine"]: member["drift"].get("tracking") for member in cluster["members"]} == dict.fromkeys(
        layers
    )
    done = lab.play("gpumesh.cluster.check", "--tags", "tracking", "-e", f"check_report_dir={tmp_path}")
    verdict = json.loads((tmp_path / "lan" / "part" / "verdict.json").read_text(encoding="utf-8"))
    found = {(one["id"], one["host"]): one["status"] for one in verdict["checks"] if one["id"].startswith("tracking")}
    assert found == {
        ("tracking.run", OTHER): "pass",
        **{("tracking.answer", machine): "pass" for machine in MACHINES if machine != OTHER},
    }, done.output


def test_only_users_get_in_and_nobody_else_reads_the_secrets(lab: TrackingLab) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        lab.ask("mlflow/experiments/get?experiment_id=0", user="mallory")
    for name in ("auth.ini", "secret"):
        assert lab.run(OTHER, "stat", "--format=%a %U", f"/etc/gpumesh/tracking/{name}").split() == [
            "600",
            "gpumesh_tracking",
        ]
    listed = lab.run(OTHER, "ps", "axwwe", "-o", "args")
    assert "an-administrator" not in listed
    addresses = lab.run(OTHER, "ss", "-Htln", "sport = :5000")
    assert addresses.split()[3] == f"{ADDRESS[OTHER]}:5000"


def secrets_of(lab: TrackingLab) -> set[str]:
    """The passwords, and the lines of the private key, that only some of the server's files may have."""
    made = lab.run(OTHER, "sh", "-c", f"cat {settings.FOLDER}/checker; echo; cat {settings.FOLDER}/*.key")
    return {line for line in made.splitlines() if len(line) > 20 and not line.startswith("-----")}


def test_nothing_tells_a_secret(lab: TrackingLab, tmp_path: Path) -> None:
    """While a user gets a password and the server makes a new certificate, and the processes of members are watched."""
    passwords = {
        "admin": "an-administrator-of-mlflow",
        "alice": "only-alice-knows-this",
        "eve": 'eve\'s \\own "p@ss" 4711',
    }
    users = tmp_path / "users"
    users.write_text("".join(f"{name}:{password}\n" for name, password in passwords.items()), encoding="ascii")
    former = secrets_of(lab)
    lab.run(OTHER, "rm", settings.OWN_CERTIFICATE, settings.OWN_KEY)
    with watched(lab, MACHINES):
        runs = [
            lab.play("gpumesh.cluster.tracking", "-vvv", "--diff", "-e", f"tracking_users_file={users}"),
            lab.play("gpumesh.cluster.show", "-vvv", "-e", "show_output=json"),
            lab.play(
                *("gpumesh.cluster.check", "-vvv", "--diff", "--tags", "tracking"),
                *("-e", f"check_report_dir={tmp_path / 'report'}"),
            ),
        ]
    lab.find_server()
    assert [run.code for run in runs] == [0, 0, 0], runs[0].output[-3000:]
    assert lab.ask("mlflow/experiments/get-by-name?experiment_name=eve")
    own = secrets_of(lab)
    assert len(own - former) >= 2, "no key was made, so nothing was tried"
    forms = lab.run(OTHER, "cat", settings.SECRET).strip()
    secrets = {form for word in (*own, *former, *passwords.values()) for form in (word, json.dumps(word)[1:-1])}
    told = "\n".join(run.output for run in runs)
    told += "\n".join(path.read_text("latin-1") for path in (tmp_path / "report").rglob("*") if path.is_file())
    logs = "journalctl --no-pager --output=cat; find /var/log /var/lib/gpumesh/clusters -xdev -type f -not -path '*/journal/*'"
    for machine in MACHINES:
        told += lab.run(machine, "sh", "-c", f"({logs} -exec cat {{}} +) 2>/dev/null; true")
    # MLflow has it in its environment.
    assert forms not in told
    for machine in MACHINES:
        told += lab.read(machine, "/root/seen").decode("latin-1")
        lab.run(machine, "rm", "/root/seen", "/root/enough")
    assert not [secret for secret in secrets if secret in told]
    homes = {f"{settings.FOLDER}/{name}" for name in ("checker", "own.key", "secret")}
    for machine in MACHINES:
        lab.run(
            machine,
            "python3",
            "-c",
            f"open('/root/lines', 'w').write({chr(10).join(sorted({*own, *former, forms}))!r})",
        )
        grep = "grep -rlaF -f /root/lines /etc /var /run /tmp /root/.ansible /home 2>/dev/null; rm /root/lines"
        assert set(lab.run(machine, "sh", "-c", grep).split()) == (homes if machine == OTHER else set()), machine
    for path in homes:
        assert lab.run(OTHER, "stat", "--format=%a", path).strip() == "600", path
    limits = lab.run(OTHER, "sh", "-c", f"cat /proc/$(systemctl show --value --property=MainPID {SERVICE})/limits")
    (core,) = (line.split() for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core[4:6] == ["0", "0"]


def test_every_job_finds_it(lab: TrackingLab) -> None:
    # Two jobs may be on different nodes.
    lines = [line.partition("=") for line in lab.job("sh", "-c", "echo NODE=$(hostname); exec env").splitlines()]
    said = {name: value for name, _equals, value in lines if name.startswith("MLFLOW")}
    assert (said["MLFLOW_TRACKING_URI"], said["MLFLOW_EXPERIMENT_NAME"]) == (lab.uri, "root")
    context = json.loads(said["MLFLOW_RUN_CONTEXT"])
    nodes = [value for name, _equals, value in lines if name == "NODE"]
    assert context["mlflow.runName"] == "look" and sorted(context["gpumesh.nodes"].split(",")) == sorted(nodes)
    assert context["gpumesh.generation"] == str(lab.record()["generation"])


def test_an_older_schema_is_migrated(lab: TrackingLab, users: tuple[str, ...]) -> None:
    """A database with a run, as the last minor version of MLflow created it. That of the guide is restored afterwards."""
    runs, heads = lab.known("alice"), lab.versions(OTHER)
    save = "runuser -u gpumesh_tracking -- pg_dump --format=custom gpumesh_tracking > /root/kept.dump"
    lab.run(OTHER, "sh", "-c", save)
    lab.run(OTHER, "sh", "-c", OLDER, "-", OLD, timeout=300)
    assert lab.versions(OTHER) != heads
    done = lab.track(*users)
    assert done.code == 0, done.output
    assert lab.versions(OTHER) == heads
    assert lab.history(lab.runs("before")["old"], "loss") == [7]
    dump = "/mnt/shared/mlflow-lan/database.dump"
    restore = f"runuser -u gpumesh_tracking -- install -m 600 /dev/stdin {dump} < /root/kept.dump"
    lab.run(OTHER, "sh", "-c", restore)
    done = lab.track()
    assert done.code == 0 and lab.known("alice") == runs, done.output


def test_an_outage_neither_slows_a_run_nor_loses_a_point(lab: TrackingLab) -> None:
    """The server stops in the middle of a training on three nodes, whose code is copied."""
    shutil.copy(HERE / "tracked.py", SHARED / "alice" / "tracked.py")
    folder, state = "/mnt/shared/alice/code", SHARED / "alice" / "runs" / "outage"

    def alice(line: str) -> None:
        lab.run(MANAGER, "su", "-", "alice", "-c", line, timeout=300)

    alice(f"mkdir -p {folder} && cp /mnt/shared/alice/tracked.py {folder}")
    begin = f"gpumesh-train --detach --name outage --nodes 3 --code {folder}"
    alice(f"{begin} -- python3 tracked.py {STEPS} {SECONDS}")
    lab.wait("the first points are there", lambda: bool(points(lab)), 120, 0.5)
    run = state / "run.json"

    def step() -> int:
        return int(json.loads(run.read_text(encoding="utf-8"))["step"])

    lab.run(OTHER, "systemctl", "stop", SERVICE)
    away, before = time.time(), step()
    lab.wait("the run goes on", lambda: step() >= before + OUTAGE, 300, 0.5)
    back = time.time()
    lab.run(OTHER, "systemctl", "start", SERVICE)
    lab.wait("the server answers", lab.answers, 240)
    answers = time.time()
    lab.wait("the run has ended", lambda: json.loads(run.read_text())["state"] == "finished", 300)
    times = json.loads((state / "times.json").read_text(encoding="ascii"))
    # The server starts on a processor that the ranks of this lab use as well: steps during that time are not counted.
    without = [one["took"] for one in times if away < one["end"] < back]
    with_it = [one["took"] for one in times[1:] if one["end"] < away or one["end"] > answers]
    slower = statistics.median(without) / statistics.median(with_it) - 1
    tracking, took = sum(one["tracking"] for one in times), sum(one["took"] for one in times)
    print(
        f"{len(without)} steps of {statistics.median(without) * 1000:.1f} ms without the server, {len(with_it)} of "
        f"{statistics.median(with_it) * 1000:.1f} ms with it; of {took:.1f} s the tracking took {tracking:.3f} s"
    )
    assert len(without) > 0.8 * OUTAGE and len(with_it) > 20
    assert slower < PART and tracking < PART * took
    # What was not sent before the program ended is sent by the command that it prints.
    alice("srun python3 /usr/local/lib/gpumesh/python/gpumesh_track.py /mnt/shared/alice/runs/outage/track")
    found = lab.runs("alice")["outage"]
    assert lab.history(found, "loss") == lab.history(found, "rate") == list(range(1, STEPS + 1))
    assert found["info"]["status"] == "FINISHED"
    known, (attempt,) = tags(found), json.loads(run.read_text(encoding="utf-8"))["attempts"]
    assert known["mlflow.runName"] == "outage" and sorted(known["gpumesh.nodes"].split(",")) == sorted(attempt["nodes"])


def points(lab: TrackingLab) -> list[int]:
    """The points of the run that the server has stored."""
    run: dict[str, Any] | None = lab.runs("alice").get("outage")
    return lab.history(run, "loss") if run else []


def test_it_moves_to_a_machine_without_systemd_before_its_own_is_removed(lab: TrackingLab, tmp_path: Path) -> None:
    """With a certificate of ours from then on."""
    runs = lab.known("alice")
    remove = ("gpumesh.cluster.remove", "-e", f"cluster_machine={OTHER}")
    refused = lab.play(*remove)
    assert refused.code and "Move it first, with the playbook tracking" in refused.words, refused.output
    made, key = certificate(BARE, tmp_path)
    options = [f"tracking_certificate_file={made}", f"tracking_key_file={key}", f"tracking_server={BARE}"]
    done = lab.track(*(word for option in options for word in ("-e", option)))
    assert done.code == 0, done.output
    lab.trust = made.read_text()
    assert lab.uri == f"https://{ADDRESS[BARE]}:5000" and lab.known("alice") == runs
    assert lab.artifact(lab.runs("alice")["tracked"], "losses.csv").startswith("step,loss")
    # supervisord has no such setting: the launcher has confined it.
    (number, *_workers) = lab.run(BARE, "pgrep", "--uid", "gpumesh_tracking", "--full", "--", "-m uvicorn").split()
    assert "NoNewPrivs:\t1" in lab.read(BARE, f"/proc/{number}/status").decode().splitlines()
    again = lab.track()
    assert again.code == 0 and set(again.changed.values()) == {0}, again.output
    done = lab.play(*remove)
    assert done.code == 0, done.output
    assert lab.known("alice") == runs
    for folder in ("/etc/gpumesh/tracking", "/usr/local/lib/gpumesh"):
        assert not lab.run(OTHER, "find", folder, check=False), folder


def test_it_is_switched_off_and_delete_leaves_the_data(lab: TrackingLab) -> None:
    done = lab.track("-e", "tracking_state=absent")
    assert done.code == 0, done.output
    assert lab.record()["tracking"] is None
    done = lab.play("gpumesh.cluster.delete", "-e", "cluster_force=true")
    assert done.code == 0, done.output
    assert lab.run(BARE, "ls", "/mnt/shared/mlflow-lan").split() == ["artifacts"]
    # On a host without systemd, nothing keeps the database running.
    lab.run(BARE, "sh", "-c", "pg_ctlcluster $(pg_lsclusters --no-header | cut -d ' ' -f 1) main start")
    assert lab.versions(BARE)
    for folder in ("/etc/gpumesh/tracking", "/usr/local/lib/gpumesh"):
        assert not lab.run(BARE, "find", folder, check=False), folder

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Experiments on real hosts: what jobs are told, an outage, an upgrade, and a server that moves with all runs."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from lab_hosts import ROOT, Lab

NAME = "molecule-tracking"
MANAGER, BARE = "k1", "k3"
ADDRESS = {"k1": "10.79.91.11", "k3": "10.79.91.13"}
HERE = Path(__file__).resolve().parent
STEPS, SECONDS, OUTAGE = 300, 0.1, 20
OLD = "3.16.1"
SERVICE = "gpumesh-tracking"
#: MLflow before, on top of the packages of the present one.
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


class TrackingLab(Lab):
    """The lab, and its MLflow by the interface for programs."""

    uri, trust = f"http://{ADDRESS[MANAGER]}:5000", ""

    def ask(self, path: str, body: dict[str, Any] | None = None, user: str = "admin") -> dict[str, Any]:
        """As the pages of MLflow ask it in a browser, with their origin."""
        login = base64.b64encode(f"{user}:{user}-of-the-lab".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}", "Origin": self.uri}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.uri}/api/2.0/{path}", data, headers)
        context = ssl.create_default_context(cafile=self.trust) if self.trust else None
        if context:
            # The certificate is for the name of the machine, which this one does not know.
            context.check_hostname = False
        with urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        ).open(request, timeout=60) as answer:
            return dict(json.loads(answer.read() or b"{}"))

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """The runs of an experiment, the newest first."""
        found = self.ask(f"mlflow/experiments/get-by-name?experiment_name={experiment}")
        wanted = {"experiment_ids": [found["experiment"]["experiment_id"]]}
        return list(self.ask("mlflow/runs/search", wanted).get("runs", []))

    def history(self, run: dict[str, Any], metric: str) -> list[int]:
        """The steps of a metric, in order, each as often as it is there."""
        path = f"mlflow/metrics/get-history?run_id={run['info']['run_id']}&metric_key={metric}"
        return sorted(int(point["step"]) for point in self.ask(path).get("metrics", []))

    def record(self) -> dict[str, Any]:
        return dict(json.loads(self.read(MANAGER, "/var/lib/gpumesh/clusters/tracked.json")))

    def job(self, *argv: str) -> str:
        return self.run(MANAGER, "srun", "--nodes=2", "--job-name=look", *argv)

    def track(self, *options: str) -> Any:
        return self.play("gpumesh.cluster.tracking", *options)


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrackingLab:
    lab = TrackingLab(NAME)
    shared = ROOT / ".lab" / NAME / "shared"
    shutil.copy(HERE / "trainer.py", shared / "trainer.py")
    credentials = "[mlflow]\nmlflow_tracking_username = alice\nmlflow_tracking_password = alice-of-the-lab\n"
    for host in ("k1", "k2", "k3"):
        lab.run(host, "install", "-d", "-m", "0700", "/root/.mlflow")
        lab.run(host, "sh", "-c", f"umask 077; printf '%s' '{credentials}' > /root/.mlflow/credentials")
    return lab


def tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]}


def test_a_second_run_changes_nothing(lab: TrackingLab) -> None:
    done = lab.track()
    assert done.code == 0 and set(done.changed.values()) == {0}, done.output


def test_what_cannot_be_is_refused_before_anything_changes(lab: TrackingLab) -> None:
    before = lab.record()
    done = lab.track("-e", "tracking_server=bad")
    assert done.code and "tracking_server 'bad' is not among the members of 'tracked'" in done.words, done.output
    assert lab.record() == before and lab.ask("mlflow/experiments/get?experiment_id=0")


def test_show_knows_it_and_the_check_writes_a_run(lab: TrackingLab, tmp_path: Path) -> None:
    shown = lab.play("gpumesh.cluster.show", "-e", "show_output=json")
    (cluster,) = shown.shown
    layers = {member["machine"]: member["layers"] for member in cluster["members"]}
    assert [machine for machine in layers if "tracking" in layers[machine]] == [MANAGER]
    assert {member["machine"]: member["drift"].get("tracking") for member in cluster["members"]} == dict.fromkeys(
        layers
    )
    done = lab.play("gpumesh.cluster.check", "--tags", "tracking", "-e", f"check_report_dir={tmp_path}")
    verdict = json.loads((tmp_path / "tracked" / "part" / "verdict.json").read_text(encoding="utf-8"))
    found = {(one["id"], one["host"]): one["status"] for one in verdict["checks"] if one["id"].startswith("tracking")}
    assert found == {
        ("tracking.run", "k1"): "pass",
        ("tracking.answer", "k2"): "pass",
        ("tracking.answer", "k3"): "pass",
    }, done.output


def test_only_users_get_in_and_nobody_else_reads_the_secrets(lab: TrackingLab) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        lab.ask("mlflow/experiments/get?experiment_id=0", user="mallory")
    for name in ("auth.ini", "secret"):
        assert lab.run(MANAGER, "stat", "--format=%a %U", f"/etc/gpumesh/tracking/{name}").split() == [
            "600",
            "gpumesh_tracking",
        ]
    listed = lab.run(MANAGER, "ps", "axwwe", "-o", "args")
    assert "of-the-lab" not in listed
    addresses = lab.run(MANAGER, "ss", "-Htln", "sport = :5000")
    assert addresses.split()[3] == f"{ADDRESS[MANAGER]}:5000"


def test_every_job_finds_it(lab: TrackingLab) -> None:
    said = dict(line.split("=", 1) for line in lab.job("env").splitlines() if line.startswith("MLFLOW"))
    assert (said["MLFLOW_TRACKING_URI"], said["MLFLOW_EXPERIMENT_NAME"]) == (lab.uri, "root")
    context = json.loads(said["MLFLOW_RUN_CONTEXT"])
    # In the order of the ranks, which is that in which the nodes have registered.
    nodes = lab.job("hostname").split()
    assert context["mlflow.runName"] == "look" and sorted(context["gpumesh.nodes"].split(",")) == sorted(nodes)
    assert context["gpumesh.generation"] == str(lab.record()["generation"])


def in_database(lab: TrackingLab, host: str, words: str, *options: str) -> str:
    """The answer of PostgreSQL on a host."""
    return lab.run(host, "runuser", "-u", "postgres", "--", "psql", "-At", *options, "-c", words)


def versions(lab: TrackingLab, host: str) -> str:
    return in_database(lab, host, "SELECT version_num FROM alembic_version", "gpumesh_tracking")


def test_an_older_schema_is_migrated(lab: TrackingLab) -> None:
    """A database with a run, as MLflow of the last minor version made it."""
    heads = versions(lab, MANAGER)
    lab.run(MANAGER, "sh", "-c", OLDER, "-", OLD, timeout=300)
    assert versions(lab, MANAGER) != heads
    done = lab.track()
    assert done.code == 0, done.output
    assert versions(lab, MANAGER) == heads
    (old,) = lab.runs("before")
    assert lab.history(old, "loss") == [7]


def test_an_outage_neither_slows_a_run_nor_loses_a_point(lab: TrackingLab, tmp_path: Path) -> None:
    """The run of 3 nodes with its code in git; the server is away in the middle of it."""
    code = "/root/code"
    lab.run(MANAGER, "cp", "-T", "/mnt/shared/trainer.py", "/root/trainer.py")
    lab.run(MANAGER, "sh", "-c", f"mkdir -p {code} && mv /root/trainer.py {code}/")
    run = ["gpumesh-train", "--detach", "--name", "nano", "--nodes", "3", "--code", code]
    lab.run(MANAGER, *run, "--", "python3", "trainer.py", str(STEPS), str(SECONDS))
    lab.wait("the first points are there", lambda: bool(reached(lab)), 120, 0.5)
    lab.run(MANAGER, "systemctl", "stop", SERVICE)
    lab.run(MANAGER, "sleep", str(OUTAGE))
    state = ROOT / ".lab" / NAME / "shared" / "root" / "runs" / "nano"
    lab.run(MANAGER, "systemctl", "start", SERVICE)
    lab.wait("the run has ended", lambda: json.loads((state / "run.json").read_text())["state"] == "finished", 240)
    log = (state / "attempts" / "001" / "rank-0.log").read_text(encoding="utf-8")
    # The program may tell later that not all has arrived.
    took, tracking = map(float, log.rpartition("took")[2].splitlines()[0].split())
    print(f"{STEPS} steps took {took:.1f} s, of which the tracking {tracking:.3f} s")
    assert tracking < 0.02 * took
    # What the end of the program did not wait for is handed in by the command that it names.
    lab.wait("the server answers", lambda: reached(lab) is not None, 120)
    points = "/mnt/shared/root/runs/nano/track"
    variables = [f"MLFLOW_TRACKING_URI={lab.uri}", "MLFLOW_EXPERIMENT_NAME=root"]
    lab.run(MANAGER, "env", *variables, "python3", "/usr/local/lib/gpumesh/python/gpumesh_track.py", points)
    (found,) = lab.runs("root")
    assert lab.history(found, "loss") == lab.history(found, "rate") == list(range(1, STEPS + 1))
    assert found["info"]["status"] == "FINISHED"
    known = tags(found)
    assert known["mlflow.runName"] == "nano" and sorted(known["gpumesh.nodes"].split(",")) == ["k1", "k2", "k3"]


def reached(lab: TrackingLab) -> bool | None:
    """Whether there is a point of the run yet; None where the server does not answer."""
    try:
        return bool(lab.history(lab.runs("root")[0], "loss"))
    except urllib.error.HTTPError:
        return False
    except (OSError, IndexError):
        return None


def test_it_moves_with_all_runs_to_a_machine_without_systemd(lab: TrackingLab, tmp_path: Path) -> None:
    """With a certificate from there on; the former server leaves nothing behind."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=k3"]
    argv += ["-addext", "subjectAltName=DNS:k3", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)
    run = lab.runs("root")[0]
    refused = lab.play("gpumesh.cluster.remove", "-e", "cluster_machine=k1", "-e", "cluster_new_manager=k2")
    assert refused.code and "Move it first, with the playbook tracking" in refused.words, refused.output
    options = [f"tracking_certificate_file={certificate}", f"tracking_key_file={key}", f"tracking_server={BARE}"]
    done = lab.track(*(word for option in options for word in ("-e", option)))
    assert done.code == 0, done.output
    lab.uri, lab.trust = f"https://{ADDRESS[BARE]}:5000", str(certificate)
    (moved,) = lab.runs("root")
    assert moved["info"]["run_id"] == run["info"]["run_id"]
    assert lab.history(moved, "loss") == list(range(1, STEPS + 1))
    assert lab.history(lab.runs("before")[0], "loss") == [7]
    for folder in ("/etc/gpumesh/tracking", "/usr/local/lib/gpumesh/mlflow"):
        assert not lab.run(MANAGER, "find", folder, check=False), folder
    assert in_database(lab, MANAGER, "SELECT 1 FROM pg_roles WHERE rolname ~ 'gpumesh'") == ""
    again = lab.track()
    assert again.code == 0 and set(again.changed.values()) == {0}, again.output
    program = (
        "import json, os, ssl, urllib.request as u; "
        "c = ssl.create_default_context(cafile=os.environ['MLFLOW_TRACKING_SERVER_CERT_PATH']); "
        "print(u.urlopen(os.environ['MLFLOW_TRACKING_URI'] + '/health', context=c).read())"
    )
    assert lab.job("python3", "-c", program).splitlines() == ["b'OK'"] * 2


def test_it_is_switched_off_and_delete_leaves_the_data(lab: TrackingLab) -> None:
    done = lab.track("-e", "tracking_state=absent")
    assert done.code == 0, done.output
    assert lab.record()["tracking"] is None
    assert "MLFLOW" not in lab.job("env")
    done = lab.play("gpumesh.cluster.delete", "-e", "cluster_force=true")
    assert done.code == 0, done.output
    assert lab.run(BARE, "ls", "/mnt/shared/mlflow-tracked").split() == ["artifacts"]
    # Nobody runs the database any more on a host without systemd.
    lab.run(BARE, "sh", "-c", "pg_ctlcluster $(pg_lsclusters --no-header | cut -d ' ' -f 1) main start")
    assert versions(lab, BARE)
    for folder in ("/etc/gpumesh/tracking", "/usr/local/lib/gpumesh"):
        assert not lab.run(BARE, "find", folder, check=False), folder

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guide "See your training", typed as written: its commands, files and programs are taken from its text.

The tests run in the order of the file, and the other files of this scenario continue from the resulting state.
"""

from __future__ import annotations

import json
import shutil
from statistics import median
from typing import Any

import pytest
from desk import GUIDES, Desk
from lab_hosts import ROOT
from tracking_lab import MACHINES, MANAGER, NETWORK, OTHER, SERVICE, SHARED, TrackingLab, certificate, tags

from ansible_collections.gpumesh.cluster.tests.publication.archive import install
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks, console_lines

GUIDE = "profile"
HERE = "/mnt/shared/alice/tracking"
RUNS = SHARED / "alice" / "runs"
STEPS = 20
#: The slow rank, and the milliseconds by which it pauses in each step.
SLOW, PAUSE = 1, 1000.0
#: The recorded steps: 5 are skipped, and the profiler warms up in 2.
FIRST, RECORDED = 8, 5
ON = "ansible-playbook -i inventories/lan gpumesh.cluster.tracking -e tracking_users_file=secrets/tracking-users"
AGAIN = "ansible-playbook -i inventories/lan gpumesh.cluster.tracking"
#: Commands that are not typed here, and why.
ELSEWHERE = {
    # These machines have no GPU, and no non-free packages. The unit tests cover the command line of nsys.
    "gpumesh-train --name nano-nsys --nodes 3 --gpus-per-node 8 --profile nsys -- python3 train.py --steps 20000",
}


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrackingLab:
    return TrackingLab()


@pytest.fixture(name="desk", scope="module")
def _desk(tmp_path_factory: pytest.TempPathFactory, lab: TrackingLab) -> Desk:
    desk = Desk(install(tmp_path_factory.mktemp("chapter")), lab, NETWORK)
    desk.write("inventories/lan/hosts.yml", lab.inventory.read_text())
    shutil.copytree(ROOT / "examples", SHARED / "examples", dirs_exist_ok=True)
    return desk


def written(name: str) -> str:
    """The content of a file, as the guide shows it."""
    (text,) = (block.text for block in blocks(GUIDES / f"{GUIDE}.md") if block.file == name)
    return f"{text}\n"


def alice(desk: Desk, line: str, now: str = "", machine: str = MANAGER, folder: str = HERE) -> str:
    """Type a line as the user in the guide."""
    return desk.log_in(machine, "alice", folder, GUIDE, line, now)


def report(name: str) -> list[dict[str, Any]]:
    """The machine-readable results of gpumesh-trace."""
    return list(json.loads((RUNS / name).read_text(encoding="utf-8")))


def test_track(desk: Desk, lab: TrackingLab) -> None:
    desk.write("secrets/tracking-users", written("secrets/tracking-users"))
    desk.play(GUIDE, ON)
    lab.find_server()
    assert lab.answers()
    for machine in MACHINES:
        made = f"mkdir -p ~/.mlflow && cat > ~/.mlflow/credentials <<END\n{written('~/.mlflow/credentials')}END"
        lab.run(machine, "su", "-", "alice", "-c", made)
        alice(desk, "chmod 700 ~/.mlflow && chmod 600 ~/.mlflow/credentials", machine=machine, folder="/")


def test_a_run_with_its_metrics_and_its_file(desk: Desk, lab: TrackingLab) -> None:
    alice(desk, "mkdir -p /mnt/shared/alice", folder="/")
    alice(desk, "cp -r /mnt/shared/examples/tracking /mnt/shared/alice/", folder="/")
    alice(desk, f"cd {HERE}", folder="/")
    alice(desk, "gpumesh-train --name tracked --nodes 3 -- python3 track.py")
    # What was not sent before the program ended.
    alice(desk, "srun python3 /usr/local/lib/gpumesh/python/gpumesh_track.py /mnt/shared/alice/runs/tracked/track")
    run = lab.runs("alice")["tracked"]
    assert lab.history(run, "loss") == list(range(1, STEPS + 1))
    assert run["info"]["status"] == "FINISHED"
    assert {one["key"]: one["value"] for one in run["data"]["params"]}["steps"] == str(STEPS)
    nodes = set(tags(run)["gpumesh.nodes"].split(","))
    assert len(nodes) == 3 and nodes < set(MACHINES)
    lines = lab.artifact(run, "losses.csv").split()
    assert (lines[0], len(lines)) == ("step,loss", STEPS + 1)


def test_a_profile_whose_page_names_the_slow_rank(desk: Desk) -> None:
    alice(desk, "gpumesh-train --name slow --nodes 3 --profile torch -- python3 track.py --slow 1")
    said = alice(desk, "gpumesh-trace slow")
    print(said)
    (found,) = report("slow/profile/001/report.json")
    (node,) = (share["node"] for share in found["ranks"] if share["rank"] == SLOW)
    assert found["slowest"]["ranks"] == [SLOW] and found["slowest"]["node"] == node
    # Rank 1 pauses in each step, and what the others do meanwhile depends on the machine. The unit tests check traces with
    # known values to within 5 %.
    own = {share["rank"]: share["computing_ms"] + share["other_ms"] for share in found["ranks"]}
    slow = own.pop(SLOW)
    assert slow >= PAUSE
    assert found["slowest"]["cost_ms"] == pytest.approx(slow - median(own.values()), abs=0.01)
    assert found["steps"] == list(range(FIRST, FIRST + RECORDED))
    assert found["missing"] == [] and found["unmatched"] == 0
    described = (RUNS / "slow" / "profile" / "001").glob("rank-[0-9].json")
    recordings = {json.loads(path.read_text(encoding="utf-8"))["recording"] for path in described}
    assert len(recordings) == 1 and "" not in recordings
    # The hosts of a lab have one clock. How exactly it is measured depends on the machine.
    for clock in found["clocks"]:
        assert abs(clock["ahead_ms"]) <= clock["error_ms"], clock
    assert f"because rank {SLOW} on {node} is slower than the others" in said
    page = (RUNS / "slow" / "profile" / "001" / "report.html").read_text(encoding="utf-8")
    assert f"Rank {SLOW} on {node} holds the others up" in page


def test_two_runs_side_by_side(desk: Desk) -> None:
    alice(desk, "gpumesh-train --name even --nodes 3 --profile torch -- python3 track.py")
    print(alice(desk, "gpumesh-trace slow even"))
    slow, even = report("slow/profile/001/report-2.json")
    assert (slow["name"], even["name"]) == ("slow", "even")
    page = (RUNS / "slow" / "profile" / "001" / "report-2.html").read_text(encoding="utf-8")
    assert "A step of even takes" in page


def test_jobs_of_your_own(desk: Desk, lab: TrackingLab) -> None:
    lab.run(MANAGER, "su", "-", "alice", "-c", f"cat > {HERE}/own.sbatch <<'END'\n{written('own.sbatch')}END")
    number = alice(desk, "GPUMESH_PROFILE=torch:10 sbatch own.sbatch").split()[-1]
    lab.wait("the job has ended", lambda: not lab.run(MANAGER, "squeue", "-hj", number, check=False).strip(), 240)
    alice(desk, "gpumesh-trace profile-41", f"gpumesh-trace profile-{number}")
    (found,) = json.loads((SHARED / "alice" / "tracking" / f"profile-{number}" / "report.json").read_text())
    assert [share["rank"] for share in found["ranks"]] == [0, 1, 2]
    assert len(found["steps"]) == 10


#: What a job finds out about the server: its answer, verified with the certificates that the job trusts.
LOOK = """python3 -c "
import os, ssl, urllib.request as u
trust = os.environ.get('MLFLOW_TRACKING_SERVER_CERT_PATH')
print(u.urlopen(os.environ['MLFLOW_TRACKING_URI'] + '/health',
                context=ssl.create_default_context(cafile=trust) if trust else None).url)" """


def test_tls_and_off_again(desk: Desk, lab: TrackingLab, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = lab.known("alice")
    assert lab.uri.startswith("https:") and lab.job("sh", "-c", LOOK).split() == [f"{lab.uri}/health"] * 2
    folder = tmp_path_factory.mktemp("tls")
    made, key = certificate(MANAGER, folder)
    for name, source in (("gpu1.pem", made), ("our-ca.pem", made), ("secrets/gpu1.key", key)):
        desk.write(name, source.read_text())
    desk.play(
        GUIDE,
        "ansible-playbook -i inventories/lan gpumesh.cluster.tracking -e tracking_certificate_file=gpu1.pem "
        "-e tracking_key_file=secrets/gpu1.key -e tracking_ca_file=our-ca.pem",
    )
    lab.trust = made.read_text()
    lab.find_server()
    assert lab.uri.startswith("https:") and lab.known("alice") == runs
    assert lab.job("sh", "-c", LOOK).split() == ["https://gpu1:5000/health"] * 2
    assert lab.record()["tracking"]["certificates"] == []
    desk.play(GUIDE, f"{AGAIN} -e tracking_state=absent")
    assert lab.record()["tracking"] is None and not lab.answers()
    assert "MLFLOW" not in lab.job("env")
    for machine in MACHINES:
        assert not lab.run(machine, "find", "/etc/gpumesh", "-name", "*tracking*", check=False), machine
    desk.play(GUIDE, ON)
    lab.find_server()
    assert lab.trust in lab.record()["tracking"]["certificates"] and lab.known("alice") == runs
    desk.play(GUIDE, f"{AGAIN} -e tracking_tls=false")
    lab.find_server()
    assert lab.uri.startswith("http:") and lab.known("alice") == runs
    for machine in MACHINES:
        assert not lab.run(machine, "find", "/etc/gpumesh", "-name", "tracking-ca*", check=False), machine
    assert lab.job("sh", "-c", LOOK).split() == [f"{lab.uri}/health"] * 2
    desk.play(GUIDE, f"{AGAIN} -e tracking_tls=true")
    lab.find_server()
    assert lab.uri.startswith("https:") and lab.known("alice") == runs
    assert lab.job("sh", "-c", LOOK).split() == [f"{lab.uri}/health"] * 2


def test_it_moves_with_all_runs(desk: Desk, lab: TrackingLab) -> None:
    """The former server leaves nothing behind."""
    runs = lab.known("alice")
    desk.play(GUIDE, f"{AGAIN} -e tracking_server={OTHER}")
    lab.find_server()
    moved = lab.runs("alice")["tracked"]
    assert lab.known("alice") == runs and lab.history(moved, "loss") == list(range(1, STEPS + 1))
    assert lab.artifact(moved, "losses.csv").startswith("step,loss")
    for folder in ("/etc/gpumesh/tracking", "/usr/local/lib/gpumesh/mlflow"):
        assert not lab.run(MANAGER, "find", folder, check=False), folder
    assert lab.in_database(MANAGER, "SELECT 1 FROM pg_roles WHERE rolname ~ 'gpumesh'") == ""


def test_back_up_and_restore(desk: Desk, lab: TrackingLab) -> None:
    kept = lab.known("alice")

    def root(line: str) -> None:
        desk.log_in(OTHER, "root", "/root", GUIDE, line)

    root("(umask 077; runuser -u gpumesh_tracking -- pg_dump --format=custom gpumesh_tracking > tracking.dump)")
    assert lab.run(OTHER, "stat", "--format=%a", "/root/tracking.dump").strip() == "600"
    lab.ask("mlflow/runs/delete", {"run_id": kept["tracked"]["run_id"]})
    lab.ask("mlflow/experiments/create", {"name": "later"})
    assert "tracked" not in lab.runs("alice")
    root(
        "runuser -u gpumesh_tracking -- sh -ec 'cd /mnt/shared/mlflow-lan; umask 077; cat > new; mv new database.dump' "
        "< tracking.dump"
    )
    desk.play(GUIDE, AGAIN)
    assert lab.known("alice") == kept
    names = [one["name"] for one in lab.ask("mlflow/experiments/search", {"max_results": 99})["experiments"]]
    assert "alice" in names and "later" not in names
    kept_database = lab.in_database(OTHER, "SELECT datname FROM pg_database WHERE datname ~ '_before_'")
    assert kept_database.startswith("gpumesh_tracking_before_")
    assert lab.run(OTHER, "systemctl", "is-active", SERVICE).strip() == "active"
    assert lab.run(OTHER, "ls", "/mnt/shared/mlflow-lan").split() == ["artifacts"]


def test_nothing_that_the_guide_says_was_left_out(desk: Desk) -> None:
    assert set(console_lines(GUIDES / f"{GUIDE}.md")) - desk.typed - ELSEWHERE == set()

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every playbook as a job of AWX: answers as texts, credentials by injectors, limits, slices, check mode.

The execution environment has the oldest supported ansible-core. The collection is installed from its archive, as the
sync of a project does, and the project contains no files: each playbook is run by its full name, and nothing of the
checkout is used, except by the one job whose project is a clone. The tests run in the order of the file, which is the life of a cluster.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from awx_jobs import AwxCredential, AwxNode
from lab_hosts import Lab

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, install
from ansible_collections.gpumesh.cluster.tests.publication.awx_rules import launch

LAB = ROOT / ".lab" / "molecule-awx"
#: As `openssl rand -base64 96` prints it.
SECRET = "GIx1bWVzaCBtdW5nZSBrZXkgb2YgYSBjcmVkZW50aWFsIHRoYXQgbXVzdCBub3QgYmUgaW4gYW55IHJlY29yZA=="
MUNGE = AwxCredential("gpumesh munge key", {"munge_key": SECRET})
PAIR = "a1,a2"
CORE = "2.18"


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> AwxNode:
    folder = tmp_path_factory.mktemp("awx")
    written = yaml.safe_load((LAB / "hosts.yml").read_text())["lab"]
    # The machine credential is a key in an agent, not a file.
    variables = {name: value for name, value in written["vars"].items() if name != "ansible_ssh_private_key_file"}
    # The host keys are a credential as well, not a file that the inventory names.
    del variables["ansible_ssh_common_args"]
    inventory = {"all": {"vars": variables, "children": {"cluster": written["children"]["cluster"]}}}
    key = (LAB / "id_ed25519").read_text()
    return AwxNode(
        install(folder),
        inventory,
        key,
        folder / "jobs",
        use_collection_names=True,
        program_directory=programs(),
        host_keys=(LAB / "known_hosts").read_text(),
    )


def programs() -> Path:
    """The folder of the programs of this ansible-core."""
    python = subprocess.run([ROOT / "tests" / "matrix", "python", CORE], stdout=subprocess.PIPE, text=True, check=True)
    return Path(python.stdout.strip()).parent


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab("molecule-awx")


def record(lab: Lab, host: str) -> dict:
    return json.loads(lab.run(host, "cat", "/var/lib/gpumesh/clusters/gpumesh.json"))


def allowed(lab: Lab, host: str) -> list[str]:
    """The allowed addresses of each peer of a host's tunnel."""
    return sorted(lab.run(host, "wg", "show", "all", "allowed-ips").splitlines())


def test_discover(node: AwxNode) -> None:
    job = node.run_job("discover", limit=PAIR)
    assert job.status == "successful", job.stdout
    assert job.artifacts["discover_subnets"] == ["10.77.90.0/24"]
    assert job.artifacts["discover_silent_hosts"] == []
    assert job.changed_counts == {}
    # The callback of the image. AWX has its own for the rest of the output.
    summary = job.stdout.partition("SUMMARY")[2]
    assert "unreachable" in summary and all(host in summary for host in PAIR.split(",")), job.stdout


def test_a_project_that_is_a_clone_of_the_repository(node: AwxNode, tmp_path: Path) -> None:
    clone = AwxNode(
        node.installed,
        node.inventory,
        node.ssh_key,
        tmp_path,
        program_directory=node.program_directory,
        host_keys=node.host_keys,
    )
    job = clone.run_job("show", limit="a2")
    assert job.status == "successful", job.stdout
    assert job.artifacts["gpumesh_clusters"] == []
    assert job.directory / "project" / "playbooks" / "show.yml" in job.source_files


#: How an inventory may have switched the checking off.
UNCHECKED = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"


@pytest.mark.parametrize("common_args", ["", UNCHECKED], ids=["plain", "switched off in the inventory"])
def test_hosts_whose_keys_are_not_known_are_refused(
    node: AwxNode, monkeypatch: pytest.MonkeyPatch, common_args: str
) -> None:
    inventory = copy.deepcopy(node.inventory)
    if common_args:
        inventory["all"]["vars"]["ansible_ssh_common_args"] = common_args
    monkeypatch.setattr(node, "inventory", inventory)
    job = node.run_job("create", limit=PAIR, host_keys="")
    assert job.status == "failed", job.stdout
    assert "Host key verification failed" in job.stdout
    assert set(re.findall(r"fatal: \[(\w+)\]: UNREACHABLE!", job.stdout)) == {"a1", "a2"}


def test_a_host_whose_key_has_changed_gets_nothing(node: AwxNode, lab: Lab) -> None:
    """a2 presents a host key that is not the known one."""
    known = [line for line in node.host_keys.splitlines() if not line.startswith("10.77.90.12 ")]
    (other,) = [line for line in known if line.startswith("10.77.90.13 ")]
    changed = "\n".join([*known, f"10.77.90.12 {other.split(' ', 1)[1]}", ""])
    job = node.run_job("site", limit=PAIR, host_keys=changed)
    assert job.status == "failed", job.stdout
    assert "cause: host_key_changed" in job.stdout
    for host in ("a1", "a2"):
        assert lab.run(host, "find", "/var/lib/gpumesh", "-type", "f", check=False) == ""


def test_site_in_check_mode_on_bare_hosts(node: AwxNode, lab: Lab) -> None:
    job = node.run_job("site", limit=PAIR, check=True)
    assert job.status == "successful", job.stdout
    for host in ("a1", "a2"):
        assert lab.run(host, "find", "/var/lib/gpumesh", "-type", "f", check=False) == ""


def test_create(node: AwxNode, lab: Lab) -> None:
    """Answers to a text, a textarea and a choice, as AWX passes them."""
    job = node.run_job(
        "create",
        limit=PAIR,
        cluster_subnet="10.77.90.11/24",
        cluster_manager="a1",
        cluster_machines="a1\na2\n",
        cluster_prove_subnet="true",
    )
    assert job.status == "successful", job.stdout
    written = record(lab, "a2")
    assert written["subnet"] == "10.77.90.0/24"
    assert [member["machine"] for member in written["members"]] == ["a1", "a2"]
    assert "jane" in json.dumps(written["history"])


def test_site_with_a_munge_key_of_a_credential(node: AwxNode, lab: Lab) -> None:
    job = node.run_job("site", limit=PAIR, credential=MUNGE)
    assert job.status == "successful", job.stdout
    assert job.artifacts["gpumesh_cluster"] == "gpumesh"
    assert job.artifacts["gpumesh_status"] == "pass"
    for host in ("a1", "a2"):
        assert lab.read(host, "/etc/munge/munge.key").decode() == SECRET


def test_a_layer_without_a_limit_leaves_a_host_alone_that_is_not_a_member(node: AwxNode, lab: Lab) -> None:
    lab.mark_time(("a3",))
    job = node.run_job("slurm", credential=MUNGE)
    assert job.status == "successful", job.stdout
    assert job.changed_counts == {}
    assert lab.find_changed_files("a3") == []


def test_show_with_a_limit_without_the_manager(node: AwxNode) -> None:
    job = node.run_job("show", limit="a2")
    assert job.status == "successful", job.stdout
    (cluster,) = job.artifacts["gpumesh_clusters"]
    assert "a1" in json.dumps(cluster["manager"])
    assert "a2" in json.dumps(cluster["members"])
    assert job.changed_counts == {}


@pytest.mark.parametrize("limit", ["", "a2"])
def test_the_job_after_a_failure_shows_the_clusters_and_fails(node: AwxNode, limit: str) -> None:
    """So the workflow fails, too: a failure that leads on to another job counts as handled."""
    job = node.run_job("awx/show_failure", limit=limit)
    assert job.status == "failed", job.stdout
    assert job.artifacts.keys() == {"gpumesh_clusters"}
    assert "a2" in job.stdout.partition("Fail the workflow")[0]
    assert "Fail the workflow" in job.stdout
    assert job.changed_counts == {}


@pytest.mark.parametrize("playbook", ["mesh", "storage", "slurm"])
def test_a_layer_with_a_limit(node: AwxNode, playbook: str) -> None:
    """The job does not include the manager."""
    job = node.run_job(playbook, limit="a2", credential=MUNGE if playbook == "slurm" else None)
    assert job.status == "successful", job.stdout
    assert job.changed_counts == {}


def test_check_answers_with_numbers_and_lists(node: AwxNode) -> None:
    job = node.run_job(
        "check", limit=PAIR, check_level="quick", check_job_timeout=300, check_collectives=["all_reduce", "broadcast"]
    )
    assert job.status == "successful", job.stdout
    assert job.artifacts["gpumesh_status"] == "pass"
    assert job.artifacts["gpumesh_failing"] in ({}, [])


def test_train_is_refused_where_no_volume_is_shared(node: AwxNode) -> None:
    """The scenario work covers a run that starts and finishes."""
    job = node.run_job("train", limit=PAIR, train_name="nano", train_command="python3 train.py", train_nodes=2)
    assert job.status == "failed", job.stdout
    assert "The cluster has no shared volume" in " ".join(job.stdout.split())
    assert job.changed_counts == {}


def test_runs_are_refused_where_no_volume_is_shared(node: AwxNode) -> None:
    """The scenario work covers runs that are listed."""
    job = node.run_job("runs", limit=PAIR)
    assert job.status == "failed", job.stdout
    assert "The cluster has no shared volume" in " ".join(job.stdout.split())
    assert job.changed_counts == {}


def test_containers_are_not_rebooted(node: AwxNode) -> None:
    """The scenario kernel covers machines that are rebooted."""
    job = node.run_job("reboot", limit=PAIR)
    assert job.status == "failed", job.stdout
    assert re.search(r"No machine can be rebooted\. a\d is a container", job.stdout), job.stdout
    assert job.changed_counts == {}


@pytest.mark.parametrize("answers", [{}, {"train_user": "root"}, {"train_privileged": "true"}])
def test_a_run_does_not_get_the_key_of_munge(node: AwxNode, answers: dict[str, str]) -> None:
    """Whoever may only launch the template chooses the command."""
    command = "sudo cat /etc/munge/munge.key"
    given = {"train_name": "key", "train_command": command, "train_directory": "/etc/munge"}
    launched = launch(node.load_survey(node.find_template("train")), {"train_user": "root"}, {**given, **answers})
    assert launched.ignored_fields == answers
    node.job_user = "root"
    try:
        job = node.run_job("train", limit=PAIR, **given)
    finally:
        node.job_user = "nobody"
    assert job.status == "failed" and "can become root on" in " ".join(job.stdout.split()), job.stdout
    assert job.changed_counts == {}


def test_session_is_refused_where_the_layer_is_off(node: AwxNode) -> None:
    """The scenario session covers containers that run."""
    roles = "[{name: main, image: debian}, {name: sub, replicas: 3, image: debian}]"
    job = node.run_job("session", limit=PAIR, session_name="demo", session_roles=roles, session_ports="8888 9000:80")
    assert job.status == "failed", job.stdout
    assert "There are no sessions on this cluster" in " ".join(job.stdout.split())
    assert job.changed_counts == {}


def test_tracking_is_refused_for_who_is_not_a_member(node: AwxNode) -> None:
    """The scenario tracking covers a server that runs and moves."""
    job = node.run_job("tracking", limit=PAIR, tracking_server="bad")
    assert job.status == "failed", job.stdout
    assert "tracking_server 'bad' is not among the members" in " ".join(job.stdout.split())
    assert job.changed_counts == {}


def test_join(node: AwxNode, lab: Lab) -> None:
    job = node.run_job("join", cluster_machines="a3\n", credential=MUNGE)
    assert job.status == "successful", job.stdout
    for host in ("a1", "a2", "a3"):
        assert [member["machine"] for member in record(lab, host)["members"]] == ["a1", "a2", "a3"]
    assert lab.run("a1", "srun", "-N3", "hostname").split() != []


@pytest.mark.parametrize(
    ("playbook", "hosts", "refusal"),
    [
        ("storage", ["a2"], "no other member confirms it"),
        ("mesh", ["a2", "a3"], "is a1 according to its record"),
    ],
)
def test_a_slice_strips_nobody(node: AwxNode, lab: Lab, playbook: str, hosts: list[str], refusal: str) -> None:
    """The slice does not contain the manager, so it is refused, and all others stay members."""
    before = record(lab, "a1")
    hosts_file, tunnels = lab.read("a2", "/etc/hosts"), allowed(lab, "a2")
    job = node.run_job(playbook, slice_hosts=hosts)
    assert job.status == "failed", job.stdout
    assert refusal in " ".join(job.stdout.split())
    assert job.changed_counts == {}
    assert record(lab, "a1") == before == record(lab, "a2")
    assert lab.read("a2", "/etc/hosts") == hosts_file
    assert allowed(lab, "a2") == tunnels
    assert len(tunnels) == 2


def test_the_inventory_of_the_records(node: AwxNode, tmp_path: Path) -> None:
    """As an inventory source of AWX, with a credential."""
    inputs = {
        "manager": "root@10.77.90.11",
        "private_key": (LAB / "id_ed25519").read_text(),
        "known_hosts": (LAB / "known_hosts").read_text(),
    }
    injected = node.inject_credential(AwxCredential("gpumesh manager", inputs), tmp_path)
    there = node.installed._replace(environment={**node.installed.environment, **injected.environment})
    source = node.installed.collection / "playbooks" / "awx" / "inventory" / "gpumesh.clusters.yml"
    done = there.run("ansible-inventory", "-i", str(source), "--list")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert sorted(listed["cluster"]["hosts"]) == ["a1", "a2", "a3"]
    assert listed["_meta"]["hostvars"]["a3"]["ansible_host"] == "10.77.90.13"


def test_remove(node: AwxNode, lab: Lab) -> None:
    job = node.run_job("remove", cluster_machine="a3", cluster_drain_timeout=0, credential=MUNGE)
    assert job.status == "successful", job.stdout
    assert [member["machine"] for member in record(lab, "a1")["members"]] == ["a1", "a2"]
    assert lab.run("a3", "find", "/var/lib/gpumesh", "-type", "f", check=False) == ""


def test_delete(node: AwxNode, lab: Lab) -> None:
    job = node.run_job("delete", limit=PAIR, cluster_force="false")
    assert job.status == "successful", job.stdout
    for host in ("a1", "a2"):
        assert lab.run(host, "find", "/var/lib/gpumesh", "-type", "f", check=False) == ""


def test_every_playbook_ran_from_the_archive(node: AwxNode) -> None:
    """Each was run by its full name, from the installed collection; no other copy can be found."""
    written = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    assert {job.playbook for job in node.jobs} == written | {"awx/show_failure"}
    for job in node.jobs:
        # The files that a check leaves there are its report, not playbooks.
        assert not list((job.directory / "project").rglob("*.yml"))
        assert job.source_files
        assert {path for path in job.source_files if not path.is_relative_to(node.installed.collection)} == set()
    version = subprocess.run(
        [node.program_directory / "ansible-playbook", "--version"], capture_output=True, check=True
    )
    assert version.stdout.decode().startswith(f"ansible-playbook [core {CORE}.")
    found = node.installed.run("ansible-galaxy", "collection", "list", "gpumesh.cluster", "--format", "json")
    assert list(json.loads(found.stdout)) == [str(node.installed.collection.parents[1])]


def test_no_role_reads_what_a_job_hands_on(node: AwxNode) -> None:
    """AWX makes each artifact an extra variable of the jobs after it."""
    names = {name for job in node.jobs for name in job.artifacts}
    assert {"discover_subnets", "discover_silent_hosts", "gpumesh_clusters", "gpumesh_status"} <= names
    for path in [*(ROOT / "roles").rglob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        text = path.read_text(encoding="utf-8")
        for name in names:
            assert not re.search(rf"\b{name}\b(?!:)(?!\))", text), f"{path} reads {name}"


def test_no_job_recorded_a_secret(node: AwxNode) -> None:
    """Events, standard output and artifacts: everything that AWX keeps of a job."""
    looked_at, key = 0, node.ssh_key.splitlines()[1]
    for artifacts in sorted(node.directory.glob("job*/artifacts")):
        for folder, _folders, files in os.walk(artifacts):
            for name in files:
                looked_at += 1
                text = Path(folder, name).read_text(errors="replace")
                assert SECRET not in text and key not in text, f"{folder}/{name}"
    assert looked_at > 100

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as AWX starts them, by ansible-runner, on hosts that are network namespaces with sshd.

The project is a clone of this repository. Only what writes nothing but the record: the namespaces share this machine's
files, and each has its own /var/lib/gpumesh. All playbooks run in the scenario `awx`, on hosts of their own.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from awx_jobs import Job, Node

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Farm, network
from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed

RECORDS = Path("/var/lib/gpumesh")
#: What a host does first: it gets records of its own.
OWN_RECORDS = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {RECORDS} && exec "$@"', "sh"]


def known_hosts(key: Path, hosts: str = "10.50.0.*") -> str:
    kind, public = key.read_text().split()[:2]
    return f"{hosts} {kind} {public}\n"


@pytest.fixture(scope="module")
def node(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("jobs")
    made = not RECORDS.exists()
    RECORDS.mkdir(mode=0o755, exist_ok=True)
    with network() as net:
        farm = Farm(net, 3, folder, wrapper=OWN_RECORDS)
        written = json.loads(farm.inventory().read_text())["all"]
        del written["vars"]["ansible_ssh_private_key_file"]
        # The jobs have to check the keys, and know them by a credential.
        del written["vars"]["ansible_ssh_common_args"]
        # Of what nobody answers, the inventory says how it is to be.
        written["vars"]["cluster_manager"] = "n2"
        inventory = {"all": {"vars": written["vars"], "children": {"cluster": {"hosts": written["hosts"]}}}}
        prefix = ["ip", "netns", "exec", farm.controller.namespace]
        keys = known_hosts(folder / "host_key.pub")
        yield Node(installed, inventory, (folder / "key").read_text(), folder, prefix, host_keys=keys)
    if made:
        RECORDS.rmdir()


def test_discover_with_a_limit(node: Node) -> None:
    job = node.run("discover", limit="n1,n2", discover_table_width=100)
    assert job.status == "successful", job.stdout
    assert job.artifacts["discover_subnets"] == ["10.50.0.0/24"]
    assert job.changed == {}
    assert set(job.stats["ok"]) == {"n1", "n2"}


def refused(job: Job) -> set[str]:
    """The hosts that a job does not talk to because of their keys."""
    if "Host key verification failed" not in job.stdout:
        return set()
    return set(re.findall(r"fatal: \[(\w+)\]: UNREACHABLE!", job.stdout))


#: How an inventory of somebody's may have switched the checking off.
UNCHECKED = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"


@pytest.mark.parametrize("common_args", ["", UNCHECKED], ids=["plain", "switched off in the inventory"])
def test_a_host_whose_key_is_not_known_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, common_args: str
) -> None:
    inventory = copy.deepcopy(node.inventory)
    if common_args:
        inventory["all"]["vars"]["ansible_ssh_common_args"] = common_args
    monkeypatch.setattr(node, "inventory", inventory)
    job = node.run("create", host_keys="")
    assert job.status == "failed", job.stdout
    assert refused(job) == {"n1", "n2", "n3"}


def test_a_host_whose_key_has_changed_is_refused(node: Node, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    right = known_hosts(node.folder / "host_key.pub", "10.50.0.2,10.50.0.3")
    job = node.run("create", host_keys=known_hosts(other.with_suffix(".pub"), "10.50.0.1") + right)
    assert job.status == "failed", job.stdout
    assert refused(job) == {"n1"}


def test_create_in_check_mode(node: Node) -> None:
    job = node.run("create", check=True)
    assert job.status == "successful", job.stdout
    assert node.run("show").artifacts["gpumesh_clusters"] == []


def test_create_with_the_answers_of_a_survey(node: Node) -> None:
    """A text, a textarea and choices, as AWX hands them on. Who manages is not answered, and the inventory says it."""
    job = node.run(
        "create",
        cluster_subnet="10.50.0.1/24",
        cluster_machines="n1\nn2\nn3\n",
        cluster_prove_subnet="true",
    )
    assert job.status == "successful", job.stdout
    again = node.run("create", cluster_machines="n1, n2 n3")
    assert again.status == "successful", again.stdout
    assert again.changed == {}


def test_a_limit_without_the_manager(node: Node) -> None:
    job = node.run("show", limit="n1", cluster_output="json")
    assert job.status == "successful", job.stdout
    (cluster,) = job.artifacts["gpumesh_clusters"]
    assert "n2" in json.dumps(cluster["manager"])
    assert "n3" in json.dumps(cluster["members"])


@pytest.mark.parametrize("limit", ["", "n1"])
def test_the_job_after_a_failure_shows_the_clusters_and_fails(node: Node, limit: str) -> None:
    """So the workflow fails, too: a failure that leads on to another job counts as handled."""
    job = node.run("awx/show_failure", limit=limit)
    assert job.status == "failed"
    assert "Fail the workflow" in job.stdout
    assert "n3" in job.stdout.partition("Fail the workflow")[0]
    assert job.changed == {}


def test_no_role_reads_what_a_job_hands_on(node: Node) -> None:
    """AWX makes each artifact an extra variable of the jobs after it."""
    names = {name for job in node.jobs for name in job.artifacts}
    assert names == {"discover_subnets", "discover_silent_hosts", "gpumesh_clusters"}
    for path in [*(ROOT / "roles").rglob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        text = path.read_text(encoding="utf-8")
        for name in names:
            assert not re.search(rf"\b{name}\b(?!:)(?!\))", text), f"{path} reads {name}"


def test_what_cannot_work_is_refused(node: Node) -> None:
    job = node.run("join", cluster_machines="nobody")
    assert job.status == "failed"
    assert "nobody" in job.stdout
    assert job.changed == {}


def test_no_job_recorded_the_key_of_the_machines(node: Node) -> None:
    recorded = [path for path in node.folder.glob("job*/artifacts/**/*") if path.is_file()]
    assert len(recorded) > 50
    secret = node.key.splitlines()[1]
    for path in recorded:
        assert secret not in path.read_text(errors="replace"), path

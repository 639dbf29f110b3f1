# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guides for a LAN and for the days after, typed as written, by a user who has the archive and three machines.

The commands are taken from the text of the guides. Only addresses differ, and the collection is installed from its
archive, since there is no Galaxy here. The tests run in the order of the file.
"""

from __future__ import annotations

import re

import pytest
from desk import GUIDES, Desk
from lab_hosts import Lab

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, install
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks, console_lines

MACHINES = ("gpu1", "gpu2", "gpu3")
#: The network of these machines.
OURS = "10.77.95."
#: Commands of these guides that are not typed here, and where they are tested.
ELSEWHERE = {
    # Scenario `life_cycle` loses its manager.
    (
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu1 -e cluster_new_manager=gpu2 "
        "-e cluster_manager_lost=true"
    ),
    # Scenario `default` does this on bare hosts. On those of a cluster, it is typed here.
    "ansible-playbook -i my-lan gpumesh.cluster.site --check --diff",
    # Scenario `security` removes a machine without a time limit.
    "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu3",
    # Scenario `wireguard` rotates the keys of a mesh; this cluster has no mesh.
    "ansible-playbook -i inventories/rented gpumesh.cluster.mesh -e mesh_rotate_keys=true",
    # Scenario `slurm` rotates munge's key, has accounts and limits, and runs the examples.
    "ansible-playbook -i inventories/lan gpumesh.cluster.slurm -e munge_rotate_key=true",
    "ansible-playbook -i inventories/lan gpumesh.cluster.slurm",
    "ansible cluster -i my-lan --become -m ansible.builtin.apt -a name=python3-torch",
    "scp -r gpumesh/examples admin@192.168.1.11:/mnt/shared/",
    "cd /mnt/shared/examples/ddp",
    "sbatch train.sbatch",
    # Scenario `check` covers the levels and the speed of volumes. Volumes served by a member are covered by `kernel`.
    "ansible-playbook -i inventories/lan gpumesh.cluster.check -e check_level=full",
    "ansible-playbook -i inventories/lan gpumesh.cluster.check -e check_level=full -e check_min_volume_read_mbps=500",
    "ansible-playbook -i inventories/lan gpumesh.cluster.storage",
    # Scenarios `default` and `tailscale` name other groups.
    "ansible-playbook -i inventories/lan gpumesh.cluster.site -e cluster_hosts=lab_b",
    # The fixture installs the archive. That a checkout gives the same is a test of publication.
    "python3 -m venv ~/ansible",
    ". ~/ansible/bin/activate",
    "pip install 'ansible-core>=2.18,<2.22' paramiko netaddr",
    "git clone https://github.com/gpumesh/gpumesh.cluster gpumesh",
    "git -C gpumesh pull",
    "ansible-galaxy collection install --force ./gpumesh",
}


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab("molecule-guides")


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory, lab: Lab) -> Desk:
    made = Desk(install(tmp_path_factory.mktemp("guides")), lab, OURS)
    for block in blocks(GUIDES / "lan.md"):
        if block.file:
            made.write(block.file, without_volumes(block.text))
    for path in sorted((ROOT / "inventories" / "lan").rglob("*.yml")):
        made.write(str(path.relative_to(ROOT)), without_volumes(path.read_text()))
    return made


def without_volumes(text: str) -> str:
    """These machines are containers, whose kernel may have no NFS: scenario `kernel` covers the volumes."""
    return re.sub(r"^storage_volumes:\n(?: .*\n)+", "", text, flags=re.MULTILINE)


def test_a_lan_in_ten_minutes(desk: Desk) -> None:
    found = desk.play("lan", "ansible-playbook -i my-lan gpumesh.cluster.discover")
    assert "10.77.95.0/24" in found.output
    desk.play("lan", "ansible-playbook -i my-lan gpumesh.cluster.site")
    assert sorted(desk.on("gpu2", "lan", "srun -N3 hostname").split()) == list(MACHINES)
    assert (desk.installed.folder / "gpumesh-report").is_dir()


def test_see_what_is_there_and_prove_it(desk: Desk) -> None:
    shown = desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.show")
    assert all(machine in shown.output for machine in MACHINES)
    listed = desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.show -e show_output=json")
    assert listed.shown[0]["machines"] == list(MACHINES)
    for line in (
        "ansible-playbook -i inventories/lan gpumesh.cluster.check",
        "ansible-playbook -i inventories/lan gpumesh.cluster.check --tags reachability",
    ):
        assert set(desk.play("day2", line).changed.values()) == {0}


def test_look_for_troubles(desk: Desk) -> None:
    desk.play(
        "troubleshooting",
        "ansible-playbook -i inventories/lan gpumesh.cluster.discover -e discover_subnet=192.168.1.0/24",
    )
    listed = desk.play("troubleshooting", "ansible cluster -i inventories/lan --list-hosts")
    assert set(MACHINES) <= set(listed.output.split())
    desk.lab.run("gpu1", "scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=tests")
    desk.on("gpu1", "troubleshooting", "scontrol update NodeName=gpu2 State=RESUME")
    desk.lab.wait("gpu2 is idle", lambda: desk.lab.run("gpu1", "sinfo", "-hn", "gpu2", "-o", "%T").strip() == "idle")
    # The member joins again without having lost anything.
    desk.play("troubleshooting", "ansible-playbook -i inventories/lan gpumesh.cluster.join -e cluster_machines=gpu2")


def test_remove_and_join(desk: Desk) -> None:
    desk.play(
        "day2",
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu3 -e cluster_drain_timeout=3600",
    )
    assert desk.members("gpu1") == ["gpu1", "gpu2"]
    # Distrusting it afterwards replaces munge's key on the remaining members.
    key = desk.lab.run("gpu1", "sha256sum", "/etc/munge/munge.key")
    desk.play(
        "day2",
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu3 -e cluster_untrusted=true",
    )
    changed = desk.lab.run("gpu1", "sha256sum", "/etc/munge/munge.key")
    assert changed != key
    assert desk.lab.run("gpu2", "sha256sum", "/etc/munge/munge.key") == changed
    desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.discover")
    desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.join -e cluster_machines=gpu3")
    assert desk.members("gpu3") == list(MACHINES)


def test_keep_jobs_off_a_machine(desk: Desk) -> None:
    desk.on("gpu1", "day2", 'scontrol update NodeName=gpu1 State=DRAIN Reason="no jobs here"')
    # The check does not take it for a fault.
    desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.check")
    assert desk.lab.run("gpu1", "sinfo", "-hn", "gpu1", "-o", "%T").strip() == "drained"
    desk.lab.run("gpu1", "scontrol", "update", "NodeName=gpu1", "State=RESUME")
    desk.lab.wait("gpu1 is idle", lambda: desk.lab.run("gpu1", "sinfo", "-hn", "gpu1", "-o", "%T").strip() == "idle")


def test_add_a_user(desk: Desk) -> None:
    desk.play(
        "day2",
        'ansible cluster -i inventories/lan --become -m ansible.builtin.user -a "name=alice uid=2001 shell=/bin/bash"',
    )
    assert {desk.lab.run(machine, "id", "-u", "alice").strip() for machine in MACHINES} == {"2001"}
    ran = desk.lab.run("gpu1", "su", "-", "alice", "-c", "srun -N3 --immediate=60 id -un")
    assert ran.split() == ["alice"] * 3


def test_back_up_the_accounting_and_restore_it(desk: Desk) -> None:
    def history() -> str:
        return desk.lab.run("gpu1", "sacct", "--allusers", "--noheader", "--parsable2", "--format=JobID,User,State")

    def root(line: str) -> None:
        desk.type("day2", line)
        desk.lab.run("gpu1", "sh", "-c", f"cd /root && {line}")

    desk.lab.wait("the job of alice is in the accounting", lambda: "|alice|COMPLETED" in history())
    before = [line for line in history().splitlines() if "|alice|" in line]
    root("(umask 077; mariadb-dump slurm_acct_db > slurm_acct_db.sql)")
    root("systemctl stop slurmdbd")
    root("mariadb slurm_acct_db < slurm_acct_db.sql")
    root("systemctl start slurmdbd")
    desk.lab.wait("slurmdbd answers", lambda: desk.lab.run("gpu1", "sacct", "--noheader", check=False) != "")
    assert set(before) <= set(history().splitlines())


def test_upgrade(desk: Desk) -> None:
    desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.site --check --diff")
    again = desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.site")
    assert set(again.changed.values()) == {0}


def test_hand_over_and_end(desk: Desk) -> None:
    desk.play(
        "day2",
        "ansible-playbook -i inventories/lan gpumesh.cluster.remove -e cluster_machine=gpu1 -e cluster_new_manager=gpu2",
    )
    assert desk.members("gpu3") == ["gpu2", "gpu3"]
    assert sorted(desk.lab.run("gpu3", "srun", "-N2", "--immediate=60", "hostname").split()) == ["gpu2", "gpu3"]
    desk.play("day2", "ansible-playbook -i inventories/lan gpumesh.cluster.delete")
    for machine in MACHINES:
        assert desk.lab.run(machine, "find", "/var/lib/gpumesh", "-type", "f", check=False) == ""


def test_nothing_that_the_guides_say_was_left_out(desk: Desk) -> None:
    said = {
        line for name in ("lan", "day2", "storage", "troubleshooting") for line in console_lines(GUIDES / f"{name}.md")
    }
    assert said - desk.typed - ELSEWHERE == set()

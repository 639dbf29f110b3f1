# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of each play of the playbooks: the first one's are the inventory's, all later ones' are the members."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun, run_ansible
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays
from ansible_collections.gpumesh.cluster.tests.support.task_files import flatten_tasks, load_tasks, roles_of

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
GROUP = "lookup('gpumesh.cluster.play_hosts', cluster_hosts | default('cluster')"
HANDED_ON = "{{ hostvars['localhost'].cluster_play_%s | default([], true) or '!all' }}"


def plays_of(path: Path) -> list[dict[str, Any]]:
    """The plays, with imported playbooks replaced by theirs."""
    found: list[dict[str, Any]] = []
    for play in yaml.safe_load(path.read_text(encoding="utf-8")):
        imported = play.get("ansible.builtin.import_playbook")
        found += plays_of(path.parent / imported) if imported else [play]
    return found


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yml")), ids=lambda path: path.stem)
def test_only_the_first_play_sees_hosts_that_are_not_members(path: Path) -> None:
    first, *later = plays_of(path)
    assert GROUP in first["hosts"]
    allowed = {
        HANDED_ON % who
        for who in ("members", "nodes", "leaving", "reboots", "former_manager", "slurm_hosts", "key_rotation")
    }
    assert {play["hosts"] for play in later} <= allowed


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yml")), ids=lambda path: path.stem)
def test_what_is_to_run_once_does_so_whatever_strategy_is_configured(path: Path) -> None:
    """With `free`, Ansible runs it for each host: each would generate a new key."""
    assert {play.get("strategy") for play in plays_of(path)} == {"ansible.builtin.linear"}


#: Roles of which a member without an interface in the tailnet gets nothing.
CONNECTED_ONLY = {"storage", "munge", "slurm", "job_environment", "session", "train", "tracking"}
USERSPACE_ONLY = "in cluster_userspace_only | default([])"


def test_the_layers_that_connect_are_those_of_the_list() -> None:
    assert {layer.name for layer in registry.LAYERS if layer.connects} == CONNECTED_ONLY


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yml")), ids=lambda path: path.stem)
def test_members_that_cannot_connect_get_no_layer_that_connects(path: Path) -> None:
    for play in plays_of(path):
        skipped = play["hosts"] in {HANDED_ON % who for who in ("former_manager", "nodes", "slurm_hosts")}
        for step in [*play.get("pre_tasks", []), *play.get("roles", []), *flatten_tasks(play.get("tasks", []))]:
            ends = "ansible.builtin.meta" in step and USERSPACE_ONLY in step.get("when", "")
            skipped = skipped or ends
            call = step.get("ansible.builtin.import_role") or step.get("ansible.builtin.include_role") or {}
            roles = [step["role"].rpartition(".")[2]] if "role" in step else roles_of(step)
            if CONNECTED_ONLY & set(roles) and call.get("tasks_from") not in ("run", "runs", "leave", "hand_over"):
                # With the condition at the loop itself, Ansible would lose the order of the layers.
                condition = call.get("apply", {}).get("when", "") if "loop" in step else step.get("when", "")
                assert skipped or USERSPACE_ONLY in condition, f"{play['name']}: {roles}"


def steps_of(play: dict[str, Any]) -> list[str]:
    """The roles of a play in their order, and `end_host` where hosts are skipped."""
    found = []
    for step in [*play.get("pre_tasks", []), *play.get("roles", []), *flatten_tasks(play.get("tasks", []))]:
        if "ansible.builtin.meta" in step:
            found.append(step["ansible.builtin.meta"])
        found += [step["role"].rpartition(".")[2]] if "role" in step else roles_of(step)
    return found


@pytest.mark.parametrize("playbook", ["site", "join", "remove"])
def test_home_directories_on_a_volume_are_mounted_before_users_get_keys_in_them(playbook: str) -> None:
    (steps,) = (steps for play in plays_of(PLAYBOOKS / f"{playbook}.yml") if "ssh_trust" in (steps := steps_of(play)))
    before = steps[: steps.index("ssh_trust")]
    assert "storage" in before
    # Members without volumes have keys too.
    assert "end_host" not in before


def test_the_check_of_a_site_sees_members_that_it_does_not_ask() -> None:
    """The report names them, and nobody has to be able to log in to them."""
    plays = plays_of(PLAYBOOKS / "site.yml")
    assert [play["hosts"] for play in plays if "check" in steps_of(play)] == [HANDED_ON % "members"]


INVENTORY = "[cluster]\nn1 ansible_connection=local\n[empty]\n[other]\nn2\n"


def refusal(playbook: str, folder: Path, *options: str, inventory: str = INVENTORY) -> str:
    """Why a playbook does nothing."""
    hosts = folder / "hosts"
    hosts.write_text(inventory, encoding="utf-8")
    run = run_ansible("ansible-playbook", "-i", str(hosts), f"gpumesh.cluster.{playbook}", *options)
    assert run.exit_status not in (0, 2), run.output
    assert "TASK" not in run.output
    return run.flat_output


@pytest.mark.parametrize("playbook", sorted(path.stem for path in PLAYBOOKS.glob("*.yml")))
def test_a_playbook_that_would_do_nothing_fails(tmp_path: Path, playbook: str) -> None:
    """For Ansible, a run without hosts is a success, such as of a check every night whose inventory broke."""
    said = refusal(playbook, tmp_path, "-e", "cluster_hosts=clsuter")
    assert "Nothing was done: there are no hosts 'clsuter'" in said
    assert "groups with hosts: cluster, other" in said


@pytest.mark.parametrize(
    ("options", "inventory", "said"),
    [
        (["-e", "cluster_hosts=empty"], INVENTORY, "there are no hosts 'empty'"),
        ([], "cluster: [", "has no hosts, or could not be read"),
        ([], "", "has no hosts, or could not be read"),
        (["--limit", "n2"], INVENTORY, "the limit 'n2' excludes all hosts of 'cluster' (n1)."),
        (["-e", "cluster_without=n1"], INVENTORY, "there are no hosts 'cluster,!n1'"),
        (["-e", "cluster_without=n9"], INVENTORY, "cluster_without contains n9, which is not in the inventory"),
        (["-e", "cluster_without=@/etc/hostname"], INVENTORY, "'@/etc/hostname'"),
        (["--tags", "slurm,slrum"], INVENTORY, "and --tags slrum excludes what it needs"),
        (["--skip-tags", "always"], INVENTORY, "and --skip-tags always excludes what it needs"),
    ],
)
def test_a_check_that_checks_nothing_is_no_success(
    tmp_path: Path, options: list[str], inventory: str, said: str
) -> None:
    assert said in refusal("check", tmp_path, *options, inventory=inventory)


def test_an_inventory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    run = run_ansible("ansible-playbook", "-i", f"{tmp_path}/nowhere", "gpumesh.cluster.check")
    assert run.exit_status not in (0, 2)
    assert f"the inventory ({tmp_path}/nowhere) has no hosts" in run.flat_output


def test_a_machine_is_left_out_as_by_a_limit(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(INVENTORY, encoding="utf-8")
    given = ["-e", "cluster_hosts=cluster,other", "-e", "cluster_without=n1", "--list-hosts"]
    run = run_ansible("ansible-playbook", "-i", str(tmp_path / "hosts"), "gpumesh.cluster.show", *given)
    assert run.exit_status == 0, run.output
    assert "n2" in run.flat_output and "n1" not in run.flat_output.replace("!n1", ""), run.output


def test_site_has_no_tags(tmp_path: Path) -> None:
    assert "the playbook has no tags, and --tags slurm excludes" in refusal("site", tmp_path, "--tags", "slurm")


def test_the_tags_of_a_check_are_those_of_its_role() -> None:
    text = (PLAYBOOKS / "check.yml").read_text(encoding="utf-8")
    given = re.search(r"tags=\[(.*?)\]", text)
    assert given
    role = PLAYBOOKS.parent / "roles" / "check" / "tasks" / "main.yml"
    tags = {tag for task in load_tasks(role) for tag in task.get("tags", [])}
    assert set(re.findall(r"\w+", given[1])) == tags - {"always"}


@pytest.mark.parametrize("options", [["--tags", "web"], ["--limit", "n2"]])
def test_a_playbook_that_imports_another_may_leave_it_out(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "hosts").write_text(INVENTORY, encoding="utf-8")
    (tmp_path / "all.yml").write_text(
        "- import_playbook: gpumesh.cluster.show\n"
        "- {hosts: other, connection: local, gather_facts: false, tags: [web], tasks: [{debug: {msg: reached}}]}\n",
        encoding="utf-8",
    )
    run = run_ansible("ansible-playbook", "-i", str(tmp_path / "hosts"), str(tmp_path / "all.yml"), *options)
    assert run.exit_status == 0, run.output
    assert "reached" in run.output


def test_tasks_are_listed_without_hosts() -> None:
    run = run_ansible("ansible-playbook", "-i", "localhost,", "--list-tasks", "gpumesh.cluster.show")
    assert run.exit_status == 0, run.output


def handed_on(folder: Path, *clusters: list[str]) -> AnsibleRun:
    """Register clusters with these members, one after the other, on the hosts a to d, each followed by a play."""
    plays: list[dict[str, Any]] = []
    for members in clusters:
        entries = [
            {"machine": machine, "address": f"10.77.0.{number}", "interface": "eth0"}
            for number, machine in enumerate(members, start=1)
        ]
        draft = plan.create("0" * 32, "lab", "10.77.0.0/24", members[0], {}, entries, STAMP)
        record = plan.commit(draft, STAMP)
        only = {"name": "gpumesh.cluster.cluster", "tasks_from": "members_only"}
        plays += [
            {
                "hosts": "all",
                "tasks": [
                    {"ansible.builtin.set_fact": {"cluster_record": record}},
                    {"ansible.builtin.include_role": only},
                    {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on."}},
                ],
            },
            {
                "hosts": HANDED_ON % "members",
                "tasks": [
                    {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} of {{ ansible_play_hosts_all }}."}}
                ],
            },
        ]
    hosts: dict[str, dict[str, Any]] = {name: {} for name in "abcd"}
    return run_plays(folder, hosts, plays, hosts_by_group={"gpumesh_members": ["d"]})


def test_later_plays_are_for_the_members_alone(tmp_path: Path) -> None:
    run = handed_on(tmp_path, ["c", "a", "elsewhere"])
    assert run.exit_status == 0, run.output
    assert [one for one in "abcd" if f"{one} goes on." in run.output] == ["a", "c"]
    assert [one for one in "abcd" if f"{one} of ['a', 'c']." in run.output] == ["a", "c"]
    assert run.changed == dict.fromkeys(run.changed, 0)


def test_a_cluster_without_a_member_in_the_run_has_no_later_plays(tmp_path: Path) -> None:
    run = handed_on(tmp_path, ["elsewhere"])
    assert run.exit_status == 0, run.output
    assert "goes on" not in run.output
    assert "skipping: no hosts matched" in run.output
    assert "WARNING" not in run.output


def test_a_cluster_that_was_set_up_before_has_no_part_in_the_next_one(tmp_path: Path) -> None:
    run = handed_on(tmp_path, ["a", "b"], ["c"])
    assert run.exit_status == 0, run.output
    assert [one for one in "abcd" if f"{one} of ['a', 'b']." in run.output] == ["a", "b"]
    assert [one for one in "abcd" if f"{one} of ['c']." in run.output] == ["c"]


def test_jobs_are_moved_off_a_member_after_all_that_may_be_refused() -> None:
    """A join that fails must leave its node in service."""
    names = [task["name"] for task in load_tasks(PLAYBOOKS.parent / "roles" / "cluster" / "tasks" / "admit.yml")]
    assert names[-1] == "Drain the members that are to run no jobs"

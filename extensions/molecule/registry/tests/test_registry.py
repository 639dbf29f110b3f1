# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of the record on real hosts. Each test continues from the state that the previous one left."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from lab_commands import run_command
from lab_hosts import flatten_output

ROOT = Path(__file__).resolve().parents[4]
INVENTORY = ROOT / ".lab" / "molecule-registry" / "hosts.yml"
RECORD = "/var/lib/gpumesh/clusters/lab.json"


def play(tasks_from: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the role's entry points on the hosts, as the playbooks do, without the layers.

    The subnet was verified in converge.yml, and is verified again only where a test requires it.
    """
    tasks = [
        {**role("cluster", "register" if name == "join" else name), "vars": {"cluster_join_only": name == "join"}}
        for name in tasks_from.split("+")
    ]
    return play_tasks(tasks, *arguments)


def role(name: str, tasks_from: str = "main") -> dict[str, Any]:
    included = {"name": f"gpumesh.cluster.{name}", "tasks_from": tasks_from}
    return {"name": tasks_from, "ansible.builtin.include_role": included}


def play_tasks(tasks: list[dict[str, Any]], *arguments: str) -> subprocess.CompletedProcess[str]:
    text = json.dumps(
        [{"name": "Test", "hosts": "cluster", "become": True, "gather_facts": False, "tasks": tasks}],
    )
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
    path = folder / "step.yml"
    path.write_text(text)
    return run("ansible-playbook", str(path), "-e", "cluster_name=lab", "-e", "cluster_prove_subnet=false", *arguments)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    plain = {"ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"}
    environment = {**os.environ, **plain, "ANSIBLE_SSH_TIMEOUT": "30", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    return subprocess.run(
        [*argv[:1], "-i", str(INVENTORY), *argv[1:]], capture_output=True, text=True, env=environment, check=False
    )


def on(host: str, command: str) -> str:
    return run_command(f"gpumesh-molecule-registry-{host}", ["sh", "-c", command], 600).stdout.decode()


def docker(*argv: str) -> None:
    subprocess.run(["docker", *argv], capture_output=True, check=True)


def record_of(host: str) -> dict[str, Any] | None:
    text = on(host, f"cat {RECORD}")
    return json.loads(text) if text else None


def members_of(host: str) -> list[str]:
    record = record_of(host)
    return [member["machine"] for member in record["members"]] if record else []


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode != 0, done.stdout
    assert said in flatten_output(done.stdout), done.stdout


def ends_well(done: subprocess.CompletedProcess[str], changed: bool | None = None) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    if changed is not None:
        recap = done.stdout[done.stdout.index("PLAY RECAP") :]
        counts = [int(word.partition("=")[2]) for word in recap.split() if word.startswith("changed=")]
        assert any(counts) == changed, recap
    return done.stdout


def test_created() -> None:
    record = record_of("r1")
    assert record is not None
    assert (record["generation"], record["manager"], members_of("r1")) == (1, "r1", ["r1", "r2"])
    assert record == record_of("r2")
    assert record_of("r3") is None
    assert on("r1", f"stat -c '%a %U' {RECORD} /var/lib/gpumesh/clusters").split() == ["600", "root", "700", "root"]


def test_what_is_refused_changes_nothing() -> None:
    """One refusal of each decision: unit tests have the others."""
    before = record_of("r1")
    refused(play("join", "-e", "cluster_machines=away"), "away: 10.79.61.14 is not in 10.79.60.0/24")
    needed = play("join", "-e", json.dumps({"cluster_machines": "r3", "ssh_trust_users": ["root", "alcie"]}))
    refused(needed, "Nothing has been changed. ssh_trust_users: there is no user alcie.")
    refused(play("remove", "-e", "cluster_machine=r1"), "'r1' is the manager of cluster 'lab'")
    assert record_of("r1") == before
    assert on("away", "ls -A /var/lib/gpumesh") == on("r3", "ls -A /var/lib/gpumesh/clusters") == ""


def test_a_subnet_that_packets_do_not_pass_is_refused() -> None:
    on("r3", "ip route add blackhole 10.79.60.12/32")
    try:
        proven = ("-e", "cluster_machines=r3", "-e", "cluster_prove_subnet=true", "-l", "r1,r2,r3")
        refused(play("join", *proven), "4 of 6 pairs reach each other, 2 fail")
        assert members_of("r1") == ["r1", "r2"]
    finally:
        on("r3", "ip route del blackhole 10.79.60.12/32")


def test_check_mode_says_what_would_be_and_does_nothing() -> None:
    ends_well(play("join", "-e", "cluster_machines=r3", "-l", "r3", "--check"), changed=True)
    assert (members_of("r1"), record_of("r3")) == (["r1", "r2"], None)


def test_a_machine_joins_in_a_run_that_is_limited_to_it() -> None:
    ends_well(play("join", "-e", "cluster_machines=r3", "-l", "r3"), changed=True)
    assert members_of("r1") == members_of("r3") == ["r1", "r2", "r3"]
    assert members_of("r2") == ["r1", "r2"], "a host that was not in the run must not change"
    text = ends_well(run("ansible-playbook", str(ROOT / "playbooks" / "show.yml")))
    assert "r2 has an outdated copy of the record: generation 1 of 2." in text
    ends_well(play("join", "-e", "cluster_machines=r3"), changed=True)
    ends_well(play("join", "-e", "cluster_machines=r3"), changed=False)
    assert members_of("r2") == ["r1", "r2", "r3"]


def test_another_name_of_a_member_is_refused_in_a_run_that_is_limited_to_it() -> None:
    path = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "again.yml"
    path.write_text(json.dumps({"cluster": {"hosts": {"again": {"ansible_host": "10.79.60.12"}}}}))
    again = ("-i", str(path), "-e", "cluster_machines=again", "-l", "again")
    refused(play("join", *again), "again (10.79.60.12) has the address 10.79.60.12 of r2 in cluster 'lab'")
    assert members_of("r1") == members_of("r2") == ["r1", "r2", "r3"]


def test_a_host_that_gets_a_newer_record_meanwhile_keeps_what_it_has_of_a_layer() -> None:
    """As if another run had removed a machine after this one compared the record: here the layer writes /etc/hosts."""
    newer = f'cp -p {RECORD} /root/sound && sed -i \'s/"generation": 2,/"generation": 3,/\' {RECORD}'
    meanwhile = {"name": "Meanwhile", "ansible.builtin.shell": newer, "when": "inventory_hostname == 'r2'"}
    members = ("-l", "r1,r2,r3")
    before = on("r2", "cat /etc/hosts")
    try:
        done = play_tasks([role("cluster", "load"), meanwhile, role("names")], *members)
        refused(done, "r2 has generation 3 of the record of cluster 'lab' by now, and this run applies generation 2")
        refused(done, "Run it again.")
        assert on("r2", "cat /etc/hosts") == before
        assert "10.79.60.12 r2" in on("r1", "cat /etc/hosts")
    finally:
        on("r2", f"mv /root/sound {RECORD}")
    ends_well(play_tasks([role("cluster", "load"), role("names")], *members), changed=True)
    assert "10.79.60.11 r1" in on("r2", "cat /etc/hosts")
    ends_well(play_tasks([role("cluster", "load"), role("names", "leave")], *members), changed=True)


def test_an_older_version_changes_nothing_and_shows_the_cluster() -> None:
    noted = record_of("r1")
    assert noted is not None
    version = noted["collection_version"]

    def note(old: str, new: str) -> None:
        for host in ("r1", "r2", "r3"):
            on(host, f'sed -i \'s/"collection_version": "{old}"/"collection_version": "{new}"/\' {RECORD}')

    note(version, "99.0.0")
    try:
        for entry in ("load", "register", "delete"):
            refused(play(entry, "-l", "r1,r2,r3"), "Cluster 'lab' was last changed by gpumesh.cluster 99.0.0")
        text = ends_well(run("ansible-playbook", str(ROOT / "playbooks" / "show.yml")), changed=False)
        assert "by gpumesh.cluster 99.0.0" in text and "is newer than this version" in " ".join(text.split())
        assert [(record or {}).get("collection_version") for record in map(record_of, ("r1", "r2", "r3"))] == [
            "99.0.0"
        ] * 3
    finally:
        note("99.0.0", version)


def test_a_damaged_record_is_refused_and_left() -> None:
    on("r1", f"cp -p {RECORD} /root/sound; truncate -s 100 {RECORD}")
    done = play("register", "-l", "r1,r2,r3")
    refused(done, f"r1: the record {RECORD} is invalid: it is not JSON")
    refused(done, f"{RECORD}.good")
    assert on("r1", f"stat -c %s {RECORD}").strip() == "100"
    on("r1", f"mv /root/sound {RECORD}")


def test_a_lost_manager_is_followed_from_a_copy() -> None:
    docker("stop", "-t", "1", "gpumesh-molecule-registry-r1")
    try:
        play("remove", "-e", "cluster_machine=r1", "-e", "cluster_new_manager=r2", "-e", "cluster_manager_lost=true")
        assert members_of("r2") == members_of("r3") == ["r2", "r3"]
    finally:
        docker("start", "gpumesh-molecule-registry-r1")
        ends_well(run("ansible", "r1", "-m", "ansible.builtin.wait_for_connection", "-a", "timeout=600"))
    assert members_of("r1") == ["r1", "r2", "r3"]


def test_two_managers_that_went_on_alone_are_not_guessed_about() -> None:
    # The former manager, queried directly, still considers itself the manager.
    alone = json.dumps({"cluster": "lab", "members": [{"machine": "r3", "gpus": 1}]})
    ends_well(run("ansible", "r1", "-m", "gpumesh.cluster.cluster_member", "-a", alone))
    refused(play("load", "-e", "cluster_force=true"), "contradict")
    assert "contradict" in ends_well(run("ansible-playbook", str(ROOT / "playbooks" / "show.yml")))
    on("r1", "rm -r /var/lib/gpumesh")


def test_an_inventory_of_the_records() -> None:
    hosts = json.loads(run("ansible-inventory", "--list").stdout)["_meta"]["hostvars"]
    variables = hosts["r2"]
    source = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "lab.clusters.yml"
    source.write_text(
        json.dumps(
            {
                "plugin": "gpumesh.cluster.clusters",
                "host": f"root@{variables['ansible_host']}",
                "private_key_file": variables["ansible_ssh_private_key_file"],
                "ssh_common_args": variables["ansible_ssh_common_args"],
            }
        )
    )
    done = subprocess.run(["ansible-inventory", "-i", source, "--list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lab_members"]["hosts"], found["lab_manager"]["hosts"]) == (["r2", "r3"], ["r2"])


def test_the_end_leaves_nothing() -> None:
    refused(play("delete", "-l", "r3"), "r2 cannot be cleaned up")
    ends_well(play("delete+forget", "--check"), changed=True)
    assert members_of("r3") == ["r2", "r3"]
    ends_well(play("delete+forget"), changed=True)
    for host in ("r1", "r2", "r3"):
        left = on(host, "find / -xdev -name '*gpumesh*' -not -name 'gpumesh-lab-*'")
        assert left == "", f"{host}: {left}"
    ends_well(play("delete"), changed=False)

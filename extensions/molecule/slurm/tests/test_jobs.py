# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What jobs find: nodes and devices, accounting, and their environment. A second run changes nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from lab_hosts import Lab
from slurm_members import (
    ADDRESSES,
    LAB,
    MACHINES,
    SLURM_PLAYBOOK,
    TRAINING_MACHINES,
    WAIT_TIMEOUT,
    find_daemon_pids,
    find_listeners,
    query_rest,
    query_rest_without_tls,
    read_job,
    read_node_states,
    wait_until_idle,
    write_file,
)

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest
from ansible_collections.gpumesh.cluster.tests.support.certificates import age_certificate

#: Writes what a task finds to a file that a test can read.
DUMP = """
import json, os
hosts = open(os.environ["GPUMESH_HOSTFILE"]).read()
with open("/root/task.json", "w") as stream:
    json.dump({"environment": dict(os.environ), "hosts": hosts}, stream)
"""
#: Prints rank 0 and the nodes as each part of a job sees them: the script, its tasks, a login on each node.
ASK_ALL = """#!/bin/bash
echo script $MASTER_ADDR $GPUMESH_NODE_IPS
srun sh -c 'echo task:$SLURM_PROCID:$(hostname) $MASTER_ADDR $GPUMESH_NODE_IPS'
srun env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID" bash -lc 'echo login $MASTER_ADDR $GPUMESH_NODE_IPS'
srun python3 -c 'from os import environ as e; print("python", e["MASTER_ADDR"], ",".join(e["DSTACK_NODES_IPS"].split()))'
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return LAB


# --- Nodes, devices, accounts


@pytest.mark.release
def test_every_member_is_a_node_with_what_it_has(lab: Lab) -> None:
    wait_until_idle(lab)
    shown = lab.run("s3", "scontrol", "--oneliner", "show", "nodes").splitlines()
    nodes = {
        line.split()[0].partition("=")[2]: dict(w.split("=", 1) for w in line.split() if "=" in w) for line in shown
    }
    assert {name: node["NodeAddr"] for name, node in nodes.items()} == ADDRESSES
    assert {name: node.get("Gres", "(null)") for name, node in nodes.items()} == {
        "s1": "(null)",
        "s2": "gpu:2",
        "s3": "nic:2",
        "s4": "gpu:fake:1",
    }
    for machine, node in nodes.items():
        assert node["CPUTot"] == lab.run(machine, "nproc").strip()
        assert int(node["RealMemory"]) > 0


@pytest.mark.release
def test_the_accounting_knows_a_job_of_all_nodes(lab: Lab) -> None:
    names = lab.run("s4", "srun", "--nodes=4", "--job-name=everywhere", "hostname", timeout=WAIT_TIMEOUT).split()
    assert sorted(names) == list(MACHINES)
    asked = ("sacct", "--noheader", "--parsable2", "--allocations", "--name=everywhere", "--starttime=now-1hours")
    wanted = ["slurm|cluster|COMPLETED|0:0|4"]
    lab.wait_until(
        "sacct shows the job",
        lambda: lab.run("s2", *asked, "--format=Cluster,Partition,State,ExitCode,NNodes").splitlines()[-1:] == wanted,
        WAIT_TIMEOUT,
    )


@pytest.mark.release
def test_a_job_of_an_account_with_a_quality_of_service(lab: Lab) -> None:
    asked = ("--account=research", "--qos=short", "--time=10", "--job-name=accounted")
    lab.run("s3", "srun", *asked, "--nodes=1", "true", timeout=WAIT_TIMEOUT)
    shown = ("sacct", "--noheader", "--parsable2", "--allocations", "--name=accounted", "--starttime=now-1hours")
    lab.wait_until(
        "sacct shows the account",
        lambda: lab.run("s1", *shown, "--format=Account,QOS,State").split()[-1:] == ["research|short|COMPLETED"],
        WAIT_TIMEOUT,
    )


# --- The REST interface


def modes(lab: Lab, *paths: str) -> list[str]:
    return lab.run("s1", "stat", "--format=%a %U", *paths).splitlines()


@pytest.mark.release
def test_the_rest_interface_answers_who_has_a_token_and_verifies_it(lab: Lab) -> None:
    for client in ("s1", "s3", "s4"):
        assert query_rest(lab, client, "s1") == ["s1 s2 s3 s4", "refused", "not verified"], client
    assert modes(
        lab, "/var/lib/slurm/slurmctld/jwt_hs256.key", server_certificate.current_pair(rest.PROXY_DIRECTORY).key_path
    ) == [
        "400 slurm",
        "600 root",
    ]


@pytest.mark.release
def test_nobody_listens_for_tokens_without_tls(lab: Lab) -> None:
    assert set(find_listeners(lab)) == {"stunnel"}
    assert query_rest_without_tls(lab, f"{ADDRESSES['s1']}:6820") == "no answer"
    assert query_rest_without_tls(lab, rest.SOCKET_PATH) == "200"
    # Nobody else can put another socket there.
    assert modes(lab, "/run", rest.SOCKET_DIRECTORY) == ["755 root", f"755 {rest.REST_ACCOUNT}"]
    for name, user in (("slurmrestd", rest.REST_ACCOUNT), ("stunnel", rest.PROXY_ACCOUNT)):
        assert set(lab.run("s1", "ps", "-o", "user:32=", "-C", name).split()) == {user}


#: The certificate of a server as text, verified with a file of trusted certificates.
HANDSHAKE = """
import socket, ssl, sys
address, trust = sys.argv[1:]
context = ssl.create_default_context(cafile=trust)
with context.wrap_socket(socket.create_connection((address, 6820), 60), server_hostname=address) as peer:
    print(ssl.DER_cert_to_PEM_cert(peer.getpeercert(True)))
"""


def test_clients_of_the_rest_interface_verify_it_while_its_certificate_is_renewed(lab: Lab) -> None:
    """The proxy makes the next certificate, as in its second year, and uses it, as a month later."""

    def trusted() -> list[str]:
        (found,) = {lab.read(machine, rest.TRUST_PATH) for machine in MACHINES}
        return server_certificate.split_certificates(found.decode())

    def presented(trust: str) -> list[str]:
        return server_certificate.split_certificates(lab.run("s3", "python3", "-c", HANDSHAKE, ADDRESSES["s1"], trust))

    def play(*options: str) -> None:
        run = lab.run_playbook(SLURM_PLAYBOOK, *options)
        assert run.exit_status == 0, run.output

    (own,) = trusted()
    before = find_daemon_pids(lab)
    with age_certificate(lab, "s1", f"{rest.PROXY_DIRECTORY}/own.crt", 400):
        play("--limit", "s1")
    # Others ask the manager, which is not in their run.
    play("--limit", "!s1")
    (former, following) = trusted()
    assert former == own != following and presented(rest.TRUST_PATH) == [own]
    assert find_daemon_pids(lab) == before
    # A copy of the file, as for clients elsewhere.
    lab.run("s3", "cp", rest.TRUST_PATH, "/root/copy.crt")
    with age_certificate(lab, "s1", f"{rest.PROXY_DIRECTORY}/next.crt", 40):
        play()
    assert trusted() == presented(rest.TRUST_PATH) == presented("/root/copy.crt") == [following]
    assert {name for name, number in find_daemon_pids(lab).items() if number != before[name]} == {
        f"s1 {rest.PROXY_SERVICE}"
    }
    for client in ("s1", "s4"):
        assert query_rest(lab, client, "s1") == ["s1 s2 s3 s4", "refused", "not verified"], client


# --- Devices


@pytest.mark.release
@pytest.mark.parametrize(
    ("gres", "machine", "devices"), [("gpu:2", "s2", "0,1"), ("gpu:1", "s2", "0"), ("gpu:fake:1", "s4", "0")]
)
def test_jobs_get_the_gpus_that_they_ask_for(lab: Lab, gres: str, machine: str, devices: str) -> None:
    shown = lab.run(
        "s1",
        "srun",
        f"--gres={gres}",
        f"--nodelist={machine}",
        "sh",
        "-c",
        "echo $(hostname) $CUDA_VISIBLE_DEVICES",
        timeout=WAIT_TIMEOUT,
    )
    assert shown.split() == [machine, devices]


def test_gpus_go_to_one_job_at_a_time(lab: Lab) -> None:
    """The job runs where a GPU is free, and one that requests more than there are is rejected immediately."""
    # Each step ends when the other one has begun, so that both have their GPU at the same time.
    met = "touch /root/met.$SLURM_STEP_ID; until [ -e /root/met.0 -a -e /root/met.1 ]; do sleep 0.2; done"
    script = f"srun --exclusive --nodes=1 --ntasks=1 --gres=gpu:1 sh -c 'echo $SLURM_STEP_GPUS; {met}' &"
    both = ("sh", "-c", f"{script}\n{script}\nwait")
    shown = lab.run("s1", "salloc", "--nodelist=s2", "--gres=gpu:2", "--ntasks=2", *both, timeout=WAIT_TIMEOUT)
    assert sorted(shown.split()) == ["0", "1"]
    lab.run("s2", "rm", "/root/met.0", "/root/met.1")
    refused = lab.run("s1", "sh", "-c", "srun --gres=gpu:3 --nodelist=s2 true 2>&1 || true", timeout=WAIT_TIMEOUT)
    assert "Requested node configuration is not available" in refused


# --- The environment


@pytest.fixture(name="backwards", scope="module")
def _backwards(lab: Lab) -> None:
    """Make the order of registration, in which Slurm numbers the nodes of a job, differ from that of the names."""
    wait_until_idle(lab)
    for machine in TRAINING_MACHINES:
        lab.run("s1", "scontrol", "delete", f"nodename={machine}")
    for machine in reversed(TRAINING_MACHINES):
        lab.run(machine, "systemctl", "restart", "slurmd")
        lab.wait_until(
            f"{machine} is registered", lambda machine=machine: machine in read_node_states(lab), WAIT_TIMEOUT
        )
    wait_until_idle(lab)


@pytest.fixture(name="tasks", scope="module")
def _tasks(lab: Lab, backwards: None) -> dict[str, dict[str, Any]]:
    """What the tasks of a job with two components have found: one node with two GPUs, two nodes without."""
    for machine in TRAINING_MACHINES:
        write_file(lab, machine, "/root/dump.py", DUMP)
    # bash, since only bash sets values of several lines: see the role's documentation.
    task = ("bash", "-c", "python3 /root/dump.py")
    main = ("--nodes=1", "--ntasks=1", "--nodelist=s2", "--gres=gpu:2")
    sub = ("--nodes=2", "--ntasks=2", "--nodelist=s1,s3")
    lab.run("s1", "srun", *main, *task, ":", *sub, *task, timeout=WAIT_TIMEOUT)
    return {machine: json.loads(lab.read(machine, "/root/task.json")) for machine in TRAINING_MACHINES}


@pytest.fixture(name="roles", scope="module")
def _roles(tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    return {machine: task["environment"] for machine, task in tasks.items()}


def ranks(roles: dict[str, dict[str, str]]) -> list[str]:
    """The machines in Slurm's order: the first component, then the second, each by registration."""
    return ["s2", *sorted(("s1", "s3"), key=lambda machine: int(roles[machine]["SLURM_PROCID"]))]


def ips(roles: dict[str, dict[str, str]]) -> list[str]:
    return [ADDRESSES[machine] for machine in ranks(roles)]


def port(roles: dict[str, dict[str, str]]) -> str:
    (found,) = {environment["MASTER_PORT"] for environment in roles.values()}
    assert 15000 <= int(found) <= 24999
    return found


def expected(roles: dict[str, dict[str, str]], machine: str) -> dict[str, dict[str, str]]:
    """Every variable of every dialect."""
    rank = ranks(roles).index(machine)
    gpus = "2" if machine == "s2" else "0"
    primary = ADDRESSES["s2"]
    hostfile = roles[machine]["GPUMESH_HOSTFILE"]
    return {
        "core": {
            "MASTER_ADDR": primary,
            "MASTER_PORT": port(roles),
            "WORLD_SIZE": "3",
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "NNODES": "3",
            "GPUS_PER_NODE": gpus,
        },
        "network": {
            "NCCL_SOCKET_IFNAME": "=eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
            "UCX_NET_DEVICES": "eth0",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
            "OMPI_MCA_oob_tcp_if_include": "eth0",
        },
        "backendai": {
            "BACKENDAI_CLUSTER_SIZE": "3",
            "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2",
            "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:2",
            "BACKENDAI_CLUSTER_HOST": ("main1", "sub1", "sub2")[rank],
            "BACKENDAI_CLUSTER_IDX": ("1", "1", "2")[rank],
            "BACKENDAI_CLUSTER_ROLE": ("main", "sub", "sub")[rank],
            "BACKENDAI_CLUSTER_LOCAL_RANK": str(rank),
            "WORLD_RANK": str(rank),
        },
        "dstack": {
            "DSTACK_NODES_IPS": "\n".join(ips(roles)),
            "DSTACK_MASTER_NODE_IP": primary,
            "DSTACK_NODE_RANK": str(rank),
            "DSTACK_NODES_NUM": "3",
            "DSTACK_GPUS_PER_NODE": gpus,
            "DSTACK_GPUS_NUM": "2",
            "DSTACK_MPI_HOSTFILE": hostfile,
        },
        "skypilot": {
            "SKYPILOT_NODE_IPS": "\n".join(ips(roles)),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_NODES": "3",
            "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        },
        "runpod": {
            "PRIMARY_ADDR": primary,
            "PRIMARY_PORT": port(roles),
            "NODE_ADDR": ADDRESSES[machine],
            "NODE_RANK": str(rank),
            "NUM_NODES": "3",
            "NUM_TRAINERS": gpus,
            "WORLD_SIZE": "3",
        },
        "ours": {"USE_LIBUV": "0"},
    }


@pytest.mark.release
@pytest.mark.parametrize("machine", TRAINING_MACHINES)
@pytest.mark.parametrize("dialect", ["core", "network", "backendai", "dstack", "skypilot", "runpod", "ours"])
def test_each_dialect_says_where_the_task_is(roles: dict[str, dict[str, str]], dialect: str, machine: str) -> None:
    wanted = expected(roles, machine)[dialect]
    assert {name: roles[machine].get(name) for name in wanted} == wanted


@pytest.mark.parametrize("machine", TRAINING_MACHINES)
def test_tensorflow_knows_the_workers(roles: dict[str, dict[str, str]], machine: str) -> None:
    assert json.loads(roles[machine]["TF_CONFIG"]) == {
        "cluster": {"worker": [f"{address}:{port(roles)}" for address in ips(roles)]},
        "task": {"type": "worker", "index": ranks(roles).index(machine)},
    }


@pytest.mark.parametrize("machine", TRAINING_MACHINES)
def test_mpi_finds_its_hostfile(
    tasks: dict[str, dict[str, Any]], roles: dict[str, dict[str, str]], machine: str
) -> None:
    lines = tasks[machine]["hosts"].splitlines()
    assert lines == [f"{address} slots={slots}" for address, slots in zip(ips(roles), (2, 1, 1), strict=True)]


@pytest.mark.parametrize("machine", TRAINING_MACHINES)
def test_nothing_of_a_job_stays_behind(lab: Lab, roles: dict[str, dict[str, str]], machine: str) -> None:
    hostfile = roles[machine]["GPUMESH_HOSTFILE"]
    lab.wait_until(
        f"{hostfile} is gone", lambda: not lab.run(machine, "sh", "-c", f"ls {hostfile} || true"), WAIT_TIMEOUT
    )


def test_what_the_user_sets_stays(lab: Lab) -> None:
    mine = "env MASTER_PORT=4711 NCCL_SOCKET_IFNAME=^lo"
    asked = "srun --nodes=1 sh -c 'echo $MASTER_PORT $PRIMARY_PORT $NCCL_SOCKET_IFNAME'"
    assert lab.run("s3", "sh", "-c", f"{mine} {asked}", timeout=WAIT_TIMEOUT).split() == ["4711", "4711", "^lo"]


@pytest.mark.release
def test_all_readers_of_a_job_agree_on_the_order_of_its_nodes(lab: Lab, backwards: None) -> None:
    write_file(lab, "s1", "/root/ask_all", ASK_ALL)
    options = ("--wait", "--parsable", "--nodes=3", "--ntasks-per-node=1", f"--nodelist={','.join(TRAINING_MACHINES)}")
    files = ("--output=/root/%j.out", "--error=/root/%j.err")
    number = lab.run("s1", "sbatch", *options, *files, "/root/ask_all", timeout=WAIT_TIMEOUT).strip()
    lines = [
        line.split()
        for line in lab.read(read_job(lab, number)["BatchHost"], f"/root/{number}.out").decode().splitlines()
    ]
    said = {tuple(line[1:]) for line in lines}
    assert len(lines) == 10 and len(said) == 1, lines
    ((master, nodes),) = said
    by_rank = [word for word, *_rest in sorted(lines) if word.startswith("task:")]
    addresses = [ADDRESSES[word.split(":")[2]] for word in by_rank]
    assert addresses == nodes.split(",")
    assert addresses[0] == master
    assert addresses != sorted(addresses)


@pytest.mark.release
def test_a_login_shell_inside_a_job_has_its_environment(lab: Lab) -> None:
    # The login must agree with what the tasks get: the address of rank 0.
    task = "srun --label --ntasks-per-node=1 sh -c 'echo $(hostname) $MASTER_ADDR'"
    login = ("bash", "-lc", f"echo $MASTER_ADDR $WORLD_SIZE; {task}")
    shown = lab.run("s1", "salloc", "--nodes=2", "--nodelist=s1,s2", *login, timeout=WAIT_TIMEOUT).splitlines()
    tasks = dict(line.split(": ", 1) for line in shown[1:])
    first = ADDRESSES[tasks["0"].split()[0]]
    assert shown[0].split() == [first, "2"]
    assert {line.split()[1] for line in tasks.values()} == {first}


def test_values_of_several_lines_reach_all_tasks(lab: Lab) -> None:
    """Of the plugin. Slurm's task prolog prints one line per variable, so they only reach what bash starts there."""
    values = '",".join(os.environ.get("DSTACK_NODES_IPS", "none").split()), os.environ["GPUMESH_NODE_IPS"]'
    task = ("srun", "--nodes=2", "--nodelist=s1,s2")
    for shell in ("sh", "bash"):
        shown = lab.run("s1", *task, shell, "-c", f"python3 -c 'import os; print({values})'", timeout=WAIT_TIMEOUT)
        ((several, one),) = {tuple(line.split()) for line in shown.splitlines()}
        assert set(one.split(",")) == {ADDRESSES["s1"], ADDRESSES["s2"]}
        assert several == one


@pytest.mark.release
@pytest.mark.parametrize("machine", ["s1", "s4"])
def test_a_job_that_takes_more_memory_than_it_asked_for_is_ended(lab: Lab, machine: str) -> None:
    """By a control group, or, on a host without them, by slurmd, which polls the memory of jobs."""
    greedy = "import time; hoard = bytes([1]) * (400 << 20); time.sleep(600); print('whole')"
    run = f'srun --nodelist={machine} --acctg-freq=1 --mem=100 python3 -c "$1" 2>&1 || echo ended'
    shown = lab.run("s1", "sh", "-c", run, "sh", greedy, timeout=WAIT_TIMEOUT)
    assert shown.splitlines()[-1] == "ended", shown
    assert re.search("Out Of Memory|exceeded memory limit", shown), shown


def test_jobs_that_do_not_ask_for_memory_share_a_node(lab: Lab) -> None:
    second = "env -u SLURM_JOB_ID sbatch --wait --parsable --nodelist=s1 --output=/dev/null --wrap=true"
    lab.run("s1", "salloc", "--nodelist=s1", "--ntasks=1", "sh", "-c", second, timeout=WAIT_TIMEOUT)


@pytest.mark.release
def test_a_job_is_launched_without_a_default_partition(lab: Lab) -> None:
    wait_until_idle(lab)
    lab.run("s1", "scontrol", "update", "partitionname=cluster", "default=no")
    try:
        run = lab.run_module("s1", "gpumesh.cluster.job_test", nodes=list(MACHINES), user="root")
    finally:
        lab.run("s1", "scontrol", "update", "partitionname=cluster", "default=yes")
    assert run.exit_status == 0, run.output
    result = json.loads(run.output.partition("=> ")[2].splitlines()[0])
    assert (result["rc"], result["unavailable"], sorted(result["stdout"].split())) == (0, {}, list(MACHINES)), result
    wait_until_idle(lab)


# --- A second run


def reconfigure(lab: Lab) -> None:
    """Reconfigure all daemons. From 23.11 on, they execute themselves again, by Debian's names for them."""

    def started() -> dict[str, str]:
        shown = lab.run("s1", "scontrol", "--oneliner", "show", "nodes")
        return dict(re.findall(r"NodeName=(\S+) .*?SlurmdStartTime=(\S+)", shown))

    def handed_over() -> dict[str, str]:
        """The process IDs of the daemons that replace themselves by a child: those that systemd runs."""
        found = find_daemon_pids(lab, [machine for machine in MACHINES if machine != "s4"])
        return {name: pid for name, pid in found.items() if name.endswith((" slurmd", " slurmctld"))}

    before, replaced = started(), handed_over()
    assert set(before) == set(MACHINES)
    lab.run("s1", "scontrol", "reconfigure")
    if lab.run("s1", "scontrol", "--version").split()[1].startswith("22."):
        return
    lab.wait_until("they have restarted themselves", lambda: not before.items() & started().items(), WAIT_TIMEOUT)
    # The child registers with the controller before systemd knows it as the main process.
    lab.wait_until("systemd knows their children", lambda: not replaced.items() & handed_over().items(), WAIT_TIMEOUT)


@pytest.mark.release
def test_a_second_run_changes_and_restarts_nothing(lab: Lab) -> None:
    reconfigure(lab)
    wait_until_idle(lab)
    before = find_daemon_pids(lab)
    run = lab.run_playbook(SLURM_PLAYBOOK)
    assert run.exit_status == 0, run.failure_report
    assert run.changed == dict.fromkeys(MACHINES, 0), run.failure_report
    assert find_daemon_pids(lab) == before


def test_settings_that_slurm_refuses_change_nothing(lab: Lab) -> None:
    kept = ("/etc/slurm/slurm.conf", "/etc/slurm/cgroup.conf", "/etc/slurm/gres.conf", "/etc/slurm/node/slurmd.env")
    before = {path: lab.read("s1", path) for path in kept}
    running = find_daemon_pids(lab)
    bad = {"slurm_conf": {"SchedulerTyp": "sched/backfill"}}
    run = lab.run_playbook(SLURM_PLAYBOOK, "--limit", "s1", "-e", json.dumps(bad))
    assert run.exit_status != 0
    assert "Slurm rejects the configuration" in run.flat_output
    assert "SchedulerTyp" in run.flat_output
    assert {path: lab.read("s1", path) for path in kept} == before
    assert find_daemon_pids(lab) == running


@pytest.mark.release
@pytest.mark.parametrize("machine", MACHINES)
def test_slurm_itself_reads_every_file(lab: Lab, machine: str) -> None:
    """The files that the manager serves, those that the others have received, and each host's own files."""
    folder = "/etc/slurm" if machine == "s1" else "/run/slurm/conf"
    command = f"slurmd -G -L /dev/null -Z -N {machine} -f {folder}/slurm.conf 2>&1"
    assert not re.findall(r"fatal|[Pp]arsing|[Uu]nrecognized|[Ii]nvalid", lab.run(machine, "sh", "-c", command))


def test_all_nodes_are_idle_in_the_end(lab: Lab) -> None:
    wait_until_idle(lab)
    assert set(read_node_states(lab)) == set(MACHINES)

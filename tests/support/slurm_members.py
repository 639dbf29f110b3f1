# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the scenarios `slurm` and `slurm_bookworm`, and queries of Slurm on them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from lab_hosts import Lab

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest

#: s4 has supervisord instead of systemd.
MACHINES = ("s1", "s2", "s3", "s4")
TRAINING_MACHINES = ("s1", "s2", "s3")
SCENARIO = os.environ.get("MOLECULE_SCENARIO_NAME", "slurm")
LAB = Lab(f"molecule-{SCENARIO}")
NETWORK = {"slurm": "10.77.30", "slurm_bookworm": "10.77.31"}[SCENARIO]
ADDRESSES = {machine: f"{NETWORK}.1{machine[1:]}" for machine in MACHINES}
SLURM_PLAYBOOK = "gpumesh.cluster.slurm"
#: The newest version of the REST interface in each of Debian's versions of Slurm.
REST_VERSIONS = {"22.05": "v0.0.38", "24.11": "v0.0.41"}
#: The daemons on the manager, and on the others.
DAEMONS_BY_MACHINE = {"s1": ("munge", "slurmctld", "slurmdbd", "mariadb", "slurmd", "slurmrestd", rest.PROXY_SERVICE)}
MEMBER_DAEMONS = ("munge", "slurmd")
#: A program that requests the nodes in one version of the REST interface, with a valid and an invalid token, from a
#: server that it verifies against a file; and from one that it verifies against the certificates of the system.
_TLS_REQUEST_PROGRAM = """
import json, ssl, sys, urllib.error, urllib.request
url, trust, token = sys.argv[1:]
for trusted, sent in ((trust, token), (trust, "no.such.token"), (None, token)):
    headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": sent}
    context = ssl.create_default_context(cafile=trusted)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60, context=context)
        print(*sorted(node["name"] for node in json.load(answer)["nodes"]))
    except urllib.error.HTTPError as refusal:
        print("refused" if refusal.code >= 400 else refusal.code)
    except urllib.error.URLError as failure:
        print("not verified" if isinstance(failure.reason, ssl.SSLCertVerificationError) else failure)
"""
#: A program that requests a path from a server without TLS, at a Unix socket or a port of this host, with a token.
_PLAIN_REQUEST_PROGRAM = """
import http.client, json, socket, sys
place, path, token = sys.argv[1:]
connection = http.client.HTTPConnection("localhost", timeout=60)
if place.startswith("/"):
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(place)
else:
    connection.sock = socket.create_connection(tuple(place.split(":")), timeout=60)
try:
    connection.request("GET", path, headers={"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": token})
    print(connection.getresponse().status)
except (OSError, http.client.HTTPException):
    print("no answer")
"""
#: Seconds to allow on a busy machine for what usually takes one.
WAIT_TIMEOUT = 600.0


def find_daemon_pids(lab: Lab, machines: Sequence[str] = MACHINES) -> dict[str, str]:
    """Return the process ID of each daemon, by machine and name."""
    pids_by_daemon = {}
    for machine in machines:
        names = DAEMONS_BY_MACHINE.get(machine, MEMBER_DAEMONS)
        pid_command = (
            ["supervisorctl", "pid"] if machine == "s4" else ["systemctl", "show", "--property=MainPID", "--value"]
        )
        for name, pid in zip(names, lab.run(machine, *pid_command, *names).split(), strict=True):
            assert pid.isdigit() and pid != "0", f"{machine}: {name} does not run ({pid})"
            pids_by_daemon[f"{machine} {name}"] = pid
    return pids_by_daemon


def read_node_states(lab: Lab) -> dict[str, str]:
    """Return the state of each node that the controller knows, with a mark if it does not respond."""
    lines = lab.run("s1", "sinfo", "--noheader", "--Node", "--format=%N %T", check=False).splitlines()
    return dict(line.split() for line in lines)


def wait_until_idle(lab: Lab, machines: Sequence[str] = MACHINES) -> None:
    lab.wait_until(
        f"idle: {', '.join(machines)}",
        lambda: read_node_states(lab) == dict.fromkeys(machines, "idle"),
        WAIT_TIMEOUT,
    )


def find_rest_path(lab: Lab) -> str:
    """Return the path of the nodes in the REST interface."""
    version = ".".join(lab.run("s3", "scontrol", "--version").split()[1].split(".")[:2])
    return f"/slurm/{REST_VERSIONS[version]}/nodes"


def create_token(lab: Lab, manager: str) -> str:
    """Create a token for root."""
    return lab.run(manager, "scontrol", "token", "lifespan=600").strip().partition("=")[2]


def query_rest(lab: Lab, client: str, manager: str) -> list[str]:
    """Return the REST interface's responses to a member with a token, with a wrong one, and without its certificate."""
    url = f"https://{ADDRESSES[manager]}:6820{find_rest_path(lab)}"
    return lab.run(
        client, "python3", "-c", _TLS_REQUEST_PROGRAM, url, rest.TRUST_PATH, create_token(lab, manager)
    ).splitlines()


def find_listeners(lab: Lab) -> list[str]:
    """Return the programs on the manager that listen on the port of the REST interface, and slurmrestd on any."""
    socket_lines = lab.run("s1", "ss", "--no-header", "--tcp", "--listening", "--numeric", "--processes")
    return re.findall(r'^.*(?::6820\s.*|slurmrestd.*)\(\("([\w-]+)', socket_lines, re.MULTILINE)


def query_rest_without_tls(lab: Lab, address: str) -> str:
    """Return the status with which the manager's REST interface responds at a Unix socket or a port, without TLS."""
    return lab.run(
        "s1", "python3", "-c", _PLAIN_REQUEST_PROGRAM, address, find_rest_path(lab), create_token(lab, "s1")
    ).strip()


def write_file(lab: Lab, machine: str, path: str, text: str) -> None:
    """Write a file on the machine."""
    lab.run(machine, "sh", "-c", 'printf %s "$1" > "$2"', "sh", text, path)


def list_accounted_jobs(lab: Lab, machine: str) -> set[str]:
    """Return the IDs of the jobs in the accounting, once it responds: slurmdbd may still be starting."""
    sacct_command = ("sacct", "--noheader", "--allocations", "--format=JobID", "--starttime=now-1days")
    lab.wait_until("the accounting answers", lambda: lab.run(machine, *sacct_command, check=False) != "", WAIT_TIMEOUT)
    return set(lab.run(machine, *sacct_command).split())


def submit_job(lab: Lab, script: str, *options: str) -> str:
    """Submit a batch job. Returns its ID."""
    return lab.run("s1", "sbatch", "--parsable", "--output=/root/%j.out", *options, "--wrap", script).strip()


def read_job(lab: Lab, job_id: str) -> dict[str, str]:
    """Return what the controller reports about a job: JobState, NodeList, Restarts, ExitCode, …"""
    job_line = lab.run("s1", "scontrol", "--oneliner", "show", "job", job_id)
    return dict(re.findall(r"(\w+)=(\S*)", job_line))


def wait_for_job(lab: Lab, job_id: str, state: str) -> dict[str, str]:
    """Wait until a job is in this state. Returns what the controller reports about it."""
    lab.wait_until(f"job {job_id} is {state}", lambda: read_job(lab, job_id)["JobState"] == state, WAIT_TIMEOUT)
    return read_job(lab, job_id)

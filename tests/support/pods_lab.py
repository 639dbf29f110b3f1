# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the scenario `tailscale`, with its pods as nodes, and what their users do."""

from __future__ import annotations

import time

from lab_hosts import ROOT, AnsibleRun, Lab

LAB = Lab("molecule-tailscale")
STATE_DIRECTORY = ROOT / ".lab" / LAB.name
MANAGER = "t1"
PODS = ("p1", "p2")
NODES = (MANAGER, "t2", *PODS)
#: All members, including the userspace-only one.
ALL_MEMBERS = (*NODES, "t3")
#: The port of the pods' proxy until `site` runs without the option.
PROXY_PORT = 1056
#: Seconds to allow on a busy machine for what usually takes a few.
WAIT_TIMEOUT = 900.0
#: The hosts of a play: pods are in a group of their own.
POD_OPTIONS = ("-e", "cluster_hosts=cluster:pods")
#: The arguments that let a host log in.
KEY_OPTIONS = ("-e", f"mesh_auth_key_file={STATE_DIRECTORY / 'auth.key'}")
#: The arguments that install tailscale from an archive as its vendor publishes it.
ARCHIVE_OPTIONS = ("-e", f"mesh_tailscale_archive={STATE_DIRECTORY / 'tailscale.tgz'}")


def run_playbook(playbook: str, *arguments: str) -> AnsibleRun:
    """Run a playbook of the collection on the cluster with its pods, whether it succeeds or not."""
    return LAB.run_playbook(f"gpumesh.cluster.{playbook}", *POD_OPTIONS, *arguments)


def join_pods() -> None:
    """Make the pods nodes of the cluster, and t3 a member again if the tests have removed it."""
    join_options = ("-e", f"cluster_machines={','.join((*PODS, 't3'))}", "-e", f"mesh_proxy_port={PROXY_PORT}")
    join_run = run_playbook("join", *join_options, *KEY_OPTIONS, *ARCHIVE_OPTIONS)
    assert join_run.exit_status == 0, join_run.failure_report


def node_states() -> dict[str, str]:
    """Return the state of each node."""
    lines = LAB.run(MANAGER, "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return dict(line.split() for line in lines)


def await_all_idle() -> None:
    """Wait until all nodes are idle."""
    LAB.wait_until("all nodes are idle", lambda: node_states() == dict.fromkeys(NODES, "idle"), WAIT_TIMEOUT)


def await_empty_queue() -> None:
    """Wait until all jobs have ended."""
    LAB.wait_until("all jobs have ended", lambda: LAB.run(MANAGER, "squeue", "--noheader") == "", WAIT_TIMEOUT)


def user_command(line: str) -> tuple[str, ...]:
    """Return the command that runs a shell command line in /tmp as an ordinary user."""
    return ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", f"cd /tmp && {line}")


def run_as_user(host: str, line: str) -> str:
    """Run a shell command line in /tmp as an ordinary user. Returns its stdout."""
    return LAB.run(host, *user_command(line), timeout=WAIT_TIMEOUT)


def restart_pod(pod: str, off_seconds: float = 0) -> None:
    """Kill and start a pod as a provider does that keeps its disk. ``off_seconds``: the time between."""
    LAB.kill(pod)
    time.sleep(off_seconds)
    LAB.power_on(pod)


def broadcast_file(byte_count: int) -> None:
    """Send a file to all pods, and compare the checksums."""
    script = (
        f"head -c {byte_count} /dev/urandom > big && sha256sum < big && sbcast -f big /tmp/copy && srun sha256sum /tmp/copy;"
        "rm big; srun rm /tmp/copy"
    )
    lines = run_as_user(MANAGER, f"salloc -Q -N{len(PODS)} -w {','.join(PODS)} sh -c '{script}'").splitlines()
    assert len(lines) == 1 + len(PODS) and len({line.split()[0] for line in lines}) == 1, lines


def run_jobs_while_pod_dies(job_count: int) -> None:
    """Run short jobs, kill a pod that runs one of them, and start it as its provider does with our start command.

    A job that had started in the last 20 seconds before its pod registers again would remain, so the pod is away
    longer. Jobs on it are queued again, so each one completes once.
    """
    submit_command = (
        f"sbatch --quiet --array=1-{job_count} -n1 --requeue -J many{job_count} -o /dev/null --wrap 'sleep 0.2'"
    )
    run_as_user(
        MANAGER,
        f"{submit_command} && sbatch --quiet -n1 -w p2 --requeue -J many{job_count} -o /dev/null --wrap 'sleep 5'",
    )
    pod_jobs_command = ("squeue", "--noheader", "--states=running", "--nodelist=p2")
    LAB.wait_until("p2 runs one of them", lambda: LAB.run(MANAGER, *pod_jobs_command) != "", WAIT_TIMEOUT, spacing=0.2)
    restart_pod("p2", off_seconds=30)
    LAB.await_boot("p2", "/etc/supervisor/supervisord.conf")
    await_empty_queue()
    await_all_idle()
    accounting_command = (
        "sacct",
        "--allocations",
        "--noheader",
        "--parsable2",
        f"--name=many{job_count}",
        "--format=state",
    )
    completed_states = ["COMPLETED"] * (job_count + 1)
    LAB.wait_until(
        "each job has completed once",
        lambda: LAB.run(MANAGER, *accounting_command).split() == completed_states,
        WAIT_TIMEOUT,
    )

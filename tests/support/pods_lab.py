# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the scenario `tailscale`, with its pods as nodes, and what their users do."""

from __future__ import annotations

import time

from lab_hosts import ROOT, Lab, Run

LAB = Lab("molecule-tailscale")
STATE = ROOT / ".lab" / LAB.name
MANAGER = "t1"
PODS = ("p1", "p2")
NODES = (MANAGER, "t2", *PODS)
#: All members, including the userspace-only one.
MEMBERS = (*NODES, "t3")
#: The port of the pods' proxy until `site` runs without the option.
PROXY_PORT = 1056
#: Seconds to allow on a busy machine for what usually takes a few.
PATIENCE = 900.0
#: The hosts of a play: pods are in a group of their own.
WITH_PODS = ("-e", "cluster_hosts=cluster:pods")
#: The arguments that let a host log in.
WITH_KEY = ("-e", f"mesh_auth_key_file={STATE / 'auth.key'}")
#: The arguments that install tailscale from an archive as its vendor publishes it.
WITH_ARCHIVE = ("-e", f"mesh_tailscale_archive={STATE / 'tailscale.tgz'}")


def play(playbook: str, *arguments: str) -> Run:
    """Run a playbook of the collection on the cluster with its pods, whether it succeeds or not."""
    return LAB.play(f"gpumesh.cluster.{playbook}", *WITH_PODS, *arguments)


def join_pods() -> None:
    """Make the pods nodes of the cluster, and t3 a member again if the tests have removed it."""
    given = ("-e", f"cluster_machines={','.join((*PODS, 't3'))}", "-e", f"mesh_proxy_port={PROXY_PORT}")
    run = play("join", *given, *WITH_KEY, *WITH_ARCHIVE)
    assert run.code == 0, run.report


def nodes() -> dict[str, str]:
    """Return the state of each node."""
    lines = LAB.run(MANAGER, "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return dict(line.split() for line in lines)


def await_all_idle() -> None:
    """Wait until all nodes are idle."""
    LAB.wait("all nodes are idle", lambda: nodes() == dict.fromkeys(NODES, "idle"), PATIENCE)


def await_empty_queue() -> None:
    """Wait until all jobs have ended."""
    LAB.wait("all jobs have ended", lambda: LAB.run(MANAGER, "squeue", "--noheader") == "", PATIENCE)


def user_command(line: str) -> tuple[str, ...]:
    """Return the command that runs a shell command line in /tmp as an ordinary user."""
    return ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", f"cd /tmp && {line}")


def as_user(host: str, line: str) -> str:
    """Run a shell command line in /tmp as an ordinary user. Returns its stdout."""
    return LAB.run(host, *user_command(line), timeout=PATIENCE)


def restart_pod(pod: str, away: float = 0) -> None:
    """Kill and start a pod as a provider does that keeps its disk. ``off_seconds``: the time between."""
    LAB.kill(pod)
    time.sleep(away)
    LAB.power_on(pod)


def broadcast(size: int) -> None:
    """Send a file to all pods, and compare the checksums."""
    script = (
        f"head -c {size} /dev/urandom > big && sha256sum < big && sbcast -f big /tmp/copy && srun sha256sum /tmp/copy;"
        "rm big; srun rm /tmp/copy"
    )
    lines = as_user(MANAGER, f"salloc -Q -N{len(PODS)} -w {','.join(PODS)} sh -c '{script}'").splitlines()
    assert len(lines) == 1 + len(PODS) and len({line.split()[0] for line in lines}) == 1, lines


def run_jobs_while_a_pod_dies(count: int) -> None:
    """Run short jobs, kill a pod that runs one of them, and start it as its provider does with our start command.

    A job that had started in the last 20 seconds before its pod registers again would remain, so the pod is away
    longer. Jobs on it are queued again, so each one completes once.
    """
    submit = f"sbatch --quiet --array=1-{count} -n1 --requeue -J many{count} -o /dev/null --wrap 'sleep 0.2'"
    as_user(MANAGER, f"{submit} && sbatch --quiet -n1 -w p2 --requeue -J many{count} -o /dev/null --wrap 'sleep 5'")
    on_pod = ("squeue", "--noheader", "--states=running", "--nodelist=p2")
    LAB.wait("p2 runs one of them", lambda: LAB.run(MANAGER, *on_pod) != "", PATIENCE, spacing=0.2)
    restart_pod("p2", away=30)
    LAB.await_boot("p2", "/etc/supervisor/supervisord.conf")
    await_empty_queue()
    await_all_idle()
    asked = ("sacct", "--allocations", "--noheader", "--parsable2", f"--name=many{count}", "--format=state")
    ended = ["COMPLETED"] * (count + 1)
    LAB.wait("each job has completed once", lambda: LAB.run(MANAGER, *asked).split() == ended, PATIENCE)

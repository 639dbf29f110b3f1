# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which members of a cluster are rebooted, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.volume import SERVED_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError


class MachineState(NamedTuple):
    """What was found out about a machine of the play.

    ``obstacle``: why it cannot reboot by itself, or empty. ``runs_ansible``: its kernel is that of the controller.
    ``foreign_slurm``: its Slurm belongs to another cluster.
    """

    obstacle: str
    runs_ansible: bool
    foreign_slurm: bool


class RebootPlan(NamedTuple):
    """The machines to reboot, in order, and why other members of the play cannot be rebooted."""

    machines: list[str]
    obstacles: dict[str, str]


def read_state(results: Mapping[str, Mapping[str, Any]], is_controller: bool, controller_boot_id: str) -> MachineState:
    """Read what the tasks have found out about a machine.

    ``results``: those of ``container`` (systemd-detect-virt --container), ``systemd`` (stat of its directory in /run),
    ``boot_id`` (cat) and ``owner`` (host_owner). ``is_controller``: the inventory says that it runs Ansible.
    """
    container_kind = str(results["container"].get("stdout", "")).strip()
    obstacle = ""
    if container_kind not in ("", "none"):
        obstacle = f"a container ({container_kind}), which has no kernel of its own"
    elif not results["systemd"].get("stat", {}).get("exists"):
        obstacle = "not booted with systemd, as in a container"
    boot_id = str(results["boot_id"].get("stdout", "")).strip()
    same_kernel = bool(boot_id) and boot_id == controller_boot_id
    return MachineState(obstacle, is_controller or same_kernel, "slurm" in results["owner"].get("foreign_claims", ()))


def plan_reboots(
    record: Record,
    play_machines: Sequence[str],
    state_by_machine: Mapping[str, MachineState],
    is_manager_unreachable: bool,
) -> RebootPlan:
    """Plan the reboots of the members in the play: in the order of the record, with the manager last.

    ``state_by_machine`` has the machines that answered. Raises HostStateError or InputError.
    """
    manager = record["manager"]
    members = sorted(
        (member["machine"] for member in record["members"] if member["machine"] in play_machines),
        key=lambda machine: machine == manager,
    )
    _refuse_silent([machine for machine in members if machine not in state_by_machine])
    if is_manager_unreachable:
        raise HostStateError(
            f"The manager {manager} does not answer, so no node can be drained. Nothing has been rebooted.",
            "Run this again when it answers.",
            machines=[manager],
        )
    obstacles = {machine: state_by_machine[machine].obstacle for machine in members}
    capable_machines = [machine for machine in members if not obstacles[machine]]
    for machine in capable_machines:
        _refuse_unsuitable(record, machine, state_by_machine[machine])
    plan = RebootPlan(capable_machines, {machine: reason for machine, reason in obstacles.items() if reason})
    if not capable_machines:
        raise InputError(
            f"No machine can be rebooted. {describe_obstacles(plan)}"
            if plan.obstacles
            else f"None of the hosts of this run is a member of cluster '{record['name']}'.",
            "Restart containers where they were started." if plan.obstacles else "Name its members.",
        )
    return plan


def _refuse_silent(silent_machines: Sequence[str]) -> None:
    if silent_machines:
        raise HostStateError(
            f"{', '.join(silent_machines)}: unreachable or failed, as shown above. Nothing has been rebooted.",
            "Repair the machine, or exclude it from this run with -e cluster_without="
            f"{','.join(silent_machines)} or with --limit.",
            machines=list(silent_machines),
        )


def _refuse_unsuitable(record: Record, machine: str, state: MachineState) -> None:
    if state.runs_ansible:
        raise InputError(
            f"{machine} is the machine that runs Ansible, and this run would end with its reboot. Nothing has been "
            "rebooted.",
            f"Exclude it with -e cluster_without={machine}, and reboot it afterwards by hand, or run this from another "
            "machine.",
            machines=[machine],
        )
    if state.foreign_slurm:
        raise InputError(
            f"The Slurm of {machine} does not belong to cluster '{record['name']}', which therefore cannot drain it. "
            "Nothing has been rebooted.",
            f"Reboot it with the inventory of the cluster that has its Slurm; exclude it here with -e "
            f"cluster_without={machine}.",
            machines=[machine],
        )


def describe_obstacles(plan: RebootPlan) -> str:
    """Describe the members that cannot be rebooted; empty if there are none."""
    return " ".join(f"{machine} is {reason}." for machine, reason in plan.obstacles.items())


def describe_plan(record: Record, plan: RebootPlan) -> str:
    """Describe the plan for people: the order, who is skipped, and what is unavailable meanwhile."""
    sentences = [f"Rebooted one at a time, in this order: {', '.join(plan.machines)}."]
    if plan.obstacles:
        sentences.append(f"Not rebooted: {describe_obstacles(plan)} Restart containers where they were started.")
    for machine in plan.machines:
        volume_names = [
            f"{volume['name']} ({volume.get('recovery', SERVED_OPTIONS['recovery'])})"
            for volume in record["storage"]["volumes"]
            if volume.get("server") == machine
        ]
        if volume_names:
            sentences.append(
                f"While {machine} reboots, its volumes are unavailable: {', '.join(volume_names)}. Programs on other "
                "nodes wait for hard ones, and may get errors from soft ones."
            )
    if record["manager"] in plan.machines:
        sentences.append(
            f"The queue is on the disk of the manager {record['manager']} and outlives its reboot. Until the manager is "
            "back, jobs of other nodes keep running, and no job starts."
        )
    return " ".join(sentences)

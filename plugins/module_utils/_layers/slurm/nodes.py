# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change the state of nodes: the commands for the controller, the nodes that others manage, and the wait for it."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import SlurmNode

#: The prefix of all reasons that this collection sets. Only nodes with such a reason are resumed.
REASON_PREFIX = "gpumesh: "
#: The reason, after the prefix, of a node that a removal has drained.
LEAVING_REASON = "leaves the cluster"
#: That of a node that is drained to reboot its machine.
REBOOT_REASON = "reboot"
#: That of a node whose member stays in the cluster, but runs no jobs any more.
WITHDRAWAL_REASON = "is to run no jobs"
#: Every member on which Slurm is set up has this file, also one that runs no jobs.
HOST_SETTINGS_PATH = "/etc/slurm/node/slurm.conf"
_OUT_OF_SERVICE_FLAGS = ("drain", "fail", "invalid_reg", "maintenance")
_POLL_INTERVAL = 2.0


class NodePlan(NamedTuple):
    """The commands to run, and the reasons of the nodes that others have taken out of service."""

    commands: List[List[str]]
    foreign_reasons: Dict[str, str]


def plan_commands(
    current_nodes: Mapping[str, SlurmNode], node_names: Sequence[str], desired_state: str, reason: str
) -> NodePlan:
    """Plan the commands that bring the nodes into ``desired_state``. Raises InputError for an unknown node."""
    unknown_names = [node_name for node_name in node_names if node_name not in current_nodes]
    if unknown_names and desired_state != "absent":
        known_names = ", ".join(current_nodes) or "none"
        raise InputError(f"The controller does not know {', '.join(unknown_names)}.", f"Its nodes are: {known_names}.")
    commands: List[List[str]] = []
    foreign_reasons: Dict[str, str] = {}
    for node_name in node_names:
        node = current_nodes.get(node_name)
        if node is None:
            continue
        if desired_state == "absent":
            commands.append(["scontrol", "delete", f"nodename={node_name}"])
        elif _was_set_by_others(node, desired_state):
            foreign_reasons[node_name] = node["reason"]
        elif desired_state == "idle":
            if is_out_of_service(node):
                commands.append(["scontrol", "update", f"nodename={node_name}", "state=resume"])
        elif not _is_in_state(node, desired_state) or node["reason"] != REASON_PREFIX + reason:
            state_argument = [] if _is_in_state(node, desired_state) else [f"state={_STATE_ARGUMENTS[desired_state]}"]
            commands.append(
                ["scontrol", "update", f"nodename={node_name}", *state_argument, f"reason={REASON_PREFIX}{reason}"]
            )
    return NodePlan(commands, foreign_reasons)


_STATE_ARGUMENTS = {"drained": "drain", "down": "down"}


def is_out_of_service(node: SlurmNode) -> bool:
    """Whether an administrator, or Slurm itself, has taken the node out of service."""
    return node["state"] == "down" or any(flag in node["flags"] for flag in _OUT_OF_SERVICE_FLAGS)


def _was_set_by_others(node: SlurmNode, desired_state: str) -> bool:
    """Whether others have set the node's state, so that we may neither resume it nor replace their reason."""
    concerned = is_out_of_service(node) if desired_state == "idle" else _is_in_state(node, desired_state)
    return concerned and bool(node["reason"]) and not node["reason"].startswith(REASON_PREFIX)


def _is_in_state(node: SlurmNode, desired_state: str) -> bool:
    return "drain" in node["flags"] if desired_state == "drained" else node["state"] == "down"


def describe_missing(
    current_nodes: Mapping[str, SlurmNode], node_names: Sequence[str], desired_state: str
) -> List[str]:
    """Describe the nodes that are not in the desired state. A drained one has no jobs; an idle one accepts new jobs."""
    messages = []
    for name in node_names:
        node: Optional[SlurmNode] = current_nodes.get(name)
        if node is None:
            continue
        displayed_state = "+".join([node["state"], *node["flags"]])
        if desired_state == "drained" and (node["state"] not in ("idle", "down") or "completing" in node["flags"]):
            messages.append(f"{name} still has jobs ({displayed_state})")
        elif desired_state == "idle" and not node["ready"]:
            messages.append(f"{name} does not accept jobs ({displayed_state})")
    return messages


def run_commands(run: Runner, node_plan: NodePlan) -> None:
    """Run the commands. Raises HostStateError for a node that cannot be deleted because it has jobs."""
    for command in node_plan.commands:
        try:
            run(command, timeout=60)
        except CommandError as failure:
            if command[1] == "delete" and "busy" in failure.message:
                node_name = command[2].partition("=")[2]
                raise HostStateError(
                    f"{node_name} has jobs, so the controller does not delete it.",
                    "Drain it first, and wait until its jobs have ended.",
                    node=node_name,
                ) from failure
            raise


def wait_for_state(
    read_nodes: Callable[[], Mapping[str, SlurmNode]], node_names: Sequence[str], desired_state: str, timeout: float
) -> Mapping[str, SlurmNode]:
    """Read the nodes until all have the desired state. Raises HostStateError after ``timeout`` seconds.

    Its detail ``completing`` is true if Slurm only waits for processes of jobs that have ended.
    """
    deadline = time.monotonic() + timeout
    while True:
        current_nodes = read_nodes()
        missing_conditions = describe_missing(current_nodes, node_names, desired_state)
        if not missing_conditions:
            return current_nodes
        if time.monotonic() >= deadline:
            raise HostStateError(
                f"After {timeout:g} s: {'; '.join(missing_conditions)}.",
                "See 'squeue' for the jobs and 'scontrol show node' for the reason, or wait longer.",
                completing=desired_state == "drained"
                and all(
                    current_nodes[name]["state"] in ("idle", "down")
                    for name in node_names
                    if describe_missing(current_nodes, [name], desired_state)
                ),
            )
        time.sleep(min(_POLL_INTERVAL, max(0.1, deadline - time.monotonic())))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring nodes into a state: the commands for the controller, the nodes to leave alone, and when the state is reached."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.show import Node

#: The prefix of all our reasons. Only nodes with such a reason are resumed.
MARK = "gpumesh: "
#: The reason, after the mark, of a node that a removal has drained.
LEAVING = "leaves the cluster"
_OUT_OF_SERVICE = ("drain", "fail", "invalid_reg", "maintenance")
_PAUSE = 2.0


class Plan(NamedTuple):
    """The commands to run, and the nodes that others have taken out of service, with their reason."""

    commands: List[List[str]]
    left_alone: Dict[str, str]


def plan(present: Mapping[str, Node], names: Sequence[str], state: str, reason: str) -> Plan:
    """The commands that change ``names`` to ``state``. Raises InputError if the controller does not know a node."""
    unknown = [name for name in names if name not in present]
    if unknown and state != "absent":
        known = ", ".join(present) or "none"
        raise InputError(f"The controller does not know {', '.join(unknown)}.", f"Its nodes are: {known}.")
    commands: List[List[str]] = []
    left_alone: Dict[str, str] = {}
    for name in names:
        node = present.get(name)
        if node is None:
            continue
        if state == "absent":
            commands.append(["scontrol", "delete", f"nodename={name}"])
        elif _foreign(node, state):
            left_alone[name] = node["reason"]
        elif state == "idle":
            if is_out(node):
                commands.append(["scontrol", "update", f"nodename={name}", "state=resume"])
        elif not _is(node, state) or node["reason"] != MARK + reason:
            word = [] if _is(node, state) else [f"state={_WORDS[state]}"]
            commands.append(["scontrol", "update", f"nodename={name}", *word, f"reason={MARK}{reason}"])
    return Plan(commands, left_alone)


_WORDS = {"drained": "drain", "down": "down"}


def is_out(node: Node) -> bool:
    """Whether an administrator, or Slurm itself, has taken the node out of service."""
    return node["state"] == "down" or any(flag in node["flags"] for flag in _OUT_OF_SERVICE)


def _foreign(node: Node, state: str) -> bool:
    """Whether others have set the node's state, so that we may neither resume it nor replace their reason."""
    concerned = is_out(node) if state == "idle" else _is(node, state)
    return concerned and bool(node["reason"]) and not node["reason"].startswith(MARK)


def _is(node: Node, state: str) -> bool:
    return "drain" in node["flags"] if state == "drained" else node["state"] == "down"


def waiting_for(present: Mapping[str, Node], names: Sequence[str], state: str) -> List[str]:
    """What is still missing, as messages. A drained node has no more jobs; an idle one accepts new ones."""
    found = []
    for name in names:
        node: Optional[Node] = present.get(name)
        if node is None:
            continue
        shown = "+".join([node["state"], *node["flags"]])
        if state == "drained" and (node["state"] not in ("idle", "down") or "completing" in node["flags"]):
            found.append(f"{name} still has jobs ({shown})")
        elif state == "idle" and not node["ready"]:
            found.append(f"{name} does not accept jobs ({shown})")
    return found


def carry_out(run: Runner, planned: Plan) -> None:
    """Run the commands. Raises HostStateError for a node that cannot be deleted because it has jobs."""
    for command in planned.commands:
        try:
            run(command, timeout=60)
        except CommandError as failure:
            if command[1] == "delete" and "busy" in failure.message:
                name = command[2].partition("=")[2]
                raise HostStateError(
                    f"{name} has jobs, so the controller does not delete it.",
                    "Drain it first, and wait until its jobs have ended.",
                    node=name,
                ) from failure
            raise


def wait(
    read: Callable[[], Mapping[str, Node]], names: Sequence[str], state: str, seconds: float
) -> Mapping[str, Node]:
    """Read until nothing is missing, for at most ``seconds``. Raises HostStateError, naming what is missing.

    Its detail ``completing``: whether only jobs are left that have ended, and whose processes Slurm waits for.
    """
    end = time.monotonic() + seconds
    while True:
        present = read()
        missing = waiting_for(present, names, state)
        if not missing:
            return present
        if time.monotonic() >= end:
            raise HostStateError(
                f"After {seconds:g} s: {'; '.join(missing)}.",
                "See 'squeue' for the jobs and 'scontrol show node' for the reason, or increase the wait.",
                completing=state == "drained"
                and all(
                    present[name]["state"] in ("idle", "down") for name in names if waiting_for(present, [name], state)
                ),
            )
        time.sleep(min(_PAUSE, max(0.1, end - time.monotonic())))

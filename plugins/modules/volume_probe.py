#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_probe
short_description: Prove and measure the volumes of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Shows whether a volume is the same file system on all members, whether a lock that one of them holds is respected by
    the others, how full the volume is, and how fast it is written, read and filled with small files.
  - All members run a phase before the next one begins. P(gpumesh.cluster.verdict#filter) says what the results mean.
  - Each member writes into a folder of its own on the volume, C(.gpumesh-check-RUN-MACHINE), which V(clean) removes. As
    root, or where root may not, as the user whom the volume belongs to.
  - Whatever a volume does, the module ends in time. What is wrong with a volume is a result and no failure.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
attributes:
  check_mode:
    details:
      - It only measures, and removes what it writes.
options:
  phase:
    description:
      - V(look) shows what is mounted and how full it is, and writes nothing.
      - V(write) does that too, leaves this member's files on the volume, measures their writing, and takes a lock.
      - V(compare) looks for the others' files, reads those of the next member in the ring, and tries its lock, which has
        to be refused.
      - V(release) lets the own lock go, V(take) gets that of the next member, and V(clean) removes the own files.
    type: str
    required: true
    choices: [look, write, compare, release, take, clean]
  volumes:
    description: The volumes.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the volume.
        type: str
        required: true
      mount_point:
        description: Where it is mounted, or a folder on it.
        type: path
        required: true
      read_only:
        description: Nobody writes to it, so it is looked at only.
        type: bool
        default: false
  run:
    description: Name of the run, the same on all members and a new one each time. Not needed for V(look).
    type: str
  machine:
    description: This member's name. Not needed for V(look).
    type: str
  members:
    description: All members that take part, in the same order everywhere.
    type: list
    elements: str
    default: []
  size_mib:
    description: The size of the file that is written and read. With V(0) nothing is measured.
    type: int
    default: 0
  files:
    description: How many small files are made, looked at and removed.
    type: int
    default: 200
  seconds:
    description: After this time a measurement ends with what it has.
    type: float
    default: 5
  max_used_percent:
    description: Nothing is measured where all members' files would leave the volume fuller than this.
    type: float
    default: 95
  lifetime:
    description: Seconds after which the lock is let go, even if everything else has died.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Look at the volume
  gpumesh.cluster.volume_probe:
    phase: look
    volumes:
      - name: data
        mount_point: /data
  register: looked

- name: Write to it on every member
  gpumesh.cluster.volume_probe:
    phase: write
    run: run-1
    machine: "{{ inventory_hostname }}"
    members: [n1, n2, n3]
    size_mib: 64
    volumes:
      - name: data
        mount_point: /data
  register: written
"""

RETURN = r"""
volumes:
  description: What the phase has found, by the name of the volume.
  returned: success
  type: dict
  contains:
    trouble:
      description: Why the phase could not be carried out; empty where it was.
      type: str
    filesystem:
      description: "Phases V(look) and V(write): type of the file system."
      type: str
    source:
      description: "Phases V(look) and V(write): what is mounted."
      type: str
    point:
      description: "Phases V(look) and V(write): where."
      type: str
    total_bytes:
      description: "Phases V(look) and V(write): its size."
      type: int
    free_bytes:
      description: "Phases V(look) and V(write): what is left for users."
      type: int
    used_percent:
      description: "Phases V(look) and V(write): how full it is."
      type: float
    read_only:
      description: "Phases V(look) and V(write): whether it is mounted so."
      type: bool
    uid:
      description: "Phase V(write): the user who wrote. Null where C(refusal) says why nobody could."
      type: int
    write_mbps:
      description: "Phase V(write): 10^6 bytes a second, synced. Null where it was not measured."
      type: float
    files_per_second:
      description: "Phase V(write): small files made, looked at and removed. Null where it was not measured."
      type: float
    refusal:
      description: "Phase V(write): why nothing was written or measured, though it was asked for."
      type: str
    held:
      description: "Phases V(write) and V(release): why the own lock is not held; empty where it is."
      type: str
    unseen:
      description: "Phase V(compare): members whose files are not there."
      type: list
      elements: str
    read_mbps:
      description: "Phase V(compare): 10^6 bytes a second of the next member's file. Null where it was not measured."
      type: float
    lock:
      description: "Phases V(compare) and V(take): V(granted), V(busy), or why there are no locks. Null where nobody holds one."
      type: str
users:
  description: "Phase V(write): the numbers of the people who have an account here, by which volumes tell them apart."
  returned: success
  type: dict
  sample:
    alice: 1001
"""

import functools
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import holding, probe
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.bounded import bounded

#: Beside the measurements themselves: three of them at most in a phase, each with a last sync.
_MORE_SECONDS = 30.0
_LOOK_SECONDS = 10.0
_MIB = 1 << 20


def examine(params: Dict[str, Any], volume: Dict[str, Any], value: Dict[str, Any]) -> None:
    """One phase on one volume. What is found until something fails is in ``value`` as well."""
    phase, run, machine = params["phase"], params["run"], params["machine"]
    point, members = volume["mount_point"], params["members"]
    limits = probe.Limits(params["size_mib"] * _MIB, params["files"], params["seconds"], params["max_used_percent"])
    within = 3 * params["seconds"] + _MORE_SECONDS
    neighbour = probe.neighbour_of(machine, members)
    if phase in ("look", "write"):
        value.update(bounded(functools.partial(probe.look, point), _LOOK_SECONDS))
    if volume["read_only"] or phase == "look":
        return
    if phase == "write":
        value.update(bounded(functools.partial(probe.write, point, run, machine, len(members), limits), within))
        lockable = neighbour and value["uid"] is not None
        value["held"] = holding.start(point, run, machine, volume["name"], params["lifetime"]) if lockable else ""
    elif phase == "compare":
        others = probe.others(machine, members)
        value.update(bounded(functools.partial(probe.compare, point, run, others, neighbour or "", limits), within))
    elif phase == "release":
        value["held"] = holding.release(volume["name"], run, machine) if neighbour else ""
    elif phase == "take":
        value["lock"] = None
        if neighbour:
            value.update(bounded(functools.partial(probe.take, point, run, neighbour), within))
    else:
        bounded(functools.partial(probe.clean, point, run, machine), within)


def work(params: Dict[str, Any]) -> Outcome:
    """One phase on all volumes."""
    found: Dict[str, Dict[str, Any]] = {}
    for volume in params["volumes"]:
        value = found.setdefault(volume["name"], {"trouble": ""})
        try:
            examine(params, volume, value)
        except HostStateError as failure:
            value["trouble"] = failure.message
    return Outcome(False, {"volumes": found, "users": people() if params["phase"] == "write" else {}})


def people() -> Dict[str, int]:
    """Nobody, where the directory that knows them does not answer."""
    try:
        return bounded(probe.users, _LOOK_SECONDS)
    except HostStateError:
        return {}


def main() -> None:
    """The module's entry point."""
    own = ["run", "machine"]
    phases = ["look", "write", "compare", "release", "take", "clean"]
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "required": True, "choices": phases},
            "volumes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "mount_point": {"type": "path", "required": True},
                    "read_only": {"type": "bool", "default": False},
                },
            },
            "run": {"type": "str"},
            "machine": {"type": "str"},
            "members": {"type": "list", "elements": "str", "default": []},
            "size_mib": {"type": "int", "default": 0},
            "files": {"type": "int", "default": 200},
            "seconds": {"type": "float", "default": 5},
            "max_used_percent": {"type": "float", "default": 95},
            "lifetime": {"type": "int", "default": 600},
        },
        required_if=[("phase", phase, own) for phase in phases if phase != "look"],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params))


if __name__ == "__main__":
    main()

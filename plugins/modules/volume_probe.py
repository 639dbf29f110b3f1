#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_probe
short_description: Test and measure the volumes of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Tests whether a volume is the same file system on all members and whether locks held by one member are respected by the
    others, and measures its usage and the speed of writing, reading and creating small files.
  - All members must complete a phase before the next one starts. M(gpumesh.cluster.verdict) evaluates the results.
  - Each member writes to its own directory on the volume, C(.gpumesh-check-RUN-MACHINE), which V(clean) removes. It writes
    as root or, if root may not, as the owner of the volume.
  - The module always returns in time. Problems with a volume are returned as results and do not fail the module.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
attributes:
  check_mode:
    details:
      - It only measures, and removes the files that it writes.
options:
  phase:
    description:
      - V(usage) returns what is mounted and its usage, and writes nothing.
      - V(write) does the same, writes this member's files to the volume, measures the speed, and acquires two locks, of
        which it releases the second one.
      - V(compare) looks for the other members' files, reads those of the next member in the ring, and tries to acquire its
        two locks. The first one must be refused, the second one granted.
      - V(clean) releases this member's first lock and removes its files.
    type: str
    required: true
    choices: [usage, write, compare, clean]
  volumes:
    description: The volumes to test.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The name of the volume.
        type: str
        required: true
      mount_point:
        description: The mount point, or a directory on the volume.
        type: path
        required: true
      read_only:
        description: Whether the volume is read-only. If so, only the phase V(usage) applies to it.
        type: bool
        default: false
  run:
    description: A name for the run, which must be the same on all members and new for each run. Not required for V(usage).
    type: str
  machine:
    description: The name of this member. Not required for V(usage).
    type: str
  members:
    description: All members that take part, in the same order on every member.
    type: list
    elements: str
    default: []
  size_mib:
    description: The size in MiB of the file that is written and read. V(0) disables the measurements.
    type: int
    default: 0
  files:
    description: The number of small files that are created, examined and removed.
    type: int
    default: 200
  seconds:
    description: The time in seconds after which a measurement ends with the data that it has.
    type: float
    default: 5
  max_used_percent:
    description: Skip the measurements if the files of all members would fill the volume beyond this percentage.
    type: float
    default: 95
  lifetime:
    description: The time in seconds after which the lock is released in any case.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Examine the volume
  gpumesh.cluster.volume_probe:
    phase: usage
    volumes:
      - name: data
        mount_point: /data
  register: usage

- name: Test writing on every member
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
  description: The results of the phase, by the name of the volume.
  returned: success
  type: dict
  contains:
    trouble:
      description: Why the phase could not be performed. Empty if it was.
      type: str
    filesystem:
      description: "Phases V(usage) and V(write): the type of the file system."
      type: str
    source:
      description: "Phases V(usage) and V(write): what is mounted."
      type: str
    point:
      description: "Phases V(usage) and V(write): the mount point."
      type: str
    total_bytes:
      description: "Phases V(usage) and V(write): its size."
      type: int
    free_bytes:
      description: "Phases V(usage) and V(write): the space that users have left."
      type: int
    used_percent:
      description: "Phases V(usage) and V(write): the usage in percent."
      type: float
    read_only:
      description: "Phases V(usage) and V(write): whether it is mounted read-only."
      type: bool
    uid:
      description: "Phase V(write): the UID of the user who wrote. Null if C(refusal) says why nobody could."
      type: int
    write_mbps:
      description: "Phase V(write): the speed in 10^6 bytes per second, synced. Null if it was not measured."
      type: float
    files_per_second:
      description: "Phase V(write): small files created, examined and removed. Null if it was not measured."
      type: float
    refusal:
      description: "Phase V(write): why nothing was written or measured although it was requested."
      type: str
    lock_error:
      description: "Phases V(write) and V(compare): why this member does not hold its first lock. Empty if it does."
      type: str
    missing_members:
      description: "Phase V(compare): members whose files are not visible."
      type: list
      elements: str
    read_mbps:
      description: "Phase V(compare): the speed of reading the next member's file in 10^6 bytes per second. Null if not measured."
      type: float
    lock:
      description: "Phase V(compare): whether the first lock of the next member was V(granted) or V(busy), or why locks do
        not work. Null if nobody holds one."
      type: str
    released_lock:
      description: "Phase V(compare): the same for its second lock, which it has released."
      type: str
users:
  description: "Phase V(write): the UIDs of the human users of this host, by which volumes identify them."
  returned: success
  type: dict
  sample:
    alice: 1001
"""

import functools
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import run_with_deadline
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import holding, probe

#: The time limit beyond the measurements: at most three in a phase, each with a final sync.
_EXTRA_SECONDS = 30.0
_LOOK_SECONDS = 10.0
_MIB = 1 << 20


def examine(params: Dict[str, Any], volume: Dict[str, Any], volume_result: Dict[str, Any]) -> None:
    """Perform one phase on one volume. ``volume_result`` also has the results that precede a failure."""
    phase, run_id, machine = params["phase"], params["run"], params["machine"]
    mount_point, members = volume["mount_point"], params["members"]
    probe_limits = probe.ProbeLimits(
        params["size_mib"] * _MIB, params["files"], params["seconds"], params["max_used_percent"]
    )
    time_limit = 3 * params["seconds"] + _EXTRA_SECONDS
    neighbour = probe.next_machine(machine, members)
    if phase in ("usage", "write"):
        volume_result.update(run_with_deadline(functools.partial(probe.read_volume_usage, mount_point), _LOOK_SECONDS))
    if volume["read_only"] or phase == "usage":
        return
    if phase == "write":
        volume_result.update(
            run_with_deadline(
                functools.partial(probe.write_and_measure, mount_point, run_id, machine, len(members), probe_limits),
                time_limit,
            )
        )
        can_lock = neighbour and volume_result["uid"] is not None
        volume_result["lock_error"] = (
            holding.start_lock_owner(mount_point, run_id, machine, volume["name"], params["lifetime"])
            if can_lock
            else ""
        )
    elif phase == "compare":
        other_members = probe.other_machines(machine, members)
        try:
            volume_result.update(
                run_with_deadline(
                    functools.partial(
                        probe.check_members, mount_point, run_id, other_members, neighbour or "", probe_limits
                    ),
                    time_limit,
                )
            )
            volume_result["released_lock"] = None
            if volume_result["lock"] is not None:
                volume_result.update(
                    run_with_deadline(
                        functools.partial(probe.take_released_lock, mount_point, run_id, str(neighbour)), time_limit
                    )
                )
        finally:
            # Another member tries to get it meanwhile, whatever this one has found.
            volume_result["lock_error"] = (
                holding.explain_lost_lock(volume["name"], run_id, machine) if neighbour else ""
            )
    else:
        try:
            holding.end_lock_owner(volume["name"], run_id, machine)
        finally:
            run_with_deadline(functools.partial(probe.remove_own_files, mount_point, run_id, machine), time_limit)


def work(params: Dict[str, Any]) -> ModuleResult:
    """Perform one phase on all volumes."""
    results_by_volume: Dict[str, Dict[str, Any]] = {}
    for volume in params["volumes"]:
        volume_result = results_by_volume.setdefault(volume["name"], {"trouble": ""})
        try:
            examine(params, volume, volume_result)
        except HostStateError as failure:
            volume_result["trouble"] = failure.message
    return ModuleResult(
        False, {"volumes": results_by_volume, "users": list_human_users() if params["phase"] == "write" else {}}
    )


def list_human_users() -> Dict[str, int]:
    """Return the users with their UIDs; empty if the directory service does not respond."""
    try:
        return run_with_deadline(probe.list_users, _LOOK_SECONDS)
    except HostStateError:
        return {}


def main() -> None:
    """The module's entry point."""
    required_options = ["run", "machine"]
    phases = ["usage", "write", "compare", "clean"]
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
        required_if=[("phase", phase, required_options) for phase in phases if phase != "usage"],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params))


if __name__ == "__main__":
    main()

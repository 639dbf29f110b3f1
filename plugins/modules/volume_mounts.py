#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_mounts
short_description: The volumes of a cluster that a host mounts
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Has the units of systemd by which this host mounts the volumes of a cluster, started and enabled, and takes away those
    of volumes that the cluster no longer has.
  - In a container, which has no systemd or none that can mount at first use, the volumes stand in C(/etc/fstab) and are
    mounted at once. After a restart of the container they are mounted by the next run, or by C(mount) and the mount point.
  - A volume that somebody uses is not unmounted; the error names the processes and their users.
  - A volume whose handle the server no longer knows is unmounted, and mounted anew at its next use.
  - Refuses a host whose kernel lacks NFS, and a container that may not mount. Where only programs are missing, it changes nothing and
    says which packages to install before the next call.
  - Refuses a host that lacks a file system of O(external). These are looked at, and never mounted or unmounted.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  cluster:
    description: Name of the cluster. Only its units are touched.
    type: str
    required: true
  mounts:
    description: What the filter P(gpumesh.cluster.storage_mounts#filter) makes of the cluster record.
    type: list
    elements: dict
    required: true
    suboptions:
      volume:
        description: Name of the volume.
        type: str
        required: true
      unit:
        description: Name of the units, without suffix.
        type: str
        required: true
      mount_point:
        description: Where it is mounted.
        type: path
        required: true
      mount:
        description: Text of the mount unit.
        type: str
        required: true
      automount:
        description: Text of the automount unit.
        type: str
        required: true
  external:
    description: What the filter P(gpumesh.cluster.storage_external#filter) makes of the cluster record.
    type: list
    elements: dict
    default: []
    suboptions:
      volume:
        description: Name of the volume.
        type: str
        required: true
      mount_point:
        description: A folder on it, or where it is mounted.
        type: path
        required: true
      filesystem:
        description: The type that it has to be. By default any that is not the root file system.
        type: str
      read_only:
        description: Whether it may be mounted read-only.
        type: bool
        default: false
  serves:
    description: Whether this host is the server of one of them.
    type: bool
    default: false
  server:
    description: The program that serves. V(ganesha) needs nothing of the kernel.
    type: str
    choices: [kernel, ganesha]
    default: kernel
  force:
    description: Unmount what is in use, too. Its users keep what they have open until they close it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Mount the volumes
  gpumesh.cluster.volume_mounts:
    cluster: "{{ cluster_record.name }}"
    mounts: "{{ cluster_record | gpumesh.cluster.storage_mounts(inventory_hostname) }}"

- name: Mount nothing any more
  gpumesh.cluster.volume_mounts:
    cluster: lab
    mounts: []
"""

RETURN = r"""
missing:
  description: What has to be installed first, of V(kernel), V(ganesha) and V(client). Nothing else has been done then.
  type: list
  elements: str
  returned: success
  sample: []
healed:
  description: Mount points of which the handle was stale.
  type: list
  elements: str
  returned: success
  sample: [/data]
removed:
  description: Units, without suffix, of volumes that the cluster no longer has; in a container, their mount points.
  type: list
  elements: str
  returned: success
  sample: [mnt-old]
quotas:
  description: Volumes of the cluster that P(gpumesh.cluster.volume_quota#module) has limited on this host.
  type: list
  elements: str
  returned: success
  sample: [scratch]
"""

import os
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import command, files, guarded, holders
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import options_by_point
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import fstab, mounts, ports, quota, volumes

_PROC = "/proc"


def read(path: str) -> str:
    """A file of /proc."""
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def look(params: Dict[str, Any], wanted: List[mounts.Units]) -> mounts.Host:
    """What this host has."""
    ours = mounts.parse_ours(mounts.read_units(), params["cluster"])
    points = {mounts.mount_point_of(text) for text in ours.values()} | {units.mount_point for units in wanted}
    mounted = holders.mounted(read(os.path.join(_PROC, "self/mounts")), sorted(points))
    known = [units.name for units in wanted if units.name + ".automount" in ours]
    return mounts.Host(
        ours,
        mounted,
        mounts.stale(command.run, mounted),
        mounts.idle_automounts(command.run, known),
        holders.volume_users(_PROC, mounted),
        options_by_point(read(os.path.join(_PROC, "self/mountinfo"))),
    )


def refuse_without_kernel(params: Dict[str, Any], fetched: bool) -> None:
    """A container has its host's kernel, and no module can be loaded from there."""
    served = params["serves"] and params["server"] == "kernel"
    missing = mounts.missing_in_kernel(command.run, read(os.path.join(_PROC, "filesystems")), served, fetched)
    if missing:
        names = ", ".join(mount["volume"] for mount in params["mounts"])
        raise HostStateError(
            f"This kernel has no {' and no '.join(missing)}, which volume {names} needs (a container shares its host's "
            "kernel).",
            "Load the module on the machine itself, choose another server, or set storage_backend=none. To serve alone, "
            "storage_server=ganesha needs nothing of the kernel.",
            missing=missing,
        )


def work_without_automounts(params: Dict[str, Any], check_mode: bool) -> Outcome:
    """The same by lines of fstab."""
    wanted = dict(fstab.line_of(each["mount"]) for each in params["mounts"])
    lines = fstab.parse(files.read_text(fstab.PATH) or "", params["cluster"])
    mounted = holders.mounted(read(os.path.join(_PROC, "self/mounts")), sorted({*wanted, *lines}))
    users = holders.volume_users(_PROC, mounted)
    options = options_by_point(read(os.path.join(_PROC, "self/mountinfo")))
    host = fstab.Host(lines, mounted, mounts.stale(command.run, mounted), users, options)
    plan = fstab.make_plan(wanted, host, params["force"])
    if plan.changed and not check_mode:
        fstab.apply(command.run, plan, wanted, params["cluster"])
    healed = [point for point in plan.unmount if point in host.stale and point in wanted]
    removed = sorted(set(lines) - set(wanted))
    values = {"missing": [], "healed": healed, "removed": removed}
    return Outcome(plan.changed, values, *fstab.as_diff(plan, wanted, host))


def mount(params: Dict[str, Any], check_mode: bool) -> Outcome:
    """Look, plan, apply."""
    wanted = [
        mounts.Units(each["unit"], each["mount_point"], {".mount": each["mount"], ".automount": each["automount"]})
        for each in params["mounts"]
    ]
    volumes.refuse_missing(params["external"])
    fetched = any("\nType=nfs4\n" in each["mount"] for each in params["mounts"])
    refuse_without_kernel(params, fetched)
    points = [units.mount_point for units in wanted]
    there = holders.mounted(read(os.path.join(_PROC, "self/mounts")), points)
    guarded.refuse_swappable(point for point in points if point not in there)
    automounts = mounts.automounts()
    if wanted and not automounts:
        fstab.refuse_without_right(read(os.path.join(_PROC, "self/status")))
    missing = mounts.missing_programs(params["server"] if params["serves"] else None, fetched)
    if missing:
        return Outcome(False, {"missing": missing, "healed": [], "removed": []})
    if not automounts:
        return work_without_automounts(params, check_mode)
    host = look(params, wanted)
    plan = mounts.make_plan(wanted, host, params["force"])
    if plan.changed and not check_mode:
        mounts.apply(command.run, plan)
    healed = [units.mount_point for units in wanted if units.name in plan.heal]
    values = {"missing": [], "healed": healed, "removed": plan.delete}
    return Outcome(plan.changed, values, *mounts.as_diff(plan, host))


def work(module: AnsibleModule) -> Outcome:
    """Mount, and say which quotas an earlier run has left."""
    cluster = module.params["cluster"]
    closing = ports.look(cluster, bool(module.params["mounts"]))
    outcome = mount(module.params, module.check_mode)
    if (closing.close or closing.forget) and not outcome.values["missing"]:
        before, after = ports.as_diff(closing)
        outcome = outcome._replace(changed=True, before=before + outcome.before, after=after + outcome.after)
        if not module.check_mode:
            ports.apply(closing, cluster)
    quotas = sorted(quota.parse(quota.read_files(), cluster))
    return outcome._replace(values={**outcome.values, "quotas": quotas})


def main() -> None:
    """The module's entry point."""
    text = {"type": "str", "required": True}
    mount = {"volume": text, "unit": text, "mount_point": {"type": "path", "required": True}, "mount": text}
    module = AnsibleModule(
        argument_spec={
            "cluster": text,
            "mounts": {"type": "list", "elements": "dict", "required": True, "options": {**mount, "automount": text}},
            "external": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "volume": text,
                    "mount_point": {"type": "path", "required": True},
                    "filesystem": {"type": "str"},
                    "read_only": {"type": "bool", "default": False},
                },
            },
            "serves": {"type": "bool", "default": False},
            "server": {"type": "str", "choices": ["kernel", "ganesha"], "default": "kernel"},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

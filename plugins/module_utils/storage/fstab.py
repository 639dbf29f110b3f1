# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in containers where systemd does not run, or cannot mount on first use.

Their lines are in /etc/fstab, and each run of the playbook checks their mounts.

The lines have ``noauto``: starting such a container must not wait for a server, and the mesh is not up yet.

ansible.posix.mount is not used: it handles one volume per call, which would be a loop of tasks over the volumes of each
host. It unmounts volumes in use without checking, or fails, and does not detect stale handles.
"""

from __future__ import annotations

import os
import re
import time
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.holders import VolumeUser, refuse_in_use
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import CAP_SYS_ADMIN, has_capability
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import flags

PATH = "/etc/fstab"
_MOUNT_SECONDS = 100
#: Seconds between attempts to mount what a server refuses.
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Options for systemd in units, which mount(8) does not know.
_OF_SYSTEMD = ("nofail", "noauto")


class Host(NamedTuple):
    """``lines`` are those of our block by mount point; the other fields as in ``mounts.Host``."""

    lines: Mapping[str, str]
    mounted: Sequence[str]
    stale: Sequence[str]
    users: Sequence[VolumeUser]
    options: Mapping[str, Sequence[str]] = {}


class Plan(NamedTuple):
    """Mount points to unmount, whether the block is written, mount points to mount, and mounts to remount."""

    unmount: List[str]
    write: bool
    mount: List[str]
    remount: Tuple[flags.Remount, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


def line_of(unit: str) -> Tuple[str, str]:
    """The mount point and the line of fstab(5) that correspond to the text of a mount unit."""
    values = dict.fromkeys(("What", "Where", "Type", "Options"), "")
    values.update(re.findall(r"(?m)^(What|Where|Type|Options)=(.*)$", unit))
    options = [option for option in values["Options"].split(",") if option not in _OF_SYSTEMD]
    text = f"{values['What']} {values['Where']} {values['Type']} {','.join([*options, 'noauto'])} 0 0"
    return values["Where"], text


def marker(cluster: str) -> str:
    """The marker of the managed lines."""
    return f"# {{mark}} volumes of gpumesh cluster {cluster}"


def parse(text: str, cluster: str) -> Mapping[str, str]:
    """Our lines by mount point, from the whole file."""
    lines = (host_files.block_in(PATH, text, marker(cluster)) or "").splitlines()
    return {line.split()[1]: line for line in lines if len(line.split()) > 1}


def lines_of_others(text: str, cluster: str) -> List[str]:
    """The lines outside our block."""
    return host_files.without_block(PATH, text, marker(cluster)).splitlines()


def make_plan(wanted: Mapping[str, str], host: Host, force: bool = False) -> Plan:
    """Decide what to do. Raises HostStateError that names the users of a volume that has to be unmounted."""
    ending = [
        point
        for point, line in host.lines.items()
        if flags.line_without(wanted.get(point, "")) != flags.line_without(line)
    ]
    refuse_in_use(
        [user for user in host.users if user.mount_point in ending and user.mount_point not in host.stale], force
    )
    unmount = [point for point in host.mounted if point in ending or point in host.stale]
    missing = [point for point in wanted if point not in host.mounted or point in unmount]
    staying = {point: flags.of_line(line) for point, line in wanted.items() if point not in missing}
    return Plan(unmount, dict(wanted) != dict(host.lines), missing, flags.remounts(staying, host.options))


def refuse_without_right(status: str) -> None:
    """``status`` is /proc/self/status. A container may have the kernel's NFS, but not the permission to mount."""
    if not has_capability(status, CAP_SYS_ADMIN):
        raise HostStateError(
            "This container cannot mount file systems: it lacks CAP_SYS_ADMIN.",
            "Start it with that capability, have its provider mount the volume and declare it without a server, or exclude "
            "the host out with storage_backend=none.",
        )


def apply(run: Runner, plan: Plan, wanted: Mapping[str, str], cluster: str, path: str = PATH) -> None:
    """Carry out the plan."""
    for point in plan.unmount:
        # Lazy: a mount that is stale, or removed by force, is in use.
        run(["umount", "--lazy", point], timeout=_MOUNT_SECONDS)
    if plan.write:
        content = "".join(f"{line}\n" for line in wanted.values())
        entry = {"path": path, "marker": marker(cluster), "content": content, "state": "block" if content else "absent"}
        host_files.see_to([entry], False)
    flags.apply(run, plan.remount)
    for point in plan.mount:
        os.makedirs(point, exist_ok=True)
        _mount(run, point, _PAUSES if wanted[point].split()[2] == "nfs4" else ())


def _mount(run: Runner, point: str, pauses: Sequence[float]) -> None:
    """Mount it. The server of a new volume may just be about to export it, in the same task."""
    argv = ["mount", point]
    for pause in pauses:
        if run(argv, timeout=_MOUNT_SECONDS, check=False).rc == 0:
            return
        time.sleep(pause)
    run(argv, timeout=_MOUNT_SECONDS)


def as_diff(plan: Plan, wanted: Mapping[str, str], host: Host) -> Tuple[str, str]:
    """The lines and the mounts, before and after."""
    before = "".join(f"{line}\n" for line in host.lines.values()) + "".join(f"# not mounted: {p}\n" for p in plan.mount)
    remounted = flags.as_diff(plan.remount)
    return before + remounted[0], "".join(f"{line}\n" for line in wanted.values()) + remounted[1]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in containers where systemd does not run, or cannot mount on first use.

The volumes have lines in /etc/fstab, and each run of the playbook checks their mounts.

The lines have ``noauto``: starting such a container must not wait for a server, and the mesh is not up yet.

ansible.posix.mount is not used: it handles one volume per call, which would be a loop of tasks over the volumes of each
host. It unmounts volumes in use without checking, or fails, and does not detect stale handles.
"""

from __future__ import annotations

import os
import re
import time
from typing import List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import CAP_SYS_ADMIN, has_capability
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.volume_users import VolumeUser, refuse_in_use
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import flags

FSTAB_PATH = "/etc/fstab"
_MOUNT_TIMEOUT = 100
#: The pauses in seconds between attempts to mount what a server refuses.
_RETRY_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Options in units for systemd, which mount(8) does not know.
_SYSTEMD_OPTIONS = ("nofail", "noauto")


class FstabState(NamedTuple):
    """The current state. ``lines`` are those of our block by mount point; the other fields as in MountState."""

    lines: Mapping[str, str]
    mounted: Sequence[str]
    stale: Sequence[str]
    users: Sequence[VolumeUser]
    options: Mapping[str, Sequence[str]] = {}


class FstabPlan(NamedTuple):
    """Mount points to unmount, whether the block changes, mount points to mount, and mounts to remount."""

    unmount_points: List[str]
    block_changed: bool
    mount_points: List[str]
    remounts: Tuple[flags.Remount, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


def convert_unit(unit_text: str) -> Tuple[str, str]:
    """Convert the text of a mount unit into its mount point and a line of fstab(5)."""
    unit_settings = dict.fromkeys(("What", "Where", "Type", "Options"), "")
    unit_settings.update(re.findall(r"(?m)^(What|Where|Type|Options)=(.*)$", unit_text))
    fstab_options = [option for option in unit_settings["Options"].split(",") if option not in _SYSTEMD_OPTIONS]
    fstab_line = f"{unit_settings['What']} {unit_settings['Where']} {unit_settings['Type']} {','.join([*fstab_options, 'noauto'])} 0 0"
    return unit_settings["Where"], fstab_line


def volumes_marker(cluster: str) -> str:
    """Return the marker of the managed lines."""
    return f"# {{mark}} volumes of gpumesh cluster {cluster}"


def parse_own_lines(text: str, cluster: str) -> Mapping[str, str]:
    """Return our lines by mount point, from the text of the whole file."""
    lines = (managed_files.find_block(FSTAB_PATH, text, volumes_marker(cluster)) or "").splitlines()
    return {line.split()[1]: line for line in lines if len(line.split()) > 1}


def select_other_lines(text: str, cluster: str) -> List[str]:
    """Return the lines outside our block."""
    return managed_files.remove_block(FSTAB_PATH, text, volumes_marker(cluster)).splitlines()


def plan_fstab(desired_lines: Mapping[str, str], host: FstabState, force: bool = False) -> FstabPlan:
    """Decide what to do. Raises HostStateError that names the users of a volume that has to be unmounted."""
    ending_points = [
        point
        for point, line in host.lines.items()
        if flags.strip_line_flags(desired_lines.get(point, "")) != flags.strip_line_flags(line)
    ]
    refuse_in_use(
        [user for user in host.users if user.mount_point in ending_points and user.mount_point not in host.stale], force
    )
    unmount_points = [point for point in host.mounted if point in ending_points or point in host.stale]
    missing_points = [point for point in desired_lines if point not in host.mounted or point in unmount_points]
    staying_options = {
        point: flags.parse_line_options(line) for point, line in desired_lines.items() if point not in missing_points
    }
    return FstabPlan(
        unmount_points,
        dict(desired_lines) != dict(host.lines),
        missing_points,
        flags.plan_remounts(staying_options, host.options),
    )


def refuse_without_capability(status_text: str) -> None:
    """Refuse a container that has the kernel's NFS, but may not mount. ``status_text`` is /proc/self/status."""
    if not has_capability(status_text, CAP_SYS_ADMIN):
        raise HostStateError(
            "This container cannot mount file systems: it lacks CAP_SYS_ADMIN.",
            "Start it with that capability, have its provider mount the volume and declare it without a server, "
            "or exclude the host with storage_backend=none.",
        )


def apply_fstab_plan(
    run: Runner, plan: FstabPlan, desired_lines: Mapping[str, str], cluster: str, fstab_path: str = FSTAB_PATH
) -> None:
    """Apply the plan."""
    for mount_point in plan.unmount_points:
        # The unmount is lazy, since a mount that is stale, or removed by force, is in use.
        run(["umount", "--lazy", mount_point], timeout=_MOUNT_TIMEOUT)
    if plan.block_changed:
        block_content = "".join(f"{line}\n" for line in desired_lines.values())
        block_entry = {
            "path": fstab_path,
            "marker": volumes_marker(cluster),
            "content": block_content,
            "state": "block" if block_content else "absent",
        }
        managed_files.ensure_files([block_entry], False)
    flags.apply_remounts(run, plan.remounts)
    for mount_point in plan.mount_points:
        os.makedirs(mount_point, exist_ok=True)
        _mount_with_retries(run, mount_point, _RETRY_PAUSES if desired_lines[mount_point].split()[2] == "nfs4" else ())


def _mount_with_retries(run: Runner, mount_point: str, retry_pauses: Sequence[float]) -> None:
    """Mount a volume, with retries: the server of a new volume may be about to export it, in the same task."""
    mount_command = ["mount", mount_point]
    for pause in retry_pauses:
        if run(mount_command, timeout=_MOUNT_TIMEOUT, check=False).rc == 0:
            return
        time.sleep(pause)
    run(mount_command, timeout=_MOUNT_TIMEOUT)


def format_fstab_diff(plan: FstabPlan, desired_lines: Mapping[str, str], host: FstabState) -> Tuple[str, str]:
    """Format the lines and the mounts, before and after."""
    before = "".join(f"{line}\n" for line in host.lines.values()) + "".join(
        f"# not mounted: {mount_point}\n" for mount_point in plan.mount_points
    )
    remounted = flags.format_remount_diff(plan.remounts)
    return before + remounted[0], "".join(f"{line}\n" for line in desired_lines.values()) + remounted[1]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd units that mount a cluster's volumes on this host: find, compare, write, unmount and repair them.

A volume in use is not unmounted: the error names its users. A stale one is unmounted regardless, since nobody can use
it; its automount mounts it again at the next access.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.volume_users import VolumeUser, refuse_in_use
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import flags

UNIT_DIRECTORY = "/etc/systemd/system"
_UNIT_SUFFIXES = (".mount", ".automount")

#: Requests to an unreachable NFS server fail only after its time limits; nothing here waits for that.
_PROBE_TIMEOUT = 10
#: A mount unit's own limit is 60 s. If its server is away, it ends umount then, and has to kill it after another 60 s.
_SYSTEMCTL_TIMEOUT = 200
#: The program that another process runs, which can be abandoned. The free space is requested from the server each
#: time, while attributes of a directory may be cached for a minute.
_PROBE_PROGRAM = (
    "import os, sys\ntry:\n    os.statvfs(sys.argv[1])\nexcept OSError as failure:\n    print(failure.errno)\n"
)


#: The kernel's device for automounts, which containers do not get.
_AUTOFS_DEVICE = "/dev/autofs"


class VolumeUnits(NamedTuple):
    """One volume: the name of its units without suffix, its mount point, and the units' texts by suffix."""

    name: str
    mount_point: str
    texts: Mapping[str, str]


class MountState(NamedTuple):
    """The current state. ``files`` is the text of our units by file name, ``mounted`` the mount points in use.

    ``idle`` are automounts that are not running or not enabled, ``options`` those of the current mounts.
    """

    files: Mapping[str, str]
    mounted: Sequence[str]
    stale: Sequence[str]
    idle: Sequence[str]
    users: Sequence[VolumeUser]
    options: Mapping[str, Sequence[str]] = {}


class MountPlan(NamedTuple):
    """Unit names without suffix, in the order in which the plan is applied, and mounts to remount."""

    stopped_units: List[str]
    deleted_units: List[str]
    written_units: List[VolumeUnits]
    started_units: List[str]
    healed_units: List[str]
    remounts: Tuple[flags.Remount, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


def supports_automount() -> bool:
    """Whether systemd can mount on first use here. Otherwise, volumes are in fstab."""
    return runs_systemd() and os.path.exists(_AUTOFS_DEVICE)


def select_own_units(text_by_name: Mapping[str, str], cluster: str) -> Dict[str, str]:
    """Return the units of the cluster by file name, identified by their description."""
    title = re.compile(rf"^Description=Volume .* of gpumesh cluster {re.escape(cluster)}(,.*)?$", re.MULTILINE)
    return {name: text for name, text in text_by_name.items() if title.search(text)}


def parse_mount_point(text: str) -> str:
    """Return the mount point of a unit."""
    match = re.search(r"^Where=(.*)$", text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def plan_mounts(desired_units: Sequence[VolumeUnits], host: MountState, force: bool = False) -> MountPlan:
    """Decide what to do. Raises HostStateError that names the users of a volume that has to be unmounted."""
    desired_names = {units.name for units in desired_units}
    point_by_name = {name.rsplit(".", 1)[0]: parse_mount_point(text) for name, text in host.files.items()}
    removed_names = sorted(set(point_by_name) - desired_names)
    differing_units = [
        units
        for units in desired_units
        if any(host.files.get(units.name + suffix) != units.texts[suffix] for suffix in _UNIT_SUFFIXES)
    ]
    # A setting that can be changed while the volume is in use does not require unmounting.
    remountable_units = [
        units for units in differing_units if units.name in point_by_name and _differ_only_by_flags(units, host.files)
    ]
    replaced_names = [
        units.name for units in differing_units if units.name in point_by_name and units not in remountable_units
    ]
    ending_points = {point_by_name[name] for name in (*removed_names, *replaced_names)}
    blocking_users = [
        user for user in host.users if user.mount_point in ending_points and user.mount_point not in host.stale
    ]
    refuse_in_use(blocking_users, force)
    starting_names = [
        units.name
        for units in desired_units
        if (units in differing_units and units not in remountable_units) or units.name in host.idle
    ]
    stale_names = [
        units.name for units in desired_units if units.mount_point in host.stale and units.name not in replaced_names
    ]
    staying_options = {
        units.mount_point: flags.parse_unit_options(units.texts[".mount"])
        for units in desired_units
        if units.name not in (*replaced_names, *stale_names) and units.mount_point in host.mounted
    }
    return MountPlan(
        [*removed_names, *replaced_names],
        removed_names,
        differing_units,
        starting_names,
        stale_names,
        flags.plan_remounts(staying_options, host.options),
    )


def _differ_only_by_flags(units: VolumeUnits, current_files: Mapping[str, str]) -> bool:
    return all(
        flags.strip_unit_flags(current_files.get(units.name + suffix, ""))
        == flags.strip_unit_flags(units.texts[suffix])
        for suffix in _UNIT_SUFFIXES
    )


def apply_mount_plan(run: Runner, plan: MountPlan, unit_directory: str = UNIT_DIRECTORY) -> None:
    """Apply the plan. Automounts are stopped before mounts, or the next access would mount again."""
    for unit_name in plan.stopped_units:
        for suffix in reversed(_UNIT_SUFFIXES):
            _run_systemctl(run, "stop", unit_name + suffix)
    for unit_name in plan.deleted_units:
        _run_systemctl(run, "disable", unit_name + ".automount")
        for suffix in _UNIT_SUFFIXES:
            remove_file(os.path.join(unit_directory, unit_name + suffix))
    for units in plan.written_units:
        for suffix, unit_text in units.texts.items():
            write_atomic(os.path.join(unit_directory, units.name + suffix), unit_text, 0o644)
    if plan.deleted_units or plan.written_units:
        _run_systemctl(run, "daemon-reload")
    flags.apply_remounts(run, plan.remounts)
    for unit_name in plan.started_units:
        _run_systemctl(run, "enable", "--now", unit_name + ".automount")
    for unit_name in plan.healed_units:
        _unmount_stale(run, unit_name + ".mount")
        # Stopping a mount leaves its automount active, unless that has failed meanwhile.
        _run_systemctl(run, "start", unit_name + ".automount")


def format_mount_diff(plan: MountPlan, host: MountState) -> Tuple[str, str]:
    """Format the changed texts, before and after."""
    unit_names = [units.name for units in plan.written_units] + plan.deleted_units
    texts_before = {
        name + suffix: host.files.get(name + suffix, "") for name in unit_names for suffix in _UNIT_SUFFIXES
    }
    texts_after = {units.name + suffix: text for units in plan.written_units for suffix, text in units.texts.items()}
    stale_note = "".join(f"# {name}: stale\n" for name in plan.healed_units)
    remount_diff = flags.format_remount_diff(plan.remounts)
    shown_after = _format_units({name: texts_after.get(name, "") for name in texts_before})
    return _format_units(texts_before) + stale_note + remount_diff[0], shown_after + remount_diff[1]


def find_differences(_run: Runner, params: Mapping[str, Any]) -> managed_files.LayerDifferences:
    """Describe how the directories, exports and units of this host differ from the parameters of the module storage.

    If systemd cannot mount on first use, there are no units.
    """
    unit_entries = [
        {"path": os.path.join(UNIT_DIRECTORY, mount["unit"] + suffix), "content": mount[suffix[1:]]}
        for mount in (params["mounts"] if supports_automount() else [])
        for suffix in _UNIT_SUFFIXES
    ]
    return managed_files.differences([*params["folders"], *params["files"], *unit_entries])


def read_units(unit_directory: str = UNIT_DIRECTORY) -> Dict[str, str]:
    """Read all mount and automount units in the directory, by file name."""
    text_by_name = {
        name: _read_unit(os.path.join(unit_directory, name))
        for name in list_names(unit_directory)
        if name.endswith(_UNIT_SUFFIXES)
    }
    return {name: text for name, text in text_by_name.items() if text is not None}


def find_idle_automounts(run: Runner, names: Iterable[str]) -> List[str]:
    """Return the units (without suffix) whose automount is not running, or not enabled at boot."""
    return [name for name in names if not is_running_and_enabled(run, name + ".automount")]


def is_running_and_enabled(run: Runner, unit: str) -> bool:
    """Whether a unit is running, and enabled at boot."""
    queries = (["systemctl", query, "--quiet", unit] for query in ("is-active", "is-enabled"))
    return all(run(argv, check=False).rc == 0 for argv in queries)


def find_stale_mounts(run: Runner, mount_points: Iterable[str]) -> List[str]:
    """Return the mount points whose handle the server no longer knows.

    A server that does not respond in time does not count.
    """
    return [path for path in mount_points if _probe_errno(run, path) == errno.ESTALE]


def find_missing_programs(server_kind: Optional[str], mounts_volumes: bool, has_quotas: bool) -> List[str]:
    """Return what has to be installed: ``kernel`` or ``ganesha`` for the server, ``client`` and ``quota``."""
    program_by_part = {
        "kernel": ("exportfs", server_kind == "kernel"),
        "ganesha": ("ganesha.nfsd", server_kind == "ganesha"),
        "client": ("mount.nfs4", mounts_volumes),
        "quota": ("xfs_quota", has_quotas),
    }
    return [part for part, (program, needed) in program_by_part.items() if needed and find_program(program) is None]


def find_missing_filesystems(
    run: Runner, filesystems_text: str, serves_volumes: bool, mounts_volumes: bool
) -> List[str]:
    """Return the file systems that this kernel has neither built in nor as a module.

    ``filesystems_text`` is /proc/filesystems.
    """
    available_names = {line.split()[-1] for line in filesystems_text.splitlines() if line.split()}
    module_by_name = {"nfsd": ("nfsd", serves_volumes), "nfs4": ("nfsv4", mounts_volumes)}
    return [
        name
        for name, (module, needed) in module_by_name.items()
        if needed
        and name not in available_names
        and (find_program("modprobe") is None or run(["modprobe", "--dry-run", "--quiet", module], check=False).rc != 0)
    ]


def _probe_errno(run: Runner, mount_point: str) -> Optional[int]:
    try:
        errno_text = run([sys.executable, "-c", _PROBE_PROGRAM, mount_point], timeout=_PROBE_TIMEOUT).stdout.strip()
    except CommandError:
        return None
    return int(errno_text) if errno_text else None


def _run_systemctl(run: Runner, *arguments: str) -> None:
    run(["systemctl", *arguments], timeout=_SYSTEMCTL_TIMEOUT)


def _unmount_stale(run: Runner, unit: str) -> None:
    stop_command = ["systemctl", "stop", unit]
    result = run(stop_command, timeout=_SYSTEMCTL_TIMEOUT, check=False)
    # An access after unmounting mounts the volume again, which cancels the remaining jobs of systemd.
    if result.rc != 0 and "canceled" not in result.stderr:
        raise CommandError(stop_command, f"exited {result.rc}", result.rc, result.stderr)


def _read_unit(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _format_units(text_by_name: Mapping[str, str]) -> str:
    return "".join(f"# {name}\n{text}" for name, text in text_by_name.items() if text)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that mount a cluster's volumes on this host: find ours, compare, write, unmount, repair.

A volume in use is not unmounted: the error names its users. A stale one is unmounted regardless, since nobody can use
it; its automount mounts it again at the next access.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.holders import VolumeUser, refuse_in_use
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import flags

UNIT_FOLDER = "/etc/systemd/system"
_SUFFIXES = (".mount", ".automount")

#: Requests to an unreachable NFS server fail only after its time limits; nothing here waits for that.
_PROBE_SECONDS = 10
#: A mount unit's own limit is 60 s. If its server is away, it ends umount then, and has to kill it after another 60 s.
_SYSTEMCTL_SECONDS = 200
#: Called in another process, which can be abandoned. The free space is requested from the server each time, while
#: attributes of a folder may be cached for a minute.
_PROBE = "import os, sys\ntry:\n    os.statvfs(sys.argv[1])\nexcept OSError as failure:\n    print(failure.errno)\n"


#: The kernel's device for automounts, which containers do not get.
_AUTOFS = "/dev/autofs"


class Units(NamedTuple):
    """One volume: the name of its units without suffix, its mount point, and the units' texts by suffix."""

    name: str
    mount_point: str
    texts: Mapping[str, str]


class Host(NamedTuple):
    """The current state. ``files`` is the text of our units by file name, ``mounted`` the mount points in use.

    ``idle`` are automounts that are not running or not enabled, ``options`` those of the current mounts.
    """

    files: Mapping[str, str]
    mounted: Sequence[str]
    stale: Sequence[str]
    idle: Sequence[str]
    users: Sequence[VolumeUser]
    options: Mapping[str, Sequence[str]] = {}


class Plan(NamedTuple):
    """Unit names without suffix, in the order in which apply() handles them, and mounts to remount."""

    stop: List[str]
    delete: List[str]
    write: List[Units]
    start: List[str]
    heal: List[str]
    remount: Tuple[flags.Remount, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there is anything to do."""
        return any(self)


def automounts() -> bool:
    """Whether systemd can mount on first use here. Otherwise, volumes are in fstab."""
    return runs_systemd() and os.path.exists(_AUTOFS)


def parse_ours(texts: Mapping[str, str], cluster: str) -> Dict[str, str]:
    """The units of the cluster by file name, identified by their description."""
    title = re.compile(rf"^Description=Volume .* of gpumesh cluster {re.escape(cluster)}(,.*)?$", re.MULTILINE)
    return {name: text for name, text in texts.items() if title.search(text)}


def mount_point_of(text: str) -> str:
    """The mount point of a unit."""
    match = re.search(r"^Where=(.*)$", text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def make_plan(wanted: Sequence[Units], host: Host, force: bool = False) -> Plan:
    """Decide what to do. Raises HostStateError that names the users of a volume that has to be unmounted."""
    names = {units.name for units in wanted}
    there = {name.rsplit(".", 1)[0]: mount_point_of(text) for name, text in host.files.items()}
    gone = sorted(set(there) - names)
    differing = [
        units
        for units in wanted
        if any(host.files.get(units.name + suffix) != units.texts[suffix] for suffix in _SUFFIXES)
    ]
    # A setting that can be changed while the volume is in use does not require unmounting.
    changed = [units for units in differing if units.name in there and _differ_by_flags(units, host.files)]
    replaced = [units.name for units in differing if units.name in there and units not in changed]
    ending = {there[name] for name in (*gone, *replaced)}
    users = [user for user in host.users if user.mount_point in ending and user.mount_point not in host.stale]
    refuse_in_use(users, force)
    starting = [
        units.name for units in wanted if (units in differing and units not in changed) or units.name in host.idle
    ]
    stale = [units.name for units in wanted if units.mount_point in host.stale and units.name not in replaced]
    staying = {
        units.mount_point: flags.of_unit(units.texts[".mount"])
        for units in wanted
        if units.name not in (*replaced, *stale) and units.mount_point in host.mounted
    }
    return Plan([*gone, *replaced], gone, differing, starting, stale, flags.remounts(staying, host.options))


def _differ_by_flags(units: Units, files: Mapping[str, str]) -> bool:
    return all(
        flags.unit_without(files.get(units.name + suffix, "")) == flags.unit_without(units.texts[suffix])
        for suffix in _SUFFIXES
    )


def apply(run: Runner, plan: Plan, folder: str = UNIT_FOLDER) -> None:
    """Carry out the plan. Automounts are stopped before mounts, or the next access would mount again."""
    for name in plan.stop:
        for suffix in reversed(_SUFFIXES):
            _systemctl(run, "stop", name + suffix)
    for name in plan.delete:
        _systemctl(run, "disable", name + ".automount")
        for suffix in _SUFFIXES:
            remove_file(os.path.join(folder, name + suffix))
    for units in plan.write:
        for suffix, text in units.texts.items():
            write_atomic(os.path.join(folder, units.name + suffix), text, 0o644)
    if plan.delete or plan.write:
        _systemctl(run, "daemon-reload")
    flags.apply(run, plan.remount)
    for name in plan.start:
        _systemctl(run, "enable", "--now", name + ".automount")
    for name in plan.heal:
        _unmount_stale(run, name + ".mount")
        # Stopping a mount leaves its automount active, unless that has failed meanwhile.
        _systemctl(run, "start", name + ".automount")


def as_diff(plan: Plan, host: Host) -> Tuple[str, str]:
    """The changed texts, before and after."""
    names = [units.name for units in plan.write] + plan.delete
    before = {name + suffix: host.files.get(name + suffix, "") for name in names for suffix in _SUFFIXES}
    after = {units.name + suffix: text for units in plan.write for suffix, text in units.texts.items()}
    healed = "".join(f"# {name}: stale\n" for name in plan.heal)
    remounted = flags.as_diff(plan.remount)
    shown = _shown({name: after.get(name, "") for name in before})
    return _shown(before) + healed + remounted[0], shown + remounted[1]


def differences(_run: Runner, params: Mapping[str, Any]) -> host_files.Differences:
    """How the folders, exports and units of this host differ from the parameters of the module storage.

    If systemd cannot mount on first use, there are no units.
    """
    units = [
        {"path": os.path.join(UNIT_FOLDER, mount["unit"] + suffix), "content": mount[suffix[1:]]}
        for mount in (params["mounts"] if automounts() else [])
        for suffix in _SUFFIXES
    ]
    return host_files.differences([*params["folders"], *params["files"], *units])


def read_units(folder: str = UNIT_FOLDER) -> Dict[str, str]:
    """The text of all mount and automount units of the administrator, by file name."""
    texts = {name: _read(os.path.join(folder, name)) for name in names_in(folder) if name.endswith(_SUFFIXES)}
    return {name: text for name, text in texts.items() if text is not None}


def idle_automounts(run: Runner, names: Iterable[str]) -> List[str]:
    """The units (without suffix) whose automount is not running, or not enabled at boot."""
    return [name for name in names if not runs(run, name + ".automount")]


def runs(run: Runner, unit: str) -> bool:
    """Whether a unit is running, and enabled at boot."""
    asked = (["systemctl", word, "--quiet", unit] for word in ("is-active", "is-enabled"))
    return all(run(argv, check=False).rc == 0 for argv in asked)


def stale(run: Runner, mount_points: Iterable[str]) -> List[str]:
    """The mount points whose handle the server no longer knows.

    A server that does not answer in time is another case.
    """
    return [path for path in mount_points if _error(run, path) == errno.ESTALE]


def missing_programs(server: Optional[str], fetched: bool, limited: bool) -> List[str]:
    """What has to be installed: the server's ``kernel`` or ``ganesha``, ``client``, and ``quota``."""
    wanted = {
        "kernel": ("exportfs", server == "kernel"),
        "ganesha": ("ganesha.nfsd", server == "ganesha"),
        "client": ("mount.nfs4", fetched),
        "quota": ("xfs_quota", limited),
    }
    return [part for part, (program, needed) in wanted.items() if needed and find(program) is None]


def missing_in_kernel(run: Runner, filesystems: str, served: bool, fetched: bool) -> List[str]:
    """File systems that this kernel has neither built in (``filesystems`` is /proc/filesystems) nor as a module."""
    there = {line.split()[-1] for line in filesystems.splitlines() if line.split()}
    wanted = {"nfsd": ("nfsd", served), "nfs4": ("nfsv4", fetched)}
    return [
        name
        for name, (module, needed) in wanted.items()
        if needed
        and name not in there
        and (find("modprobe") is None or run(["modprobe", "--dry-run", "--quiet", module], check=False).rc != 0)
    ]


def _error(run: Runner, path: str) -> Optional[int]:
    try:
        told = run([sys.executable, "-c", _PROBE, path], timeout=_PROBE_SECONDS).stdout.strip()
    except CommandError:
        return None
    return int(told) if told else None


def _systemctl(run: Runner, *words: str) -> None:
    run(["systemctl", *words], timeout=_SYSTEMCTL_SECONDS)


def _unmount_stale(run: Runner, unit: str) -> None:
    argv = ["systemctl", "stop", unit]
    done = run(argv, timeout=_SYSTEMCTL_SECONDS, check=False)
    # An access after unmounting mounts the volume again, which cancels the remaining jobs of systemd.
    if done.rc != 0 and "canceled" not in done.stderr:
        raise CommandError(argv, f"exited {done.rc}", done.rc, done.stderr)


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _shown(texts: Mapping[str, str]) -> str:
    return "".join(f"# {name}\n{text}" for name, text in texts.items() if text)

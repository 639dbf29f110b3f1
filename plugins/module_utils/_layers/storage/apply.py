# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the volumes to this host."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import (
    command,
    leased_process,
    managed_files,
    safe_path,
    volume_users,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import (
    LayerChange,
    ModuleResult,
    apply_changes,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import (
    parse_mount_options,
    parse_mountinfo,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import (
    foreign,
    fstab,
    mounts,
    ports,
    quota,
    serving,
    threads,
    volumes,
)

_ENTRIES_OPTION = {"type": "list", "elements": "dict", "default": []}
#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "server": {"type": "str", "choices": ["kernel", "ganesha"], "default": "kernel"},
    "force": {"type": "bool", "default": False},
    "cluster": {"type": "str"},
    "serves": {"type": "bool", "default": False},
    "exports": {"type": "dict", "default": {}},
    "connections": {"type": "int", "default": 0},
    **dict.fromkeys(("folders", "files", "quotas", "mounts", "external"), _ENTRIES_OPTION),
}


def read_proc_file(file_name: str) -> str:
    """Read a file of /proc."""
    with open(os.path.join("/proc", file_name), encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _server_program(params: Mapping[str, Any]) -> Optional[str]:
    return params["server"] if params["serves"] else None


def refuse_unfit(params: Mapping[str, Any], mounts_nfs: bool) -> None:
    """Refuse a host that cannot have the volumes. Raises HostStateError.

    A container has the kernel of its host, and cannot load modules into it.
    """
    volumes.refuse_missing_volumes(params["external"])
    bound_volumes = [
        mount["volume"]
        for mount in params["mounts"]
        if foreign.parse_desired_mount(mount).filesystem == foreign.BIND_FILESYSTEM
    ]
    serving.refuse_without_systemd(bound_volumes if params["serves"] else [], runs_systemd())
    serves_kernel = _server_program(params) == serving.KERNEL_SERVER
    missing_modules = mounts.find_missing_filesystems(
        command.run, read_proc_file("filesystems"), serves_kernel, mounts_nfs
    )
    if missing_modules:
        volume_names = ", ".join(mount["volume"] for mount in params["mounts"])
        raise HostStateError(
            f"This kernel has no {' and no '.join(missing_modules)}, which volume {volume_names} needs (a container shares its host's "
            "kernel).",
            "Load the module on the machine itself, choose another server, or set storage_backend=none. A server "
            "with storage_server=ganesha does not need it.",
            missing=missing_modules,
        )
    mount_points = [mount["mount_point"] for mount in params["mounts"]]
    refuse_foreign(params)
    mounted_points = volume_users.select_mounted(read_proc_file("self/mounts"), mount_points)
    safe_path.refuse_replaceable_mount_points(point for point in mount_points if point not in mounted_points)
    if mount_points and not mounts.supports_automount():
        fstab.refuse_without_capability(read_proc_file("self/status"))


def refuse_foreign(params: Mapping[str, Any]) -> None:
    """Refuse mount points at which others have mounted something else. Raises HostStateError."""
    if not params["mounts"]:
        return
    unit_texts = mounts.select_own_units(mounts.read_units(), params["cluster"])
    # The lines of the administrator may have any encoding.
    fstab_text = managed_files.read_current(fstab.FSTAB_PATH).text
    own_points = {
        *fstab.parse_own_lines(fstab_text, params["cluster"]),
        *(mounts.parse_mount_point(unit) for unit in unit_texts.values()),
    }
    desired_mounts = [foreign.parse_desired_mount(mount) for mount in params["mounts"]]
    foreign.refuse_other_mounts(parse_mountinfo(read_proc_file("self/mountinfo")), desired_mounts, own_points)
    if not mounts.supports_automount():
        foreign.refuse_other_lines(fstab.select_other_lines(fstab_text, params["cluster"]), desired_mounts, own_points)


def close_ports(params: Mapping[str, Any]) -> LayerChange:
    """Reserve the ports below 1024 for root where a volume is mounted."""
    port_plan = ports.plan_ports(params["cluster"], bool(params["mounts"]))
    apply_plan = functools.partial(ports.apply_ports_plan, port_plan, params["cluster"])
    return LayerChange(port_plan.changed, *ports.format_ports_diff(port_plan), apply_plan)


def ensure_directories(params: Mapping[str, Any]) -> LayerChange:
    """Plan the directories of the volumes that this host serves."""
    directory_steps = managed_files.plan_changes(params["folders"])
    return LayerChange(
        bool(directory_steps),
        *managed_files.format_diff(directory_steps),
        functools.partial(managed_files.apply_file_changes, directory_steps),
    )


def ensure_quotas(params: Mapping[str, Any], quota_files: quota.ProjectFiles) -> Tuple[LayerChange, Dict[str, Any]]:
    """Plan the quotas. Returns the change, and the quotas in the result of the module."""
    cluster = params["cluster"]
    quota_states = [
        quota.read_volume_quota(
            command.run,
            quota_entry["name"],
            quota_entry["path"],
            quota_entry["quota"],
            quota.choose_number(cluster, quota_entry["name"], quota_files),
        )
        for quota_entry in params["quotas"]
    ]
    quota_plan = quota.plan_quotas(cluster, quota_states, quota_files)
    reported_quotas = {
        quota_entry.name: {
            "project": quota.project_name(cluster, quota_entry.name),
            "limit_bytes": quota_entry.quota,
            "used_bytes": quota_entry.used,
        }
        for quota_entry in quota_states
    }
    return LayerChange(
        quota_plan.changed,
        *quota.format_quota_diff(quota_plan),
        functools.partial(quota.apply_quota_plan, command.run, quota_plan),
    ), reported_quotas


def ensure_threads(params: Mapping[str, Any]) -> LayerChange:
    """Plan the threads of the kernel's NFS server, which are set before it starts or gets more members."""
    thread_host = threads.read_nfsd_state(params["exports"].get(serving.KERNEL_SERVER, ""))
    thread_plan = threads.plan_threads(params["cluster"], params["connections"], thread_host)
    return LayerChange(
        thread_plan.changed,
        *threads.format_threads_diff(thread_plan),
        functools.partial(threads.apply_threads_plan, command.run, thread_plan),
    )


def serve(params: Mapping[str, Any]) -> LayerChange:
    """Plan the exports, and the server that reads them."""
    export_plan = serving.plan_server(command.run, params["files"], params["exports"], _server_program(params))

    def apply_plan() -> None:
        if export_plan.server:
            # The server needs its port immediately, but a listener of an interrupted check may still use it.
            leased_process.end_earlier_runs("")
        serving.apply_server_plan(command.run, export_plan)

    return LayerChange(export_plan.changed, *serving.format_server_diff(export_plan), apply_plan)


def mount_by_units(params: Mapping[str, Any]) -> Tuple[LayerChange, List[str], List[str]]:
    """Plan the mounts with systemd. Returns the change, the mount points that are healed, and what is removed."""
    desired_units = [
        mounts.VolumeUnits(
            mount["unit"], mount["mount_point"], {".mount": mount["mount"], ".automount": mount["automount"]}
        )
        for mount in params["mounts"]
    ]
    unit_texts = mounts.select_own_units(mounts.read_units(), params["cluster"])
    mount_points = {mounts.parse_mount_point(unit_text) for unit_text in unit_texts.values()} | {
        units.mount_point for units in desired_units
    }
    mounted_points = volume_users.select_mounted(read_proc_file("self/mounts"), sorted(mount_points))
    mount_host = mounts.MountState(
        unit_texts,
        mounted_points,
        mounts.find_stale_mounts(command.run, mounted_points),
        mounts.find_idle_automounts(
            command.run,
            [desired_unit.name for desired_unit in desired_units if desired_unit.name + ".automount" in unit_texts],
        ),
        (),
        parse_mount_options(read_proc_file("self/mountinfo")),
    )
    mount_plan = mounts.plan_mounts(desired_units, mount_host, params["force"])
    if mount_plan.stopped_units:
        # The users are determined only if needed, since a dead server may delay this.
        mount_host = mount_host._replace(users=volume_users.find_volume_users("/proc", mounted_points))
        mount_plan = mounts.plan_mounts(desired_units, mount_host, params["force"])
    mount_change = LayerChange(
        mount_plan.changed,
        *mounts.format_mount_diff(mount_plan, mount_host),
        functools.partial(mounts.apply_mount_plan, command.run, mount_plan),
    )
    return (
        mount_change,
        [units.mount_point for units in desired_units if units.name in mount_plan.healed_units],
        mount_plan.deleted_units,
    )


def mount_by_fstab(params: Mapping[str, Any]) -> Tuple[LayerChange, List[str], List[str]]:
    """Plan the mounts in /etc/fstab, for hosts on which systemd cannot mount at first use."""
    desired_lines = dict(fstab.convert_unit(mount["mount"]) for mount in params["mounts"])
    current_lines = fstab.parse_own_lines(managed_files.read_current(fstab.FSTAB_PATH).text, params["cluster"])
    mounted_points = volume_users.select_mounted(
        read_proc_file("self/mounts"), sorted({*desired_lines, *current_lines})
    )
    stale_points = mounts.find_stale_mounts(command.run, mounted_points)
    fstab_host = fstab.FstabState(
        current_lines, mounted_points, stale_points, (), parse_mount_options(read_proc_file("self/mountinfo"))
    )
    fstab_plan = fstab.plan_fstab(desired_lines, fstab_host, params["force"])
    if fstab_plan.unmount_points:
        fstab_host = fstab_host._replace(users=volume_users.find_volume_users("/proc", mounted_points))
        fstab_plan = fstab.plan_fstab(desired_lines, fstab_host, params["force"])
    apply_plan = functools.partial(fstab.apply_fstab_plan, command.run, fstab_plan, desired_lines, params["cluster"])
    healed_points = [point for point in fstab_plan.unmount_points if point in stale_points and point in desired_lines]
    return (
        LayerChange(fstab_plan.changed, *fstab.format_fstab_diff(fstab_plan, desired_lines, fstab_host), apply_plan),
        healed_points,
        sorted(set(current_lines) - set(desired_lines)),
    )


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Plan all changes, then apply them."""
    mounts_nfs = any("\nType=nfs4\n" in desired_mount["mount"] for desired_mount in params["mounts"])
    refuse_unfit(params, mounts_nfs)
    quota_files = quota.read_project_files()
    quota_change, reported_quotas = ensure_quotas(params, quota_files)
    mount_volumes = mount_by_units if mounts.supports_automount() else mount_by_fstab
    mount_change, healed_points, removed_mounts = mount_volumes(params)
    # Exports come before mounts: the server of a mount may itself wait for an export of this host.
    layer_changes = [
        close_ports(params),
        ensure_directories(params),
        quota_change,
        ensure_threads(params),
        serve(params),
        mount_change,
    ]
    has_quotas = bool(reported_quotas or quota.parse_projects(quota_files, params["cluster"]))
    missing_programs = mounts.find_missing_programs(_server_program(params), mounts_nfs, has_quotas)
    values = {
        "missing": missing_programs,
        "healed": healed_points,
        "removed": removed_mounts,
        "quotas": reported_quotas,
    }
    return apply_changes(layer_changes, values, check_mode=check_mode or bool(missing_programs))

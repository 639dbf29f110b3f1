# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared volumes: what a server exports, and the systemd units by which a member mounts it. Pure functions of a record.

A volume without a server is external: an existing file system. It is checked, but never changed.

A mount of ours never delays a boot or a login: an automount mounts it on first use, after the mesh is up, with time
limits for both the kernel's requests and systemd's wait. At shutdown, the order is reversed, so that it is unmounted
while its server can still be reached.
"""

from __future__ import annotations

import posixpath
import string
import uuid
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.volume import (
    EXTERNAL_OPTIONS,
    SERVED_OPTIONS,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import block_marker
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer, Options, Ports

#: The options of the role that all members need.
ROLE_OPTIONS = ("storage_backend", "storage_server")
#: Characters that systemd keeps in the name of a unit; '/' becomes '-', and the rest is escaped byte by byte.
_UNIT_CHARACTERS = frozenset(string.ascii_letters + string.digits + ":_.")

_NFS_SERVERS = ("kernel", "ganesha")
_GANESHA_CONFIG = "/etc/ganesha/ganesha.conf"

#: ganesha numbers its exports from 1, in 16 bits.
_MAX_EXPORT_ID = 65534

#: Mount options by the kind of recovery from an unreachable server. ``hard``: processes wait without limit. ``soft``:
#: they get an error. A slow server is waited for as long as its connection exists. The kernel considers that dead after
#: at most 180 s, whatever the options are; from then on, each request fails after its second timeout, 15 s. Not
#: softerr, since that implies softreval, with which ``ls`` waits for each of its requests, for minutes in total, and
#: then shows outdated content. timeo is in tenths of a second; nfs(5).
_RECOVERY_OPTIONS = {"soft": ["soft", "timeo=50", "retrans=1"], "hard": ["hard", "timeo=600", "retrans=2"]}

#: Options for each kind of link; nfs(5). One TCP connection uses one processor on each end, and one queue of a card, so
#: faster links need more of them, up to the kernel's limit of 16. The largest request that servers allow is 1 MiB. If
#: packets pass through a program (Tailscale, wireguard-go), that is the bottleneck: more connections only queue in it,
#: and large requests delay the small ones of ls and of other members.
_TRANSFER_OPTIONS = {
    "fast": ["nconnect=8", "rsize=1048576", "wsize=1048576"],
    "lan": ["nconnect=4", "rsize=1048576", "wsize=1048576"],
    "tunnel": ["nconnect=4", "rsize=1048576", "wsize=1048576"],
    "userspace": ["nconnect=2", "rsize=262144", "wsize=262144"],
}
#: The kind of link by the mesh, for volumes that do not specify it.
_LINK_BY_MESH = {"none": "lan", "wireguard": "tunnel", "tailscale": "userspace"}

#: Mount options that represent the same setting; all others are identified by the part before their '='.
_SETTING_ALIASES = {"soft": "hard", "softerr": "hard", "rw": "ro", "nfsvers": "vers", "nosuid": "suid", "nodev": "dev"}

#: Root on another member could have created programs and devices there that give a user root's rights.
_CONFINEMENT_OPTIONS = ["nosuid", "nodev"]


class VolumeMount(TypedDict):
    """A volume as one member mounts it: ``unit`` is the name of its units without their suffix."""

    volume: str
    unit: str
    mount_point: str
    mount: str
    automount: str


class ExternalVolume(TypedDict):
    """An existing file system. ``filesystem`` is its type, None for any."""

    volume: str
    mount_point: str
    filesystem: str | None
    read_only: bool


def desired_parameters(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the module storage on one machine. ``options``: those of ROLE_OPTIONS.

    Raises InputError for a volume that the backend cannot have.
    """
    backend, server = options["storage_backend"], options["storage_server"]
    refuse_backend(record, backend)
    volumes = _served_volumes(record)
    exported_volumes = [volume for volume in volumes if backend == "nfs" and volume["server"] == machine]
    exports_text = render_exports(record, machine, server) if backend == "nfs" else ""
    return {
        "cluster": record["name"],
        "server": server,
        "serves": bool(exports_text),
        "folders": [_export_directory(volume) for volume in exported_volumes],
        "files": _export_files(record, server, exports_text),
        "exports": {program: exports_path(record, program) for program in _NFS_SERVERS},
        # The number is not 0 for a cluster whose other members are all pods: 0 would remove the line of another
        # cluster.
        "connections": max(1, max_connections(record, machine)) if exports_text and server == "kernel" else 0,
        "quotas": [
            {key: volume[key] for key in ("name", "path", "quota")} for volume in exported_volumes if volume["quota"]
        ],
        "mounts": list_mounts(record, machine) if backend == "nfs" else [],
        "external": list_external(record) if backend != "none" else [],
    }


def refuse_backend(record: model.Record, backend: str) -> None:
    """Refuse volumes that the backend cannot have. Raises InputError."""
    served_names = [volume["name"] for volume in _served_volumes(record)]
    if backend == "external" and served_names:
        raise InputError(
            f"storage_backend is external, and volume {', '.join(served_names)} has a server.",
            "Remove server and path from storage_volumes, or set storage_backend=nfs.",
        )


def refuse_withdrawal(record: model.Record, new_record: model.Record, present_machines: Container[str]) -> None:
    """Refuse to withdraw an export of ``record`` without all members that mount it in the play. Raises InputError.

    Whether a volume is in use is only seen on hosts of the play: the others would lose it under their users.
    ``present_machines``: the hosts of the play, and others that do not mount volumes.
    """
    kept_exports = {
        entry["name"]: (entry.get("server"), entry.get("path")) for entry in new_record["storage"]["volumes"]
    }
    withdrawn_volumes = [
        entry["name"]
        for entry in _served_volumes(record)
        if kept_exports.get(entry["name"]) != (entry["server"], entry["path"])
    ]
    mounting_machines = [entry["machine"] for entry in record["members"] if not derive.is_pod(record, entry["machine"])]
    missing_machines = sorted(machine for machine in mounting_machines if machine not in present_machines)
    if withdrawn_volumes and missing_machines:
        raise InputError(
            f"Not in this play, or unreachable: {', '.join(missing_machines)}. Volume {', '.join(withdrawn_volumes)} may be in use there, "
            "and would no longer be exported.",
            "Run this without --limit when all members are up. If those members are lost, set cluster_force=true.",
            volumes=withdrawn_volumes,
            machines=missing_machines,
        )


def _export_directory(volume: dict[str, Any]) -> dict[str, Any]:
    """Convert a volume to its directory.

    The owner of data decides who can read it: an existing directory keeps its permissions, unless the volume specifies
    them. A new one is for all users, like /tmp, since otherwise only root could use it, and root of the other members
    is mapped to nobody here.
    """
    directory_settings = {key: volume[key] for key in ("path", "owner", "group", "mode")}
    if directory_settings["mode"] is not None:
        # Earlier versions accepted numbers, which are still in the record.
        directory_settings["mode"] = str(directory_settings["mode"])
    return {**directory_settings, "state": "directory", "new_mode": "1777"}


def _export_files(record: model.Record, nfs_server: str, exports_text: str) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    for nfs_program in _NFS_SERVERS:
        path, serves = exports_path(record, nfs_program), bool(exports_text) and nfs_program == nfs_server
        if serves and nfs_program == "kernel":
            files.append({"path": posixpath.dirname(path), "state": "directory"})
        files.append(
            {"path": path, "content": exports_text, "mode": "0644"} if serves else {"path": path, "state": "absent"}
        )
        if nfs_program == "ganesha":
            files.append(
                {
                    "path": _GANESHA_CONFIG,
                    "marker": block_marker(record["name"]),
                    "state": "block" if serves else "absent",
                    "content": f'%include "{path}"',
                }
            )
    return files


def unit_name(mount_path: str) -> str:
    """The name that systemd requires for the unit of a mount point, as printed by ``systemd-escape --path``."""
    path_parts = [part for part in mount_path.split("/") if part]
    if not path_parts:
        return "-"
    escaped_path = "-".join("".join(_escape_character(character) for character in part) for part in path_parts)
    return "\\x2e" + escaped_path[1:] if escaped_path.startswith(".") else escaped_path


def exports_path(record: model.Record, server: str = "kernel") -> str:
    """The file of our exports, beside those of others."""
    return {
        "kernel": f"/etc/exports.d/gpumesh-{record['name']}.exports",
        "ganesha": f"/etc/ganesha/gpumesh-{record['name']}.conf",
    }[server]


def render_exports(record: model.Record, machine: str, nfs_server: str = "kernel") -> str:
    """The exports of one server: each of its volumes, only to the other members' cluster addresses.

    For the kernel's server, a file of exports(5); for ``ganesha``, a part of ganesha.conf. Empty if the machine serves
    nothing.
    """
    client_addresses = [
        membership.cluster_address(record, member) for member in record["members"] if member["machine"] != machine
    ]
    exported_volumes = [volume for volume in _served_volumes(record) if volume["server"] == machine]
    if not client_addresses or not exported_volumes:
        return ""
    return (
        _render_ganesha_exports(record, exported_volumes, client_addresses)
        if nfs_server == "ganesha"
        else _render_kernel_exports(record, exported_volumes, client_addresses)
    )


def max_connections(record: model.Record, machine: str) -> int:
    """Return the number of connections that the other members may have to this server.

    A member has the same ones for all volumes of a server. If these ask for different numbers, the volume that is
    mounted first decides.
    """
    connection_counts = [1]
    for volume in _served_volumes(record):
        if volume["server"] == machine:
            split_options = (option.partition("=") for option in _network_options(record, volume))
            connection_counts += [
                int(value) for name, _equals, value in split_options if name == "nconnect" and value.isdecimal()
            ]
    other_members = [member for member in record["members"] if member["machine"] != machine]
    mounting_members = [member for member in other_members if not derive.is_pod(record, member["machine"])]
    return len(mounting_members) * max(connection_counts)


def _render_kernel_exports(
    record: model.Record, exported_volumes: Sequence[dict[str, Any]], client_addresses: Sequence[str]
) -> str:
    """The exports for the kernel's server.

    The ID of a file system is derived from the cluster and the volume, so that handles remain valid if the data moves
    to another disk, and so that file systems without an ID (such as another server's export) can be exported.
    """
    export_lines = []
    for volume in exported_volumes:
        filesystem_id = uuid.uuid5(uuid.UUID(record["id"]), volume["name"])
        export_options = ",".join(
            [
                "ro" if volume["read_only"] else "rw",
                "sync",
                # Requests from ports that a user's program can use are refused: they could claim to be any user.
                "secure",
                "no_subtree_check",
                "root_squash" if volume["root_squash"] else "no_root_squash",
                f"fsid={filesystem_id}",
            ]
        )
        export_lines.append(
            f'"{volume["path"]}" ' + " ".join(f"{client}({export_options})" for client in client_addresses) + "\n"
        )
    return "".join(export_lines)


def _render_ganesha_exports(
    record: model.Record, exported_volumes: Sequence[dict[str, Any]], client_addresses: Sequence[str]
) -> str:
    """The exports for ganesha; see ganesha-config(8), ganesha-core-config(8), ganesha-export-config(8).

    A container may not be allowed to mark a process as needed for freeing memory, which the last line of the core's
    settings permits.
    """
    core_block = (
        "NFS_CORE_PARAM {\n  Protocols = 4;\n  Enable_NLM = false;\n  Enable_RQUOTA = false;\n"
        "  allow_set_io_flusher_fail = true;\n}\n"
    )
    export_blocks = []
    used_ids: set[int] = set()
    for volume in sorted(exported_volumes, key=lambda volume: str(volume["name"])):
        export_id = int(uuid.uuid5(uuid.UUID(record["id"]), volume["name"])) % _MAX_EXPORT_ID + 1
        while export_id in used_ids:
            export_id = export_id % _MAX_EXPORT_ID + 1
        used_ids.add(export_id)
        access_type = "RO" if volume["read_only"] else "RW"
        squash = "Root_Squash" if volume["root_squash"] else "No_Root_Squash"
        export_blocks.append(
            f'EXPORT {{\n  Export_Id = {export_id};\n  Path = "{volume["path"]}";\n  Pseudo = "{volume["path"]}";\n'
            "  Protocols = 4;\n  Transports = TCP;\n  SecType = sys;\n  PrivilegedPort = true;\n  Access_Type = None;\n  FSAL { Name = VFS; }\n"
            f"  CLIENT {{ Clients = {', '.join(client_addresses)}; Access_Type = {access_type}; Squash = {squash}; }}\n}}\n"
        )
    return core_block + "".join(export_blocks)


def list_mounts(record: model.Record, machine: str) -> list[VolumeMount]:
    """Describe the mount of each volume on ``machine``.

    The server itself has it at the same path, through a bind mount.
    """
    return [_describe_mount(record, machine, volume) for volume in _served_volumes(record)]


def list_external(record: model.Record) -> list[ExternalVolume]:
    """Return the external volumes."""
    return [external_volume(volume) for volume in record["storage"]["volumes"] if "server" not in volume]


def external_volume(volume_entry: Mapping[str, Any]) -> ExternalVolume:
    """Return an external volume, from its entry in the record."""
    volume = {**EXTERNAL_OPTIONS, **volume_entry}
    return {
        "volume": volume["name"],
        "mount_point": volume["mount_point"],
        "filesystem": volume["filesystem"],
        "read_only": volume["read_only"],
    }


def _describe_mount(record: model.Record, machine: str, volume: dict[str, Any]) -> VolumeMount:
    unit_description = f"Volume {volume['name']} of gpumesh cluster {record['name']}"
    mount_unit = unit_name(volume["mount_point"])
    is_server = volume["server"] == machine
    if is_server:
        # A bind mount of a directory onto itself would hide it.
        mount_source, filesystem_type = volume["path"], "none"
        # The volume's options are those of nfs, of which only these two apply to a bind mount.
        bind_options = [option for option in volume["options"] if _setting_name(option) in ("suid", "dev")]
        mount_options = _merge_mount_options(
            ["bind", *_CONFINEMENT_OPTIONS, *(["ro"] if volume["read_only"] else [])], bind_options
        )
        ordering_lines = ""
    else:
        server_address = membership.cluster_address(record, membership.find_member(record, volume["server"]))
        source_host = f"[{server_address}]" if ":" in server_address else server_address
        mount_source, filesystem_type = f"{source_host}:{volume['path']}", "nfs4"
        mount_options = _network_options(record, volume)
        mesh_unit = derive.mesh_unit(record)
        ordering_lines = (
            f"Wants=network-online.target\nAfter=network-online.target{f' {mesh_unit}' if mesh_unit else ''}\n"
        )
    mount_text = (
        # The next access tries again, however often the mount fails: otherwise, systemd would give up the automount as
        # well.
        f"[Unit]\nDescription={unit_description}\n{ordering_lines}StartLimitIntervalSec=0\n\n"
        f"[Mount]\nWhat={mount_source}\nWhere={volume['mount_point']}\nType={filesystem_type}\n"
        # Unmounting is lazy: requests to a lost server are given up after their timeout, and do not delay a shutdown.
        # An unused mount is still unmounted completely.
        f"Options={','.join(mount_options)}\nTimeoutSec=60\nLazyUnmount=yes\n"
    )
    automount_text = (
        # The automount is not ordered after the network: systemd orders automounts before local-fs.target, and the
        # network after that, and breaks such a cycle by leaving out a part of the boot. The mount itself waits.
        f"[Unit]\nDescription={unit_description}, mounted at first use\n\n"
        f"[Automount]\nWhere={volume['mount_point']}\n\n[Install]\nWantedBy=multi-user.target\n"
    )
    return {
        "volume": volume["name"],
        "unit": mount_unit,
        "mount_point": volume["mount_point"],
        "mount": mount_text,
        "automount": automount_text,
    }


def _network_options(record: model.Record, volume: dict[str, Any]) -> list[str]:
    """The options with which members other than its server mount a volume."""
    link_type = volume["link"] or _LINK_BY_MESH[record["mesh"]["backend"]]
    # The option nofail is not used: systemd would not order the mount before remote-fs.target, so at shutdown, logins
    # and jobs, which are ordered after that, would still write when it is unmounted. The mount does not delay a boot,
    # since nothing starts it then.
    default_options = [
        "vers=4.2",
        "_netdev",
        *_CONFINEMENT_OPTIONS,
        *_RECOVERY_OPTIONS[volume["recovery"]],
        *_TRANSFER_OPTIONS[link_type],
    ]
    return _merge_mount_options([*default_options, *(["ro"] if volume["read_only"] else [])], volume["options"])


def _merge_mount_options(default_options: Sequence[str], user_options: Sequence[str]) -> list[str]:
    """Return our mount options that the user's options do not override, followed by the user's."""
    overridden_settings = {_setting_name(option) for option in user_options}
    return [*(option for option in default_options if _setting_name(option) not in overridden_settings), *user_options]


def _setting_name(option: str) -> str:
    option_name = option.partition("=")[0]
    return _SETTING_ALIASES.get(option_name, option_name)


def _served_volumes(record: model.Record) -> list[dict[str, Any]]:
    return [{**SERVED_OPTIONS, **volume} for volume in record["storage"]["volumes"] if "server" in volume]


def _escape_character(character: str) -> str:
    if character in _UNIT_CHARACTERS:
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def _volume_parameters(record: model.Record, machine: str, options: Options) -> dict[str, Any]:
    mounted_record: model.Record = {**record, "storage": {"volumes": derive.mounted_volumes(record, machine)}}
    return desired_parameters(mounted_record, machine, options)


def _nfs_ports(_record: model.Record, _options: Options) -> Ports:
    return Ports(tcp=["111", "2049"], udp=["111"])


def _describe_volumes(record: Mapping[str, Any]) -> str:
    volumes = (record.get("storage") or {}).get("volumes") or []
    return (
        ", ".join(
            f"{volume['name']} on {volume['server']}" if "server" in volume else volume["name"] for volume in volumes
        )
        or "no volume"
    )


def _is_exported(record: model.Record, _machines: Collection[str], _given_options: Sequence[Options]) -> bool:
    """Whether a member exports a volume: which exports its server has read, since an interrupted run, is not compared."""
    return any("server" in volume for volume in record["storage"]["volumes"])


def _requests_change(record: model.Record, options: Options) -> bool:
    """Whether other volumes are requested than those of the record, or none at all."""
    volumes = options["storage_volumes"]
    return options["storage_backend"] == "none" or volumes not in (None, record["storage"]["volumes"])


def _has_volumes(record: model.Record, machine: str) -> bool:
    return bool(derive.mounted_volumes(record, machine))


LAYER = Layer(
    "storage",
    BASE,
    options=ROLE_OPTIONS,
    desired_parameters=_volume_parameters,
    is_used=_has_volumes,
    connects=True,
    # The authorized_keys of home directories on a volume are those of all members.
    leaves_before="ssh_trust",
    lists_members=True,
    ports=_nfs_ports,
    title="Storage",
    describe=_describe_volumes,
    repeats=_is_exported,
    requested=_requests_change,
    request_options=("storage_backend", "storage_volumes"),
)

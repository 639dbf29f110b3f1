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
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import marker
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import EXTERNAL, SERVED

#: Characters that systemd keeps in the name of a unit; '/' becomes '-', and the rest is escaped byte by byte.
_UNIT_CHARACTERS = frozenset(string.ascii_letters + string.digits + ":_.")

_PROGRAMS = ("kernel", "ganesha")
_GANESHA_CONFIG = "/etc/ganesha/ganesha.conf"

#: ganesha numbers its exports from 1, in 16 bits.
_EXPORT_IDS = 65534

#: What processes experience when the server is unreachable, by the kind of recovery. ``hard``: they wait without limit.
#: ``soft``: an error. A slow server is waited for as long as its connection exists. The kernel considers that dead
#: after at most 180 s, whatever the options are; from then on, each request fails after its second timeout, 15 s. Not
#: softerr, since that implies softreval, with which ``ls`` waits for each of its requests, for minutes in total, and
#: then shows outdated content. timeo is in tenths of a second; nfs(5).
_RECOVERY = {"soft": ["soft", "timeo=50", "retrans=1"], "hard": ["hard", "timeo=600", "retrans=2"]}

#: Options for each kind of link; nfs(5). One TCP connection uses one processor on each end, and one queue of a card, so
#: faster links need more of them, up to the kernel's limit of 16. The largest request that servers allow is 1 MiB. If
#: packets pass through a program (Tailscale, wireguard-go), that is the bottleneck: more connections only queue in it,
#: and large requests delay the small ones of ls and of other members.
_TRANSFER = {
    "fast": ["nconnect=8", "rsize=1048576", "wsize=1048576"],
    "lan": ["nconnect=4", "rsize=1048576", "wsize=1048576"],
    "tunnel": ["nconnect=4", "rsize=1048576", "wsize=1048576"],
    "userspace": ["nconnect=2", "rsize=262144", "wsize=262144"],
}
#: The kind of link by the mesh, for volumes that do not specify it.
_LINK_OF_MESH = {"none": "lan", "wireguard": "tunnel", "tailscale": "userspace"}

#: Mount options that represent the same setting; all others are identified by the part before their '='.
_SETTINGS = {"soft": "hard", "softerr": "hard", "rw": "ro", "nfsvers": "vers", "nosuid": "suid", "nodev": "dev"}

#: Root on another member could have created programs and devices there that give a user root's rights.
_CONFINED = ["nosuid", "nodev"]


class Mount(TypedDict):
    """A volume as one member mounts it: ``unit`` is the name of its units without their suffix."""

    volume: str
    unit: str
    mount_point: str
    mount: str
    automount: str


class External(TypedDict):
    """An existing file system. ``filesystem`` is its type, None for any."""

    volume: str
    mount_point: str
    filesystem: str | None
    read_only: bool


def desired(record: model.Record, machine: str, backend: str = "nfs", server: str = "kernel") -> dict[str, Any]:
    """The parameters of the module storage on one machine. Raises InputError for a volume that the backend cannot have."""
    refuse_backend(record, backend)
    volumes = _volumes(record)
    served = [volume for volume in volumes if backend == "nfs" and volume["server"] == machine]
    text = exports(record, machine, server) if backend == "nfs" else ""
    return {
        "cluster": record["name"],
        "server": server,
        "serves": bool(text),
        "folders": [_folder(volume) for volume in served],
        "files": _export_files(record, server, text),
        "exports": {program: exports_path(record, program) for program in _PROGRAMS},
        # Not 0 for a cluster whose other members are all pods: it would remove the line that another cluster writes for it.
        "connections": max(1, connections(record, machine)) if text and server == "kernel" else 0,
        "quotas": [{key: volume[key] for key in ("name", "path", "quota")} for volume in served if volume["quota"]],
        "mounts": mounts(record, machine) if backend == "nfs" else [],
        "external": external(record) if backend != "none" else [],
    }


def refuse_backend(record: model.Record, backend: str) -> None:
    """Refuse volumes that the backend cannot have. Raises InputError."""
    served = [volume["name"] for volume in _volumes(record)]
    if backend == "external" and served:
        raise InputError(
            f"storage_backend is external, and volume {', '.join(served)} has a server.",
            "Remove server and path from storage_volumes, or set storage_backend=nfs.",
        )


def refuse_withdrawal(record: model.Record, wanted: model.Record, present: Container[str]) -> None:
    """Refuse to withdraw an export of ``record`` without all members that mount it in the play. Raises InputError.

    Whether a volume is in use is only seen on hosts of the play: the others would lose it under their users.
    ``present``: the hosts of the play, and others that do not mount volumes.
    """
    kept = {one["name"]: (one.get("server"), one.get("path")) for one in wanted["storage"]["volumes"]}
    withdrawn = [one["name"] for one in _volumes(record) if kept.get(one["name"]) != (one["server"], one["path"])]
    users = [one["machine"] for one in record["members"] if not derive.is_pod(record, one["machine"])]
    missing = sorted(machine for machine in users if machine not in present)
    if withdrawn and missing:
        raise InputError(
            f"Not in this play, or unreachable: {', '.join(missing)}. Volume {', '.join(withdrawn)} may be in use there, "
            "and would no longer be exported.",
            "Run this without --limit when all members are up. If those members are lost, set cluster_force=true.",
            volumes=withdrawn,
            machines=missing,
        )


def _folder(volume: dict[str, Any]) -> dict[str, Any]:
    """Convert a volume to its folder.

    The owner of data decides who can read it: an existing folder keeps its permissions, unless the volume specifies
    them. A new one is for all users, like /tmp, since otherwise only root could use it, and root of the other members
    is mapped to nobody here.
    """
    given = {key: volume[key] for key in ("path", "owner", "group", "mode")}
    if given["mode"] is not None:
        # Earlier versions accepted numbers, which are still in the record.
        given["mode"] = str(given["mode"])
    return {**given, "state": "directory", "new_mode": "1777"}


def _export_files(record: model.Record, server: str, text: str) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    for program in _PROGRAMS:
        path, serves = exports_path(record, program), bool(text) and program == server
        if serves and program == "kernel":
            files.append({"path": posixpath.dirname(path), "state": "directory"})
        files.append({"path": path, "content": text, "mode": "0644"} if serves else {"path": path, "state": "absent"})
        if program == "ganesha":
            files.append(
                {
                    "path": _GANESHA_CONFIG,
                    "marker": marker(record["name"]),
                    "state": "block" if serves else "absent",
                    "content": f'%include "{path}"',
                }
            )
    return files


def unit_name(path: str) -> str:
    """The name that systemd requires for the unit of a mount point, as printed by ``systemd-escape --path``."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "-"
    escaped = "-".join("".join(_escaped(character) for character in part) for part in parts)
    return "\\x2e" + escaped[1:] if escaped.startswith(".") else escaped


def exports_path(record: model.Record, server: str = "kernel") -> str:
    """The file of our exports, beside those of others."""
    return {
        "kernel": f"/etc/exports.d/gpumesh-{record['name']}.exports",
        "ganesha": f"/etc/ganesha/gpumesh-{record['name']}.conf",
    }[server]


def exports(record: model.Record, machine: str, server: str = "kernel") -> str:
    """The exports of one server: each of its volumes, only to the other members' cluster addresses.

    For the kernel's server, a file of exports(5); for ``ganesha``, a part of ganesha.conf. Empty if the machine serves
    nothing.
    """
    clients = [derive.cluster_address(record, member) for member in record["members"] if member["machine"] != machine]
    served = [volume for volume in _volumes(record) if volume["server"] == machine]
    if not clients or not served:
        return ""
    return _ganesha(record, served, clients) if server == "ganesha" else _exports(record, served, clients)


def connections(record: model.Record, machine: str) -> int:
    """How many connections the other members may have to this server.

    A member has the same ones for all volumes of a server. If these ask for different numbers, the volume that is
    mounted first decides.
    """
    numbers = [1]
    for volume in _volumes(record):
        if volume["server"] == machine:
            given = (option.partition("=") for option in _network_options(record, volume))
            numbers += [int(value) for name, _sign, value in given if name == "nconnect" and value.isdecimal()]
    clients = [one for one in record["members"] if one["machine"] != machine]
    mounting = [one for one in clients if not derive.is_pod(record, one["machine"])]
    return len(mounting) * max(numbers)


def _exports(record: model.Record, served: Sequence[dict[str, Any]], clients: Sequence[str]) -> str:
    """The exports for the kernel's server.

    The ID of a file system is derived from the cluster and the volume, so that handles remain valid if the data moves
    to another disk, and so that file systems without an ID (such as another server's export) can be exported.
    """
    lines = []
    for volume in served:
        identity = uuid.uuid5(uuid.UUID(record["id"]), volume["name"])
        options = ",".join(
            [
                "ro" if volume["read_only"] else "rw",
                "sync",
                # No requests from ports that a user's program can use, which could claim to be any user.
                "secure",
                "no_subtree_check",
                "root_squash" if volume["root_squash"] else "no_root_squash",
                f"fsid={identity}",
            ]
        )
        lines.append(f'"{volume["path"]}" ' + " ".join(f"{client}({options})" for client in clients) + "\n")
    return "".join(lines)


def _ganesha(record: model.Record, served: Sequence[dict[str, Any]], clients: Sequence[str]) -> str:
    """The exports for ganesha; see ganesha-config(8), ganesha-core-config(8), ganesha-export-config(8).

    A container may not be allowed to mark a process as needed for freeing memory, which the last line of the core's
    settings permits.
    """
    core = (
        "NFS_CORE_PARAM {\n  Protocols = 4;\n  Enable_NLM = false;\n  Enable_RQUOTA = false;\n"
        "  allow_set_io_flusher_fail = true;\n}\n"
    )
    blocks = []
    taken: set[int] = set()
    for volume in sorted(served, key=lambda one: str(one["name"])):
        number = int(uuid.uuid5(uuid.UUID(record["id"]), volume["name"])) % _EXPORT_IDS + 1
        while number in taken:
            number = number % _EXPORT_IDS + 1
        taken.add(number)
        access = "RO" if volume["read_only"] else "RW"
        squash = "Root_Squash" if volume["root_squash"] else "No_Root_Squash"
        blocks.append(
            f'EXPORT {{\n  Export_Id = {number};\n  Path = "{volume["path"]}";\n  Pseudo = "{volume["path"]}";\n'
            "  Protocols = 4;\n  Transports = TCP;\n  SecType = sys;\n  PrivilegedPort = true;\n  Access_Type = None;\n  FSAL { Name = VFS; }\n"
            f"  CLIENT {{ Clients = {', '.join(clients)}; Access_Type = {access}; Squash = {squash}; }}\n}}\n"
        )
    return core + "".join(blocks)


def mounts(record: model.Record, machine: str) -> list[Mount]:
    """How ``machine`` mounts each volume. The server itself has it at the same path, through a bind mount."""
    return [_mount(record, machine, volume) for volume in _volumes(record)]


def external(record: model.Record) -> list[External]:
    """The external volumes."""
    return [external_volume(volume) for volume in record["storage"]["volumes"] if "server" not in volume]


def external_volume(given: Mapping[str, Any]) -> External:
    """One of them, from its entry in the record."""
    volume = {**EXTERNAL, **given}
    return {
        "volume": volume["name"],
        "mount_point": volume["mount_point"],
        "filesystem": volume["filesystem"],
        "read_only": volume["read_only"],
    }


def _mount(record: model.Record, machine: str, volume: dict[str, Any]) -> Mount:
    title = f"Volume {volume['name']} of gpumesh cluster {record['name']}"
    unit = unit_name(volume["mount_point"])
    local = volume["server"] == machine
    if local:
        # A bind mount of a directory onto itself would hide it.
        what, kind = volume["path"], "none"
        # Of the given options, which are those of nfs, only these two apply to it.
        given = [option for option in volume["options"] if _setting(option) in ("suid", "dev")]
        options = _overridden(["bind", *_CONFINED, *(["ro"] if volume["read_only"] else [])], given)
        order = ""
    else:
        server = derive.cluster_address(record, derive.member_of(record, volume["server"]))
        host = f"[{server}]" if ":" in server else server
        what, kind = f"{host}:{volume['path']}", "nfs4"
        options = _network_options(record, volume)
        mesh = derive.mesh_unit(record)
        order = f"Wants=network-online.target\nAfter=network-online.target{f' {mesh}' if mesh else ''}\n"
    mount = (
        # However often it fails, the next access tries again: otherwise, systemd would give up the automount as well.
        f"[Unit]\nDescription={title}\n{order}StartLimitIntervalSec=0\n\n"
        f"[Mount]\nWhat={what}\nWhere={volume['mount_point']}\nType={kind}\n"
        # Lazy: requests to a lost server are given up after their timeout, and do not delay a shutdown. An unused mount
        # is still unmounted completely.
        f"Options={','.join(options)}\nTimeoutSec=60\nLazyUnmount=yes\n"
    )
    automount = (
        # Never after the network: systemd orders automounts before local-fs.target, and the network after that, and
        # breaks such a cycle by leaving out a part of the boot. The mount itself waits.
        f"[Unit]\nDescription={title}, mounted at first use\n\n"
        f"[Automount]\nWhere={volume['mount_point']}\n\n[Install]\nWantedBy=multi-user.target\n"
    )
    return {
        "volume": volume["name"],
        "unit": unit,
        "mount_point": volume["mount_point"],
        "mount": mount,
        "automount": automount,
    }


def _network_options(record: model.Record, volume: dict[str, Any]) -> list[str]:
    """The options with which members other than its server mount a volume."""
    link = volume["link"] or _LINK_OF_MESH[record["mesh"]["backend"]]
    # Not nofail: systemd would not order the mount before remote-fs.target, so at shutdown, logins and jobs, which are
    # ordered after that, would still write when it is unmounted. It does not delay a boot, since nothing starts it then.
    ours = ["vers=4.2", "_netdev", *_CONFINED, *_RECOVERY[volume["recovery"]], *_TRANSFER[link]]
    return _overridden([*ours, *(["ro"] if volume["read_only"] else [])], volume["options"])


def _overridden(ours: Sequence[str], given: Sequence[str]) -> list[str]:
    """Our mount options without those that the user's options override, followed by the user's."""
    settings = {_setting(option) for option in given}
    return [*(option for option in ours if _setting(option) not in settings), *given]


def _setting(option: str) -> str:
    name = option.partition("=")[0]
    return _SETTINGS.get(name, name)


def _volumes(record: model.Record) -> list[dict[str, Any]]:
    return [{**SERVED, **volume} for volume in record["storage"]["volumes"] if "server" in volume]


def _escaped(character: str) -> str:
    if character in _UNIT_CHARACTERS:
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())

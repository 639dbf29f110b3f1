# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared volumes: what a server exports, and the systemd units by which a member mounts it. Pure functions of a record.

A volume without a server is external: an existing file system. It is checked, but never changed.

A mount of ours never holds up a boot or a login: it is made by an automount at first use, after the mesh is up, with
time limits on both the kernel's requests and systemd's wait. At shutdown the order is the other way round, so that it
is unmounted while its server can still be reached.
"""

from __future__ import annotations

import posixpath
import string
import uuid
from collections.abc import Sequence
from typing import Any, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import marker
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.volume import EXTERNAL, SERVED

#: What systemd leaves as it is in the name of a unit; '/' becomes '-', and the rest is escaped byte by byte.
_UNIT_CHARACTERS = frozenset(string.ascii_letters + string.digits + ":_.")

_PROGRAMS = ("kernel", "ganesha")
_GANESHA_CONFIG = "/etc/ganesha/ganesha.conf"

#: ganesha numbers its exports from 1, in 16 bits.
_EXPORT_IDS = 65534

#: Per way of recovery: what a process sees when the server is gone. ``hard``: it waits, however long. ``soft``: an error.
#: A server that is merely slow is waited for as long as its connection lives. The kernel takes that for dead after 180 s
#: at most, whatever the options say; from then on each request fails after its second timeout, 15 s. Not softerr: that has
#: softreval with it, by which ``ls`` waits for each of its requests, minutes in all, and then shows what was there before.
#: timeo is in tenths of a second; nfs(5).
_RECOVERY = {"soft": ["soft", "timeo=50", "retrans=1"], "hard": ["hard", "timeo=600", "retrans=2"]}

#: What suits a link, by its kind; nfs(5). One TCP connection keeps one processor of each end busy and one queue of a
#: card, so that a faster link takes more of them, up to the kernel's 16. The largest request that servers grant is 1 MiB.
#: Where packets go through a program (Tailscale, wireguard-go), that program is what is busy: more connections only queue
#: in it, and large requests hold up the small ones of ls and of other members.
_TRANSFER = {
    "fast": ["nconnect=8", "rsize=1048576", "wsize=1048576"],
    "lan": ["nconnect=4", "rsize=1048576", "wsize=1048576"],
    "tunnel": ["nconnect=4", "rsize=1048576", "wsize=1048576"],
    "userspace": ["nconnect=2", "rsize=262144", "wsize=262144"],
}
#: The kind of link, where a volume does not say, by the mesh that it goes over.
_LINK_OF_MESH = {"none": "lan", "wireguard": "tunnel", "tailscale": "userspace"}

#: Mount options that stand for the same setting; every other one is what is before its '='.
_SETTINGS = {"soft": "hard", "softerr": "hard", "rw": "ro", "nfsvers": "vers", "nosuid": "suid", "nodev": "dev"}

#: Root on another member could have left programs and devices there that make a user root.
_CONFINED = ["nosuid", "nodev"]


class Mount(TypedDict):
    """A volume as one member mounts it: ``unit`` is the name of its units without their suffix."""

    volume: str
    unit: str
    mount_point: str
    mount: str
    automount: str


class External(TypedDict):
    """A file system that is there already. ``filesystem`` is its type, None where any is right."""

    volume: str
    mount_point: str
    filesystem: str | None
    read_only: bool


def desired(record: model.Record, machine: str, backend: str = "nfs", server: str = "kernel") -> dict[str, Any]:
    """The parameters of the module storage on one machine. Raises InputError for a volume that the backend cannot have."""
    volumes = _volumes(record)
    if backend == "external" and volumes:
        raise InputError(
            f"storage_backend is external, and volume {', '.join(volume['name'] for volume in volumes)} has a server.",
            "Remove server and path from storage_volumes, or set storage_backend=nfs.",
        )
    served = [volume for volume in volumes if backend == "nfs" and volume["server"] == machine]
    text = exports(record, machine, server) if backend == "nfs" else ""
    return {
        "cluster": record["name"],
        "server": server,
        "serves": bool(text),
        "folders": [_folder(volume) for volume in served],
        "files": _export_files(record, server, text),
        "exports": {program: exports_path(record, program) for program in _PROGRAMS},
        "quotas": [{key: volume[key] for key in ("name", "path", "quota")} for volume in served if volume["quota"]],
        "mounts": mounts(record, machine) if backend == "nfs" else [],
        "external": external(record) if backend != "none" else [],
    }


def _folder(volume: dict[str, Any]) -> dict[str, Any]:
    """Whoever owns the data decides who else may read it: a folder that is there keeps its permissions, unless the volume
    says which ones. A new one is for all users, as /tmp is, since nobody but root could use it otherwise, and root of the
    other members is nobody here."""
    given = {key: volume[key] for key in ("path", "owner", "group", "mode")}
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
    """The name that systemd demands of the unit of a mount point, as of ``systemd-escape --path``."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "-"
    escaped = "-".join("".join(_escaped(character) for character in part) for part in parts)
    return "\\x2e" + escaped[1:] if escaped.startswith(".") else escaped


def exports_path(record: model.Record, server: str = "kernel") -> str:
    """The file for ``exports``: ours alone, beside those of others."""
    return {
        "kernel": f"/etc/exports.d/gpumesh-{record['name']}.exports",
        "ganesha": f"/etc/ganesha/gpumesh-{record['name']}.conf",
    }[server]


def exports(record: model.Record, machine: str, server: str = "kernel") -> str:
    """What one server exports: each of its volumes to the other members' cluster addresses, nobody else.

    For the kernel's server a file of exports(5), for ``ganesha`` a part of ganesha.conf. Empty where the machine serves
    nothing.
    """
    clients = [derive.cluster_address(record, member) for member in record["members"] if member["machine"] != machine]
    served = [volume for volume in _volumes(record) if volume["server"] == machine]
    if not clients or not served:
        return ""
    return _ganesha(record, served, clients) if server == "ganesha" else _exports(record, served, clients)


def _exports(record: model.Record, served: Sequence[dict[str, Any]], clients: Sequence[str]) -> str:
    """The file system's id is derived from the cluster and the volume, so that handles stay good when the same data moves
    to another disk, and so that what has no id of its own (another server's export) can be exported."""
    lines = []
    for volume in served:
        identity = uuid.uuid5(uuid.UUID(record["id"]), volume["name"])
        options = ",".join(
            [
                "ro" if volume["read_only"] else "rw",
                "sync",
                # No request from a port that a user's program can have: it could say that it is any user.
                "secure",
                "no_subtree_check",
                "root_squash" if volume["root_squash"] else "no_root_squash",
                f"fsid={identity}",
            ]
        )
        lines.append(f'"{volume["path"]}" ' + " ".join(f"{client}({options})" for client in clients) + "\n")
    return "".join(lines)


def _ganesha(record: model.Record, served: Sequence[dict[str, Any]], clients: Sequence[str]) -> str:
    """See ganesha-config(8), ganesha-core-config(8), ganesha-export-config(8). A container may not mark a process as one
    that the kernel's memory depends on, which is what the last of the core's lines lets go."""
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
    """How ``machine`` mounts each volume. The server itself has it at the same place, by a bind mount."""
    return [_mount(record, machine, volume) for volume in _volumes(record)]


def external(record: model.Record) -> list[External]:
    """The external volumes."""
    volumes = [{**EXTERNAL, **volume} for volume in record["storage"]["volumes"] if "server" not in volume]
    return [
        {
            "volume": volume["name"],
            "mount_point": volume["mount_point"],
            "filesystem": volume["filesystem"],
            "read_only": volume["read_only"],
        }
        for volume in volumes
    ]


def _mount(record: model.Record, machine: str, volume: dict[str, Any]) -> Mount:
    title = f"Volume {volume['name']} of gpumesh cluster {record['name']}"
    unit = unit_name(volume["mount_point"])
    local = volume["server"] == machine
    if local:
        # A bind mount of a directory onto itself would hide it.
        what, kind = volume["path"], "none"
        # Of the given options, which are those of nfs, only these two hold for it.
        given = [option for option in volume["options"] if _setting(option) in ("suid", "dev")]
        options = _overridden(["bind", *_CONFINED, *(["ro"] if volume["read_only"] else [])], given)
        order = ""
    else:
        server = derive.cluster_address(record, derive.member_of(record, volume["server"]))
        host = f"[{server}]" if ":" in server else server
        what, kind = f"{host}:{volume['path']}", "nfs4"
        link = volume["link"] or _LINK_OF_MESH[record["mesh"]["backend"]]
        # Not nofail: systemd would not order the mount before remote-fs.target, and at shutdown logins and jobs, which come
        # after that, would still write when it is unmounted. No boot waits for it, since none starts it.
        ours = ["vers=4.2", "_netdev", *_CONFINED, *_RECOVERY[volume["recovery"]], *_TRANSFER[link]]
        options = _overridden([*ours, *(["ro"] if volume["read_only"] else [])], volume["options"])
        after = ["network-online.target"]
        if record["mesh"]["backend"] == "wireguard":
            after.append(f"wg-quick@{record['mesh']['interface']}.service")
        elif record["mesh"]["backend"] == "tailscale":
            after.append("tailscaled.service")
        order = f"Wants=network-online.target\nAfter={' '.join(after)}\n"
    mount = (
        # However often it fails, the next use tries again: systemd would give up the automount with it.
        f"[Unit]\nDescription={title}\n{order}StartLimitIntervalSec=0\n\n"
        f"[Mount]\nWhat={what}\nWhere={volume['mount_point']}\nType={kind}\n"
        # Lazy: what a lost server still owes is given up when it times out, and nobody waits for it at shutdown. A mount
        # that nobody uses is unmounted in full all the same.
        f"Options={','.join(options)}\nTimeoutSec=60\nLazyUnmount=yes\n"
    )
    automount = (
        # Never after the network: systemd has automounts before local-fs.target, which the network comes after, and it
        # breaks such a circle by leaving out a part of the boot. The mount itself waits.
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


def _overridden(ours: Sequence[str], given: Sequence[str]) -> list[str]:
    """Our mount options without those of which the user has set the same thing, then the user's."""
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

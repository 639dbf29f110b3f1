# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of this host and their TCP sockets, from /proc.

Processes may end at any time: those that have ended have no text, no files and no sockets.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
from typing import Dict, Iterator, List, NamedTuple, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number

#: Links of a process that hold a mount: see proc(5).
_LINKS = ("cwd", "root", "exe")
#: An address in a table of sockets: one or four words of 32 bits; and a port.
_DIGITS = re.compile(r"[0-9A-Fa-f]{8}(?:[0-9A-Fa-f]{24})?")
_PORT_DIGITS = re.compile(r"[0-9A-Fa-f]{4}")
_NATIVE_WORD = "=I"

ESTABLISHED, LISTENING = "01", "0A"
CAP_SYS_ADMIN, CAP_SYS_NICE = 21, 23


class TcpSocket(NamedTuple):
    """A TCP socket. ``state``: as in /proc/net/tcp. ``local`` and ``port`` are those of this host; ``uid``: its user."""

    state: str
    local: str
    port: int
    remote: str
    uid: int
    remote_port: int


def tcp_sockets(proc: str) -> Dict[str, TcpSocket]:
    """The TCP sockets in this network namespace, by inode."""
    tables = [parse_tcp_sockets(text(proc, "", name)) for name in ("net/tcp", "net/tcp6")]
    return {**tables[0], **tables[1]}


def parse_tcp_sockets(table: str) -> Dict[str, TcpSocket]:
    """The sockets by inode, from the text of /proc/net/tcp or tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) <= 9:
            continue
        local, _colon, port = fields[1].partition(":")
        remote, _colon, remote_port = fields[2].partition(":")
        uid = whole_number(fields[7])
        addresses = _DIGITS.fullmatch(local) and _DIGITS.fullmatch(remote)
        if addresses and _PORT_DIGITS.fullmatch(port) and _PORT_DIGITS.fullmatch(remote_port) and uid is not None:
            ports = int(port, 16), int(remote_port, 16)
            found[fields[9]] = TcpSocket(fields[3], _address(local), ports[0], _address(remote), uid, ports[1])
    return found


def _address(digits: str) -> str:
    """Decode words of 32 bits in the host's byte order, each as eight digits."""
    packed = b"".join(
        struct.pack(_NATIVE_WORD, int(digits[start : start + 8], 16)) for start in range(0, len(digits), 8)
    )
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


def pids(proc: str) -> Iterator[int]:
    """The IDs of all processes."""
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def ancestors(proc: str, pid: int) -> List[int]:
    """A process, its parent, and so on."""
    found: List[int] = []
    while pid and pid not in found:
        found.append(pid)
        # The name, in brackets, may contain any character; the parent is the second field after it.
        fields = text(proc, str(pid), "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def text(proc: str, process: str, name: str) -> str:
    """A file of a process; empty if it is too large, as processes can make it."""
    try:
        with open(os.path.join(proc, process, name), encoding="utf-8", errors="replace") as stream:
            return limited.read(stream) or ""
    except OSError:
        return ""


def runs_systemd() -> bool:
    """Whether systemd is PID 1 here (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def has_capability(status: str, number: int) -> bool:
    """Whether a process has one of the capabilities of <linux/capability.h>, from the text of its status."""
    found = re.search(r"^CapEff:\s+([0-9a-f]{1,16})$", status, re.MULTILINE)
    return found is None or bool(int(found.group(1), 16) >> number & 1)


def program_of(proc: str, pid: int) -> str:
    """The file name of a process's executable; empty if it has ended.

    It is the name of the process, which that can choose, only if the executable cannot be seen: as root in a container,
    those of processes that have acted as another user.
    """
    try:
        file = os.readlink(os.path.join(proc, str(pid), "exe"))
    except PermissionError:
        return text(proc, str(pid), "comm").strip()
    except OSError:
        return ""
    # The kernel appends this if an upgrade has replaced the file.
    return re.sub(r" \(deleted\)$", "", os.path.basename(file))


def is_roots(proc: str, pid: int, programs: Sequence[str]) -> bool:
    """Whether root runs one of these programs as this process, by its four user IDs and its executable.

    Any process can set its name. One user ID is not enough either, since whoever starts a setuid program chooses its
    name, its limits and its open files.
    """
    ids = re.search(r"^Uid:((?:\s+[0-9]+){4})$", text(proc, str(pid), "status"), re.MULTILINE)
    return ids is not None and set(ids.group(1).split()) == {"0"} and program_of(proc, pid) in programs


def title(proc: str, pid: int) -> str:
    """The command line of a process, which it may have replaced by a title."""
    return text(proc, str(pid), "cmdline").replace("\0", " ").strip()


def held(proc: str, pid: int) -> Iterator[str]:
    """The targets of a process's links: its folder, its program and its open files."""
    folder = os.path.join(proc, str(pid))
    try:
        opened = [os.path.join("fd", name) for name in os.listdir(os.path.join(folder, "fd"))]
    except OSError:
        opened = []
    for name in [*_LINKS, *opened]:
        try:
            yield os.readlink(os.path.join(folder, name))
        except OSError:
            continue


def sockets(proc: str, pid: int) -> Set[str]:
    """The inodes of a process's sockets."""
    return {path[len("socket:[") : -1] for path in held(proc, pid) if path.startswith("socket:[")}

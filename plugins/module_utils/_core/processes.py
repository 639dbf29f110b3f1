# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the processes of this host and their TCP sockets from /proc.

Processes may end at any time: a process that has ended has no text, no files and no sockets.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: These links of a process keep a mount busy: see proc(5).
_MOUNT_LINKS = ("cwd", "root", "exe")
#: A socket table has addresses of one or four 32-bit words, and ports.
_ADDRESS_DIGITS = re.compile(r"[0-9A-Fa-f]{8}(?:[0-9A-Fa-f]{24})?")
_PORT_DIGITS = re.compile(r"[0-9A-Fa-f]{4}")
_NATIVE_WORD = "=I"
_REAL_UID = re.compile(r"^Uid:\s+([0-9]+)\s", re.MULTILINE)
#: Debian and others give smaller numbers to services.
_FIRST_USER_ID = 1000
#: The index of a process's start among the fields of read_stat_fields(), in clock ticks after the boot.
_START_FIELD = 19

ESTABLISHED, LISTENING = "01", "0A"
CAP_SYS_ADMIN, CAP_SYS_NICE = 21, 23


class TcpSocket(NamedTuple):
    """A TCP socket. ``state`` is as in /proc/net/tcp."""

    state: str
    local_address: str
    local_port: int
    remote_address: str
    owner_uid: int
    remote_port: int


def read_tcp_sockets(proc: str) -> Dict[str, TcpSocket]:
    """Return the TCP sockets in this network namespace by inode."""
    socket_tables = [
        parse_tcp_sockets(read_process_file(proc, "", table_name)) for table_name in ("net/tcp", "net/tcp6")
    ]
    return {**socket_tables[0], **socket_tables[1]}


def parse_tcp_sockets(table: str) -> Dict[str, TcpSocket]:
    """Parse the sockets in the text of /proc/net/tcp or tcp6 by inode."""
    sockets_by_inode = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) <= 9:
            continue
        local_digits, _colon, port_digits = fields[1].partition(":")
        remote_digits, _colon, remote_port_digits = fields[2].partition(":")
        owner_uid = parse_whole_number(fields[7])
        addresses_match = _ADDRESS_DIGITS.fullmatch(local_digits) and _ADDRESS_DIGITS.fullmatch(remote_digits)
        if (
            addresses_match
            and _PORT_DIGITS.fullmatch(port_digits)
            and _PORT_DIGITS.fullmatch(remote_port_digits)
            and owner_uid is not None
        ):
            port_pair = int(port_digits, 16), int(remote_port_digits, 16)
            sockets_by_inode[fields[9]] = TcpSocket(
                fields[3],
                _decode_address(local_digits),
                port_pair[0],
                _decode_address(remote_digits),
                owner_uid,
                port_pair[1],
            )
    return sockets_by_inode


def _decode_address(digits: str) -> str:
    """Decode 32-bit words in the byte order of the host, each written as eight digits."""
    packed_address = b"".join(
        struct.pack(_NATIVE_WORD, int(digits[start : start + 8], 16)) for start in range(0, len(digits), 8)
    )
    if len(packed_address) == 4:
        return socket.inet_ntop(socket.AF_INET, packed_address)
    address = ipaddress.IPv6Address(packed_address)
    return str(address.ipv4_mapped or address)


def list_pids(proc: str) -> Iterator[int]:
    """Return the IDs of all processes."""
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def find_ancestors(proc: str, pid: int) -> List[int]:
    """Return the IDs of a process, its parent, and so on."""
    ancestor_pids: List[int] = []
    while pid and pid not in ancestor_pids:
        ancestor_pids.append(pid)
        stat_fields = read_stat_fields(proc, str(pid))
        pid = int(stat_fields[1]) if len(stat_fields) > 1 else 0
    return ancestor_pids


class ProcessStat(NamedTuple):
    """The name of a process, and what follows it in /proc/PID/stat: the state, the parent, and so on."""

    name: str
    fields: List[str]


def read_stat(proc: str, process_id: str) -> ProcessStat:
    """Read /proc/PID/stat. A process that has ended has no name and no fields.

    The name, in brackets, may contain any character. Source: proc_pid_stat(5).
    """
    before, _bracket, after = read_process_file(proc, process_id, "stat").rpartition(")")
    return ProcessStat(before.partition("(")[2], after.split())


def read_stat_fields(proc: str, process_id: str) -> List[str]:
    """Return the fields of /proc/PID/stat after the name; none if it has ended."""
    return read_stat(proc, process_id).fields


class ProcessTimes(NamedTuple):
    """Seconds after the boot: when a process was started, and now."""

    started: float
    now: float


def find_process_times(proc: str, stat_fields: Sequence[str]) -> Optional[ProcessTimes]:
    """Return the times of a process by its fields; None if they are unknown.

    In a container with a clock of its own, the start is not comparable, and may be later than now.
    """
    try:
        now = float(_read_file(os.path.join(proc, "uptime")).split()[0])
        return ProcessTimes(float(stat_fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK"), now)
    except (IndexError, ValueError):
        return None


def read_process_file(proc: str, process_id: str, file_name: str) -> str:
    """Return the text of a file of a process; empty if it is too large, as processes can make it."""
    return _read_file(os.path.join(proc, process_id, file_name))


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return bounded_read.read(stream) or ""
    except OSError:
        return ""


def runs_systemd() -> bool:
    """Whether systemd is PID 1 here (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def has_capability(status_text: str, capability: int) -> bool:
    """Whether a process has a capability of <linux/capability.h>, from the text of its status."""
    match = re.search(r"^CapEff:\s+([0-9a-f]{1,16})$", status_text, re.MULTILINE)
    return match is None or bool(int(match.group(1), 16) >> capability & 1)


def executable_name(proc: str, pid: int) -> str:
    """Return the file name of the executable of a process; empty if the process has ended.

    If the executable cannot be seen, return the name of the process, which the process can choose: root in a container
    cannot see the executable of a process that has acted as another user.
    """
    try:
        executable_path = os.readlink(os.path.join(proc, str(pid), "exe"))
    except PermissionError:
        return read_process_file(proc, str(pid), "comm").strip()
    except OSError:
        return ""
    # The kernel appends "(deleted)" if an upgrade has replaced the file.
    return re.sub(r" \(deleted\)$", "", os.path.basename(executable_path))


def runs_as_root(proc: str, pid: int, program_names: Sequence[str]) -> bool:
    """Whether the process is one of these programs and runs as root, by its four user IDs and its executable.

    Any process can set its name. One user ID is not enough either, since whoever starts a setuid program chooses its
    name, its limits and its open files.
    """
    uid_match = re.search(r"^Uid:((?:\s+[0-9]+){4})$", read_process_file(proc, str(pid), "status"), re.MULTILINE)
    return (
        uid_match is not None
        and set(uid_match.group(1).split()) == {"0"}
        and executable_name(proc, pid) in program_names
    )


def process_title(proc: str, pid: int) -> str:
    """Return the command line of a process, which the process may have replaced with a title."""
    return read_process_file(proc, str(pid), "cmdline").replace("\0", " ").strip()


def linked_paths(proc: str, pid: int) -> Iterator[str]:
    """Yield the targets of the links of a process: its working directory, its program and its open files."""
    process_directory = os.path.join(proc, str(pid))
    try:
        descriptor_links = [
            os.path.join("fd", link_name) for link_name in os.listdir(os.path.join(process_directory, "fd"))
        ]
    except OSError:
        descriptor_links = []
    for link_name in [*_MOUNT_LINKS, *descriptor_links]:
        try:
            yield os.readlink(os.path.join(process_directory, link_name))
        except OSError:
            continue


def is_open_by_user(proc: str, path_prefix: str) -> bool:
    """Whether a process of a user, and not of a service, has a file with this prefix open."""
    for pid in list_pids(proc):
        uid_match = _REAL_UID.search(read_process_file(proc, str(pid), "status"))
        is_user = uid_match is not None and int(uid_match.group(1)) >= _FIRST_USER_ID
        if is_user and any(path.startswith(path_prefix) for path in linked_paths(proc, pid)):
            return True
    return False


def find_socket_inodes(proc: str, pid: int) -> Set[str]:
    """Return the inodes of the sockets of a process."""
    return {path[len("socket:[") : -1] for path in linked_paths(proc, pid) if path.startswith("socket:[")}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that can use only the named files, with the kernel's Landlock.

    confine.py [--read PATH]... [--write PATH]... [--port PORT] [--note FILE] [--memory MIB] [--unconfined]
        -- PYTHON ARGUMENT...

It needs neither privileges nor mounts, so it also works in rented containers. The program, and everything that it
starts, can read the libraries of this Python and the named files, write below the named directories, execute only
Python, and bind one port. A kernel that does not know a restriction, such as that of ports before 6.7, omits it.

The kernel allows the directories that exist at the start. A volume that is mounted again later is another directory.
The identities of the allowed directories are written to the note.

The memory of each process is limited, and the kernel ends this program first when the host has no memory left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import os
import resource
import stat
import struct
import sys
from typing import Iterable, List, Optional

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE, _MAKE_DIR, _MAKE_FILE = 1 << 4 | 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
#: All access to files that each version of Landlock can deny: link to other directories, truncate, control devices.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
#: The scopes: connections to abstract sockets of processes outside, and signals to these processes.
_SCOPES = 1 << 0 | 1 << 1
_READ_RIGHTS = _READ_FILE | _READ_DIR
_WRITE_RIGHTS = _READ_RIGHTS | _WRITE_FILE | _REMOVE | _MAKE_DIR | _MAKE_FILE | _REFER | _TRUNCATE
#: The rights that apply to a file that is not a directory.
_REGULAR_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

#: The paths that Python, its libraries and the resolver read.
_SYSTEM_PATHS = [
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/usr/share/mime", "/usr/share/locale"),
    *(f"/etc/{name}" for name in ("ld.so.cache", "nsswitch.conf", "passwd", "group", "hosts", "host.conf", "gai.conf")),
    *(
        f"/etc/{name}"
        for name in ("resolv.conf", "services", "protocols", "localtime", "mime.types", "ssl/openssl.cnf")
    ),
    *(f"/dev/{name}" for name in ("null", "zero", "random", "urandom")),
]
_WRITABLE_DEVICES = ["/dev/null"]
#: The highest score in the kernel's choice of a process to end when the host has no memory left.
_MAX_OOM_SCORE = 1000


def _system_call(call_number: int, *arguments: object) -> int:
    """Make a system call. Returns its result. Raises OSError."""
    return_code = ctypes.CDLL(None, use_errno=True).syscall(call_number, *arguments)
    if return_code < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))
    return int(return_code)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if it has none, or a filter of system calls forbids it."""
    try:
        return _system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_QUERY_VERSION))
    except OSError:
        return 0


def restrict(
    readable_paths: Iterable[str], writable_paths: Iterable[str], executable_paths: Iterable[str], port: Optional[int]
) -> None:
    """Restrict this process and its later children. A path that does not exist is left out. Raises OSError."""
    abi_version = landlock_version()
    file_rights = _FILE_RIGHTS[min(abi_version, max(_FILE_RIGHTS))]
    port_rights = _BIND_TCP | _CONNECT_TCP if abi_version >= 4 else 0
    # An older kernel accepts a longer structure only if all fields that it does not know are zero.
    ruleset_attributes = struct.pack("=QQQ", file_rights, port_rights, _SCOPES if abi_version >= 6 else 0)
    ruleset = _system_call(
        _CREATE_RULESET, ruleset_attributes, ctypes.c_size_t(len(ruleset_attributes)), ctypes.c_uint32(0)
    )
    for paths, rights in (
        (readable_paths, _READ_RIGHTS),
        (writable_paths, _WRITE_RIGHTS),
        (executable_paths, _READ_FILE | _EXECUTE),
    ):
        for path in paths:
            _allow_path(ruleset, path, rights & file_rights)
    if port is not None and port_rights:
        _system_call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _BIND_TCP, port), ctypes.c_uint32(0))
    if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _system_call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    os.close(ruleset)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _REGULAR_FILE_RIGHTS
        _system_call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def library_paths() -> List[str]:
    """Return the paths that this Python reads, in a virtual environment or not."""
    return [*_SYSTEM_PATHS, os.path.dirname(os.path.dirname(os.__file__)), sys.prefix]


def interpreter_paths() -> List[str]:
    """Return the only programs that can be executed: this Python, and the kernel's loader for it."""
    loader_paths = [*glob.glob("/lib*/ld-*"), *glob.glob("/lib/*/ld-*")]
    return sorted({os.path.realpath(path) for path in (sys.executable, *loader_paths)})


def directory_identities(paths: Iterable[str]) -> str:
    """Return the identities of these directories, as a text that differs once one of them is another directory."""
    return " ".join("{0.st_dev}:{0.st_ino}".format(os.stat(path)) for path in paths)


def _is_owned_directory(path: str) -> bool:
    """Return whether the account owns the directory: on a volume, others may be able to replace it with a link."""
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _limit_memory(size_limit: int) -> None:
    """Limit the memory of each process, and have the kernel end this program first if the host has none left."""
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    size_limit = size_limit if hard_limit == resource.RLIM_INFINITY else min(size_limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (size_limit, size_limit))
    # In a container, this may not be allowed.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score_file:
        score_file.write(str(_MAX_OOM_SCORE))


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option_name in ("--read", "--write"):
        parser.add_argument(option_name, action="append", default=[])
    parser.add_argument("--port", type=int)
    parser.add_argument("--note")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--unconfined", action="store_true")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    # A core file would contain passwords.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if arguments.memory:
        _limit_memory(arguments.memory << 20)
    if landlock_version():
        missing_paths = [path for path in (*arguments.read, *arguments.write) if not os.path.exists(path)]
        if missing_paths:
            raise SystemExit(f"{', '.join(missing_paths)}: not there")
        foreign_paths = [path for path in arguments.write if not _is_owned_directory(path)]
        if foreign_paths:
            raise SystemExit(f"{', '.join(foreign_paths)}: not a directory of this account")
        if arguments.note:
            with open(arguments.note, "w", encoding="ascii") as note_file:
                note_file.write(directory_identities(arguments.write))
        restrict(
            [*library_paths(), *arguments.read],
            [*_WRITABLE_DEVICES, *arguments.write],
            interpreter_paths(),
            arguments.port,
        )
    elif not arguments.unconfined:
        raise SystemExit("This kernel has no Landlock, or does not allow it here, and tracking_unconfined is false.")
    os.execvpe(arguments.command[0], arguments.command, os.environ)


if __name__ == "__main__":
    main()

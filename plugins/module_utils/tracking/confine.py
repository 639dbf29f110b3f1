# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program that can use only the named files, with the kernel's Landlock.

    confine.py [--read PATH]... [--write PATH]... [--port PORT] [--note FILE] [--memory MIB] [--unconfined]
        -- PYTHON ARGUMENT...

It needs neither privileges nor mounts, so it also works in rented containers. The program, and everything that it
starts, can read the libraries of this Python and the named files, write below the named directories, execute only
Python, and bind one port. A kernel that does not know a restriction, such as that of ports before 6.7, omits it.

The kernel allows the directories that are there at the start: one that is mounted again later is another one. Which ones
they were is written to the note.

Each process can have so much memory of its own, and is the first that the kernel ends when the host has none left.
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
_VERSION = 1
_BENEATH, _NET_PORT = 1, 2
_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE, _MAKE_DIR, _MAKE_FILE = 1 << 4 | 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
#: All access to files that each version of Landlock can deny: link to other directories, truncate, control devices.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_BIND, _CONNECT = 1 << 0, 1 << 1
#: Abstract sockets and signals, of and to processes outside.
_SCOPES = 1 << 0 | 1 << 1
_READ = _READ_FILE | _READ_DIR
_CHANGE = _READ | _WRITE_FILE | _REMOVE | _MAKE_DIR | _MAKE_FILE | _REFER | _TRUNCATE
#: What applies to a file that is not a directory.
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

#: What Python, its libraries and the resolver read.
_SYSTEM = [
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/usr/share/mime", "/usr/share/locale"),
    *(f"/etc/{name}" for name in ("ld.so.cache", "nsswitch.conf", "passwd", "group", "hosts", "host.conf", "gai.conf")),
    *(
        f"/etc/{name}"
        for name in ("resolv.conf", "services", "protocols", "localtime", "mime.types", "ssl/openssl.cnf")
    ),
    *(f"/dev/{name}" for name in ("null", "zero", "random", "urandom")),
]
_WRITABLE_DEVICES = ["/dev/null"]
#: For the kernel's choice of a process when the host has no memory left.
_FIRST_TO_END = 1000


def _call(number: int, *arguments: object) -> int:
    """A system call. Raises OSError."""
    found = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


def version() -> int:
    """The version of Landlock in this kernel; 0 if it has none, or a filter of system calls forbids it."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    except OSError:
        return 0


def restrict(read: Iterable[str], write: Iterable[str], execute: Iterable[str], port: Optional[int]) -> None:
    """Restrict this process and its later children. A path that does not exist is left out. Raises OSError."""
    known = version()
    files = _FILES[min(known, max(_FILES))]
    ports = _BIND | _CONNECT if known >= 4 else 0
    # An older kernel accepts a longer structure only if all that it does not know is zero.
    rules = struct.pack("=QQQ", files, ports, _SCOPES if known >= 6 else 0)
    ruleset = _call(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    for paths, allowed in ((read, _READ), (write, _CHANGE), (execute, _READ_FILE | _EXECUTE)):
        for path in paths:
            _allow(ruleset, path, allowed & files)
    if port is not None and ports:
        _call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _BIND, port), ctypes.c_uint32(0))
    if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            allowed &= _OF_A_FILE
        _call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", allowed, descriptor), ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def libraries() -> List[str]:
    """What this Python reads, in an environment or not."""
    return [*_SYSTEM, os.path.dirname(os.path.dirname(os.__file__)), sys.prefix]


def interpreters() -> List[str]:
    """The only programs that can be executed: this Python, and the kernel's loader for it."""
    loaders = [*glob.glob("/lib*/ld-*"), *glob.glob("/lib/*/ld-*")]
    return sorted({os.path.realpath(path) for path in (sys.executable, *loaders)})


def directories(paths: Iterable[str]) -> str:
    """Which directories these are, as a text that differs once one of them is another one."""
    return " ".join("{0.st_dev}:{0.st_ino}".format(os.stat(path)) for path in paths)


def _is_own(path: str) -> bool:
    """Whether the account owns the directory: on a volume, others may be able to put a link in its place."""
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _limit_memory(size: int) -> None:
    """Limit the memory of each process, and have the kernel end this program first if the host has none left."""
    allowed = resource.getrlimit(resource.RLIMIT_DATA)[1]
    size = size if allowed == resource.RLIM_INFINITY else min(size, allowed)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    # A container may not be allowed to.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(str(_FIRST_TO_END))


def main() -> None:
    """The entry point of the program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--read", "--write"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--port", type=int)
    parser.add_argument("--note")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--unconfined", action="store_true")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    # Memory has passwords.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if given.memory:
        _limit_memory(given.memory << 20)
    if version():
        missing = [path for path in (*given.read, *given.write) if not os.path.exists(path)]
        if missing:
            sys.exit(f"{', '.join(missing)}: not there")
        foreign = [path for path in given.write if not _is_own(path)]
        if foreign:
            sys.exit(f"{', '.join(foreign)}: not a directory of this account")
        if given.note:
            with open(given.note, "w", encoding="ascii") as note:
                note.write(directories(given.write))
        restrict([*libraries(), *given.read], [*_WRITABLE_DEVICES, *given.write], interpreters(), given.port)
    elif not given.unconfined:
        sys.exit("This kernel has no Landlock, or does not allow it here, and tracking_unconfined is false.")
    os.execvpe(given.command[0], given.command, os.environ)


if __name__ == "__main__":
    main()

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library through which the programs of a container without TUN see its tailnet: build, test and activate it.

A library in /etc/ld.so.preload is loaded into every program, so a broken one would break the host, including the means
to repair it. It is tested before and after it is activated, and deactivated if a test fails.
"""

from __future__ import annotations

import glob
import hashlib
import ipaddress
import os
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.compiler import FOLDER, compile_library
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    read_text,
    remove_empty,
    remove_file,
    write_atomic,
)

#: The prefix of the library's file name.
NAME = "libgpumesh-pod-"
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,relro,-z,now")
#: What a program must see: this host listens at its mesh address, connects to it, and both ends have its address. The
#: list of interfaces is read through libc, as programs do.
_PROBE = """
import ctypes, socket, sys
address, interface = sys.argv[1:]
listener = socket.create_server((address, 0))
port = listener.getsockname()[1]
client = socket.create_connection((address, port), 10)
peer, source = listener.accept()
seen = {listener.getsockname()[0], client.getpeername()[0], client.getsockname()[0], peer.getsockname()[0], source[0]}
if seen != {address}:
    sys.exit(f"the ends of a connection are {seen}")
class Entry(ctypes.Structure):
    pass
Entry._fields_ = [("next", ctypes.POINTER(Entry)), ("name", ctypes.c_char_p)]
libc, first = ctypes.CDLL(None), ctypes.POINTER(Entry)()
if libc.getifaddrs(ctypes.byref(first)) != 0:
    sys.exit("the interfaces cannot be listed")
names, entry = set(), first
while entry:
    names.add(entry.contents.name.decode())
    entry = entry.contents.next
libc.freeifaddrs(first)
if interface not in names:
    sys.exit(f"the interfaces are {names}")
print("ok")
"""


class Places(NamedTuple):
    """The paths on the host."""

    libraries: str = FOLDER
    preload: str = "/etc/ld.so.preload"


class Library(NamedTuple):
    """The library to build. ``source`` is C, ``definitions`` are compiler arguments with its settings."""

    source: str
    definitions: Tuple[str, ...]
    address: str
    interface: str

    def path(self, places: Places) -> str:
        """The path of its file.

        The name changes with the content, so running programs keep the version that they loaded.
        """
        text = "\0".join((self.source, *_FLAGS, *self.definitions))
        return os.path.join(places.libraries, f"{NAME}{hashlib.sha256(text.encode()).hexdigest()[:16]}.so")


class Plan(NamedTuple):
    """``path``: the library to activate, None for none. The texts are those of /etc/ld.so.preload."""

    path: Optional[str]
    build: bool
    before: str
    after: str
    #: Libraries of ours that are no longer needed.
    old: List[str]

    @property
    def changed(self) -> bool:
        """Whether anything has to be done."""
        return self.build or self.before != self.after or bool(self.old)


def library_of(given: Mapping[str, Any]) -> Library:
    """Create it from the module's options. Raises InputError for what the library cannot serve."""
    subnet = ipaddress.ip_network(given["subnet"])
    address = ipaddress.ip_address(given["address"])
    if subnet.version != 4 or address.version != 4:
        raise InputError(
            f"The mesh address is {address}, but the library of pods serves only IPv4.",
            "Use a mesh_subnet of IPv4, or set mesh_userspace_nodes=false.",
        )
    texts = {
        "MESH_ADDRESS": str(address),
        "MESH_SUBNET": str(subnet.network_address),
        "MESH_INTERFACE": given["interface"],
        "PROXY_ADDRESS": str(ipaddress.ip_address(given["proxy_address"])),
        "API_SOCKET": given["api_socket"],
    }
    unsafe = [text for text in texts.values() if '"' in text or "\\" in text or "\n" in text]
    if unsafe:
        raise InputError(f"{unsafe[0]!r} has a quotation mark, a backslash or a line break.", "Remove it.")
    numbers = {"MESH_PREFIX": subnet.prefixlen, "PROXY_PORT": given["proxy_port"]}
    definitions = [f'-D{name}="{text}"' for name, text in texts.items()]
    definitions += [f"-D{name}={number}" for name, number in numbers.items()]
    return Library(given["source"], tuple(definitions), str(address), given["interface"])


def listed(text: str, ours: Optional[str], places: Places) -> str:
    """The text of /etc/ld.so.preload with or without our library. Lines of others are kept.

    Ours is first, since glibc skips only one comment, and takes the words of later ones for libraries.
    """
    mark = os.path.join(places.libraries, NAME)
    others = [line for line in text.splitlines() if not line.startswith(mark)]
    lines = [*([ours] if ours else []), *others]
    return "".join(f"{line}\n" for line in lines)


def make_plan(library: Optional[Library], places: Places) -> Plan:
    """Read the current state. Without ``library``, everything of ours is to be removed."""
    path = library.path(places) if library else None
    before = read_text(places.preload) or ""
    there = sorted(glob.glob(os.path.join(glob.escape(places.libraries), f"{NAME}*.so")))
    return Plan(
        path,
        path is not None and path not in there,
        before,
        listed(before, path, places),
        [one for one in there if one != path],
    )


def missing(plan: Plan) -> List[str]:
    """The programs that are needed for it and missing on the host."""
    return ["gcc"] if plan.build and find("gcc") is None else []


def apply(run: Runner, library: Optional[Library], places: Places, plan: Plan) -> None:
    """Carry out the plan. Raises HostStateError, with everything restored, if the library does not work here."""
    if library is not None and plan.path is not None:
        if plan.build:
            _build(run, library, plan.path)
        if plan.before != plan.after:
            _test(run, library, plan.path)
            write_atomic(places.preload, plan.after, 0o644)
            try:
                _test(run, library, None)
            except HostStateError:
                _put_back(places, plan.before)
                raise
    elif plan.before != plan.after:
        _put_back(places, plan.after)
    # Only once no program is told to load them.
    for path in plan.old:
        remove_file(path)
    if library is None:
        remove_empty(places.libraries)


def _put_back(places: Places, text: str) -> None:
    if text:
        write_atomic(places.preload, text, 0o644)
    else:
        remove_file(places.preload)


def _build(run: Runner, library: Library, path: str) -> None:
    flags = [*_FLAGS, *library.definitions]
    compile_library(run, "The library of the pod", library.source, path, flags, "gcc and libc6-dev")


def _test(run: Runner, library: Library, path: Optional[str]) -> None:
    """Run a program with the library at ``path``, or with the active one. Raises HostStateError."""
    # Isolated, so that no file in the directory of this module is imported instead of a Python library.
    command = [sys.executable, "-I", "-c", _PROBE, library.address, library.interface]
    environment = {"LD_PRELOAD": path} if path else {}
    try:
        done = run(command, timeout=60.0, check=False, environment=environment)
    except CommandError as failure:
        raise _not_working(failure.message) from failure
    # The loader reports on stderr of each program that it could not load a library, and continues.
    if done.rc != 0 or done.stdout != "ok\n" or "ld.so" in done.stderr:
        raise _not_working((done.stderr or done.stdout).strip()[-400:] or f"exit status {done.rc}")


def _not_working(words: str) -> HostStateError:
    return HostStateError(
        f"The library of the pod does not work here, and is not active: {words}",
        "Set mesh_userspace_nodes=false for this machine.",
    )

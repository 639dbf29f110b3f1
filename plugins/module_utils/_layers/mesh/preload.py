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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import LIBRARY_DIRECTORY, compile_library
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_empty_directory,
    remove_file,
    write_atomic,
)

#: The prefix of the library's file name.
LIBRARY_PREFIX = "libgpumesh-pod-"
_COMPILER_FLAGS = (
    "-std=c11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wl,-z,relro,-z,now",
)
#: A program that tests what programs see: this host listens at its mesh address, connects to it, and both ends have its
#: address. The list of interfaces is read through libc, as programs do.
_PROBE_PROGRAM = """
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


class PreloadPaths(NamedTuple):
    """The paths on the host."""

    library_directory: str = LIBRARY_DIRECTORY
    preload_list: str = "/etc/ld.so.preload"


class PreloadLibrary(NamedTuple):
    """The library to build. ``source_code`` is C, ``compiler_definitions`` are compiler arguments with its settings."""

    source_code: str
    compiler_definitions: Tuple[str, ...]
    mesh_address: str
    interface_name: str

    def file_path(self, preload_paths: PreloadPaths) -> str:
        """The path of its file.

        The name changes with the content, so running programs keep the version that they loaded.
        """
        hashed_text = "\0".join((self.source_code, *_COMPILER_FLAGS, *self.compiler_definitions))
        return os.path.join(
            preload_paths.library_directory,
            f"{LIBRARY_PREFIX}{hashlib.sha256(hashed_text.encode()).hexdigest()[:16]}.so",
        )


class PreloadPlan(NamedTuple):
    """A plan. ``library_path``: the library to activate, None for none. The texts are those of /etc/ld.so.preload."""

    library_path: Optional[str]
    needs_build: bool
    list_before: str
    list_after: str
    #: Our libraries that are no longer needed.
    outdated_libraries: List[str]

    @property
    def changed(self) -> bool:
        """Whether anything has to be done."""
        return self.needs_build or self.list_before != self.list_after or bool(self.outdated_libraries)


def make_library(module_options: Mapping[str, Any]) -> PreloadLibrary:
    """Create it from the module's options. Raises InputError for what the library cannot serve."""
    mesh_subnet = ipaddress.ip_network(module_options["subnet"])
    mesh_address = ipaddress.ip_address(module_options["address"])
    if mesh_subnet.version != 4 or mesh_address.version != 4:
        raise InputError(
            f"The mesh address is {mesh_address}, but the library of pods serves only IPv4.",
            "Use a mesh_subnet of IPv4, or set mesh_userspace_nodes=false.",
        )
    text_settings = {
        "MESH_ADDRESS": str(mesh_address),
        "MESH_SUBNET": str(mesh_subnet.network_address),
        "MESH_INTERFACE": module_options["interface"],
        "PROXY_ADDRESS": str(ipaddress.ip_address(module_options["proxy_address"])),
        "API_SOCKET": module_options["api_socket"],
    }
    unsafe = [
        setting_text
        for setting_text in text_settings.values()
        if '"' in setting_text or "\\" in setting_text or "\n" in setting_text
    ]
    if unsafe:
        raise InputError(f"{unsafe[0]!r} has a quotation mark, a backslash or a line break.", "Remove it.")
    numbers = {"MESH_PREFIX": mesh_subnet.prefixlen, "PROXY_PORT": module_options["proxy_port"]}
    definitions = [f'-D{name}="{setting_text}"' for name, setting_text in text_settings.items()]
    definitions += [f"-D{name}={number}" for name, number in numbers.items()]
    return PreloadLibrary(module_options["source"], tuple(definitions), str(mesh_address), module_options["interface"])


def edit_preload_list(list_text: str, library_path: Optional[str], preload_paths: PreloadPaths) -> str:
    """Return the text of /etc/ld.so.preload with or without our library. Foreign lines are kept.

    Our line is first, since glibc skips only one comment, and takes the words of later ones for libraries.
    """
    mark = os.path.join(preload_paths.library_directory, LIBRARY_PREFIX)
    foreign_lines = [line for line in list_text.splitlines() if not line.startswith(mark)]
    lines = [*([library_path] if library_path else []), *foreign_lines]
    return "".join(f"{line}\n" for line in lines)


def plan_preload(pod_library: Optional[PreloadLibrary], preload_paths: PreloadPaths) -> PreloadPlan:
    """Read the current state. Without ``pod_library``, everything of ours is to be removed."""
    library_path = pod_library.file_path(preload_paths) if pod_library else None
    before = read_text(preload_paths.preload_list) or ""
    installed_libraries = sorted(
        glob.glob(os.path.join(glob.escape(preload_paths.library_directory), f"{LIBRARY_PREFIX}*.so"))
    )
    return PreloadPlan(
        library_path,
        library_path is not None and library_path not in installed_libraries,
        before,
        edit_preload_list(before, library_path, preload_paths),
        [installed_library for installed_library in installed_libraries if installed_library != library_path],
    )


def missing_packages(preload_plan: PreloadPlan) -> List[str]:
    """Return the programs that the build needs and that are missing on the host."""
    return ["gcc"] if preload_plan.needs_build and find_program("gcc") is None else []


def apply_plan(
    run_command: Runner, pod_library: Optional[PreloadLibrary], preload_paths: PreloadPaths, preload_plan: PreloadPlan
) -> None:
    """Carry out the plan. Raises HostStateError, with everything restored, if the library does not work here."""
    if pod_library is not None and preload_plan.library_path is not None:
        if preload_plan.needs_build:
            _build_library(run_command, pod_library, preload_plan.library_path)
        if preload_plan.list_before != preload_plan.list_after:
            _test_library(run_command, pod_library, preload_plan.library_path)
            write_atomic(preload_paths.preload_list, preload_plan.list_after, 0o644)
            try:
                _test_library(run_command, pod_library, None)
            except HostStateError:
                _write_preload_list(preload_paths, preload_plan.list_before)
                raise
    elif preload_plan.list_before != preload_plan.list_after:
        _write_preload_list(preload_paths, preload_plan.list_after)
    # The old libraries are removed once no program loads them.
    for path in preload_plan.outdated_libraries:
        remove_file(path)
    if pod_library is None:
        remove_empty_directory(preload_paths.library_directory)


def _write_preload_list(preload_paths: PreloadPaths, list_text: str) -> None:
    if list_text:
        write_atomic(preload_paths.preload_list, list_text, 0o644)
    else:
        remove_file(preload_paths.preload_list)


def _build_library(run_command: Runner, pod_library: PreloadLibrary, path: str) -> None:
    flags = [*_COMPILER_FLAGS, *pod_library.compiler_definitions]
    compile_library(run_command, "The library of the pod", pod_library.source_code, path, flags, "gcc and libc6-dev")


def _test_library(run_command: Runner, pod_library: PreloadLibrary, path: Optional[str]) -> None:
    """Run a program with the library at ``path``, or with the active one. Raises HostStateError."""
    # Isolated, so that no file in the directory of this module is imported instead of a Python library.
    command = [sys.executable, "-I", "-c", _PROBE_PROGRAM, pod_library.mesh_address, pod_library.interface_name]
    environment = {"LD_PRELOAD": path} if path else {}
    try:
        probe_result = run_command(command, timeout=60.0, check=False, environment=environment)
    except CommandError as failure:
        raise _library_error(failure.message) from failure
    # The loader reports on stderr of each program that it could not load a library, and continues.
    if probe_result.rc != 0 or probe_result.stdout != "ok\n" or "ld.so" in probe_result.stderr:
        raise _library_error(
            (probe_result.stderr or probe_result.stdout).strip()[-400:] or f"exit status {probe_result.rc}"
        )


def _library_error(problem_description: str) -> HostStateError:
    return HostStateError(
        f"The library of the pod does not work here, and is not active: {problem_description}",
        "Set mesh_userspace_nodes=false for this machine.",
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-session`, the Slurm plugin and the nftables rules, as installed on this host."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils import package, supplied
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find
from ansible_collections.gpumesh.cluster.plugins.module_utils.compiler import FOLDER, compile_library
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    read_text,
    remove_empty,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences, in_words
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import network, node, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.runtime import PROGRAMS
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import ENTRY, PATH, PLUGIN, Settings

_SOURCE = f"{FOLDER}/gpumesh_session.c"
_FLAGS = ("-O2", "-Wall", "-fPIC", "-shared")
_HEADERS = "/usr/include/slurm"
_PROGRAMS = ("nft", "ip", "sysctl", "gcc", "sshd")
_FILES = (f"{_HEADERS}/spank.h", "/usr/include/stdio.h")
#: The second one exists on Debian and some others.
_LIMITS = ("/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone")
_YAML = ("/usr/lib/python3/dist-packages/yaml", "/usr/lib64/python3*/site-packages/yaml")


def missing() -> List[str]:
    """What the host lacks, as programs and files that packages bring."""
    found = [name for name in (*PROGRAMS, *_PROGRAMS) if find(name) is None]
    found += [path for path in _FILES if not os.path.exists(path)]
    return found + ([] if any(glob.glob(pattern) for pattern in _YAML) else ["yaml"])


def refuse_unfit(run: Runner, machine: str) -> None:
    """Refuse a host whose kernel lacks what sessions need, by trying it. Raises HostStateError."""
    without = f"or set session_enabled: false for {machine}."
    limit, clone = (read_text(path) for path in _LIMITS)
    if (limit or "").strip() == "0" or (clone or "").strip() == "0":
        raise HostStateError(
            f"{machine}: unprivileged users cannot create user namespaces.",
            f"Set the kernel's user.max_user_namespaces and kernel.unprivileged_userns_clone, {without}",
        )
    space = f"{network.PREFIX}-probe"
    run(["ip", "netns", "delete", space], check=False)
    run(["ip", "netns", "add", space])
    try:
        argv = ["ip", "-netns", space, "link", "add", "vx0", "type", "vxlan", "id", "1", "dstport", str(network.PORT)]
        made = run([*argv, "local", "127.0.0.1"], check=False)
    finally:
        run(["ip", "netns", "delete", space], check=False)
    if made.rc:
        raise HostStateError(
            f"{machine}: the kernel cannot create a VXLAN device: {' '.join(made.stderr.split())}",
            f"Load its module vxlan, {without}",
        )


def settings_of(params: Mapping[str, Any]) -> Dict[str, Any]:
    """The validated settings with which the program is installed. Raises InputError."""
    settings = {name: params[name] for name in Settings._fields}
    plan.parse_pools(settings["pools"])
    network.parse_allowed(settings["allow"])
    return settings


def parts(run: Runner, params: Mapping[str, Any]) -> Dict[str, Part]:
    """The desired files by path, from the parameters of the module session. Raises GpumeshError."""
    if params["state"] == "absent":
        return {
            "jobs": _jobs_gone(run),
            PATH: package.part(PATH, None),
            node.TABLE_FILE: _rules(run, ""),
            PLUGIN: package.part(PLUGIN, None),
            _SOURCE: _no_source(),
        }
    settings = settings_of(params)
    return {
        PLUGIN: _plugin(run, params["plugin"]),
        node.TABLE_FILE: _rules(run, network.table(Settings(**settings))),
        PATH: supplied.program_part(params, PATH, ENTRY, settings),
    }


def differences(run: Runner, params: Mapping[str, Any]) -> Differences:
    """How this host differs from the parameters of the module."""
    if params["state"] == "absent":
        left = [path for path in (PATH, node.TABLE_FILE, PLUGIN) if os.path.lexists(path)]
        return Differences([f"{path} is no longer wanted" for path in left], False)
    lacking = missing()
    if lacking:
        return Differences([f"{', '.join(lacking)} not installed"], not os.path.lexists(PATH))
    found = [path for path, part in parts(run, params).items() if part.changed]
    words = [in_words(path) for path in found]
    return Differences(words, bool(words) and not os.path.lexists(PATH))


def _jobs_gone(run: Runner) -> Part:
    """The sessions left on a host that leaves."""
    left = node.jobs_here()
    return Part(
        node.anything_here(), "".join(f"the session of job {job}\n" for job in left), "", lambda: node.clear(run)
    )


def _rules(run: Runner, text: str) -> Part:
    """The table of nftables, in the kernel and in the file from which it is loaded after a boot."""
    path = node.TABLE_FILE
    before = read_text(path) or ""
    loaded = find("nft") is not None and not run(["nft", "list", "table", "inet", network.TABLE], check=False).rc

    def apply() -> None:
        if text and (before != text or not loaded):
            # Before they are written: rules that cannot be loaded must differ at the next run, too.
            node.load_rules(run, text)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, text, 0o644)
        elif not text:
            if loaded:
                run(["nft", "delete", "table", "inet", network.TABLE], check=False)
            remove_file(path)

    changed = before != text or loaded != bool(text)
    return Part(changed, before, text, apply)


def _plugin(run: Runner, source: str) -> Part:
    """The plugin, compiled against the headers of the Slurm that is here. Beside it is the source that it was made of."""
    version = _version()
    text = f"/* For Slurm {version}. */\n{source}"
    before = read_text(_SOURCE) or ""
    changed = before != text or not os.path.lexists(PLUGIN)

    def apply() -> None:
        if changed:
            compile_library(run, "The plugin for Slurm", text, PLUGIN, _FLAGS, "gcc and libslurm-dev")
            # Last: it shows from what the plugin was compiled.
            write_atomic(_SOURCE, text, 0o644)

    return Part(changed, before, text, apply)


def _no_source() -> Part:
    part = package.part(_SOURCE, None)

    def apply() -> None:
        part.apply()
        # The library of a pod may be there as well.
        remove_empty(FOLDER)

    return part._replace(apply=apply)


def _version() -> str:
    found = re.search(r"SLURM_VERSION_NUMBER\s+(0x[0-9a-fA-F]+)", read_text(f"{_HEADERS}/slurm_version.h") or "")
    if found is None:
        return "?"
    number = int(found.group(1), 16)
    return f"{number >> 16}.{number >> 8 & 255:02d}.{number & 255}"

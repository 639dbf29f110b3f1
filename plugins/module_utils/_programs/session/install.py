# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installation of `gpumesh-session`, the Slurm plugin and the nftables rules on this host."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import LIBRARY_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_file,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import (
    LayerDifferences,
    describe_difference,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import spank
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import network, node, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    ENTRY_MODULE,
    PLUGIN_PATH,
    PLUGIN_SOURCE_NAME,
    PROGRAM_NAME,
    PROGRAM_PATH,
    SessionSettings,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import REQUIRED_PROGRAMS

_PLUGIN_SOURCE = f"{LIBRARY_DIRECTORY}/{PLUGIN_SOURCE_NAME}"
_HOST_PROGRAMS = ("nft", "ip", "sysctl", "gcc", "sshd")
#: The second setting exists on Debian and a few other distributions.
_NAMESPACE_SETTINGS = ("/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone")
#: Debian's path of the certificates by which podman verifies a registry comes first: its package is named after it.
_CERTIFICATE_PATHS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_YAML_PATHS = ("/usr/lib/python3/dist-packages/yaml", "/usr/lib64/python3*/site-packages/yaml")


def missing_requirements() -> List[str]:
    """Return the programs and files that the host lacks, which packages install."""
    missing_names = [program for program in (*REQUIRED_PROGRAMS, *_HOST_PROGRAMS) if find_program(program) is None]
    missing_names += [path for path in spank.REQUIRED_HEADERS if not os.path.exists(path)]
    missing_names += [] if any(map(os.path.exists, _CERTIFICATE_PATHS)) else [_CERTIFICATE_PATHS[0]]
    return missing_names + ([] if any(glob.glob(pattern) for pattern in _YAML_PATHS) else ["yaml"])


def refuse_unfit_host(run: Runner, machine: str) -> None:
    """Refuse a host whose kernel lacks what sessions need, which is tried. Raises HostStateError."""
    opt_out_remedy = f"or set session_enabled: false for {machine}."
    namespace_limit, clone_setting = (read_text(path) for path in _NAMESPACE_SETTINGS)
    if (namespace_limit or "").strip() == "0" or (clone_setting or "").strip() == "0":
        raise HostStateError(
            f"{machine}: unprivileged users cannot create user namespaces.",
            f"Set the kernel's user.max_user_namespaces and kernel.unprivileged_userns_clone, {opt_out_remedy}",
        )
    probe_namespace = f"{network.NAME_PREFIX}-probe"
    run(["ip", "netns", "delete", probe_namespace], check=False)
    run(["ip", "netns", "add", probe_namespace])
    try:
        link_command = [
            "ip",
            "-netns",
            probe_namespace,
            "link",
            "add",
            "vx0",
            "type",
            "vxlan",
            "id",
            "1",
            "dstport",
            str(network.VXLAN_PORT),
        ]
        link_result = run([*link_command, "local", "127.0.0.1"], check=False)
    finally:
        run(["ip", "netns", "delete", probe_namespace], check=False)
    if link_result.rc:
        raise HostStateError(
            f"{machine}: the kernel cannot create a VXLAN device: {' '.join(link_result.stderr.split())}",
            f"Load its module vxlan, {opt_out_remedy}",
        )


def parse_settings(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Validate the settings with which the program is installed, and return them. Raises InputError."""
    settings = {name: params[name] for name in SessionSettings._fields}
    plan.parse_pools(settings["pools"])
    network.parse_allowed_endpoints(settings["allow"])
    return settings


def plan_changes(run: Runner, params: Mapping[str, Any]) -> Dict[str, LayerChange]:
    """Return the changes to the files, by path, from the parameters of the module session. Raises GpumeshError."""
    if params["state"] == "absent":
        return {
            "jobs": _plan_job_removal(run),
            PROGRAM_PATH: program_archive.zipapp_change(PROGRAM_PATH, None),
            node.TABLE_FILE: _plan_rules(run, ""),
            PLUGIN_PATH: program_archive.zipapp_change(PLUGIN_PATH, None),
            _PLUGIN_SOURCE: spank.plan_removal(_PLUGIN_SOURCE),
        }
    settings = parse_settings(params)
    return {
        PLUGIN_PATH: spank.plan_plugin(run, params, PLUGIN_SOURCE_NAME, _PLUGIN_SOURCE, PLUGIN_PATH),
        node.TABLE_FILE: _plan_rules(run, network.format_table(SessionSettings(**settings))),
        PROGRAM_PATH: push.program_change(params, PROGRAM_NAME, PROGRAM_PATH, ENTRY_MODULE, settings),
    }


def differences(run: Runner, params: Mapping[str, Any]) -> LayerDifferences:
    """Describe how this host differs from the parameters of the module."""
    if params["state"] == "absent":
        leftover_paths = [path for path in (PROGRAM_PATH, node.TABLE_FILE, PLUGIN_PATH) if os.path.lexists(path)]
        return LayerDifferences([f"{path} is no longer wanted" for path in leftover_paths], False)
    missing_names = missing_requirements()
    if missing_names:
        return LayerDifferences([f"{', '.join(missing_names)} not installed"], not os.path.lexists(PROGRAM_PATH))
    changed_paths = [path for path, change in plan_changes(run, params).items() if change.changed]
    messages = [describe_difference(path) for path in changed_paths]
    return LayerDifferences(messages, bool(messages) and not os.path.lexists(PROGRAM_PATH))


def _plan_job_removal(run: Runner) -> LayerChange:
    """Plan the removal of the sessions on a host that leaves the cluster."""
    leftover_jobs = node.leftover_jobs()
    return LayerChange(
        node.has_leftovers(),
        "".join(f"the session of job {job}\n" for job in leftover_jobs),
        "",
        lambda: node.remove_all_jobs(run),
    )


def _plan_rules(run: Runner, rules_text: str) -> LayerChange:
    """Plan the change of the nftables table, in the kernel and in the file from which it is loaded after a boot."""
    table_path = node.TABLE_FILE
    current_text = read_text(table_path) or ""
    is_loaded = (
        find_program("nft") is not None
        and not run(["nft", "list", "table", "inet", network.TABLE_NAME], check=False).rc
    )

    def apply() -> None:
        if rules_text and (current_text != rules_text or not is_loaded):
            # The rules are loaded before they are written: if that fails, the file still differs in the next run.
            node.load_rules(run, rules_text)
            os.makedirs(os.path.dirname(table_path), exist_ok=True)
            write_atomic(table_path, rules_text, 0o644)
        elif not rules_text:
            if is_loaded:
                run(["nft", "delete", "table", "inet", network.TABLE_NAME], check=False)
            remove_file(table_path)

    is_changed = current_text != rules_text or is_loaded != bool(rules_text)
    return LayerChange(is_changed, current_text, rules_text, apply)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the SSH trust of the members to this host."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import files, host, keys

#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "users": {"type": "list", "elements": "str", "default": []},
    "port": {"type": "int", "default": 22},
    "cluster": {"type": "str"},
    "machine": {"type": "str"},
    "address": {"type": "str"},
    "peers": {"type": "dict"},
    "known_hosts": {"type": "str"},
    "client_config": {"type": "str"},
    "authorized_keys": {"type": "str", "no_log": False},
}


def work(module_params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Inspect the host, create missing keys, then write the files."""
    params = {**module_params, "users": module_params["users"] if module_params["state"] == "present" else []}
    cluster, users = params["cluster"], params["users"]
    missing_programs = host.find_missing_programs() if users else []
    if missing_programs:
        return ModuleResult(check_mode, {"missing": missing_programs})
    key_directory, identifier = host.trust_directory_path(cluster), files.certificate_identifier(params)
    expected_logins = files.peer_logins(params) if users else []
    host_state = host.read_host_trust(run, key_directory, users, identifier, expected_logins)
    if users:
        _refuse_unusable(params["machine"], host.explain_refusals(users, host_state))
    # Everything is checked before anything is changed.
    directory_steps = managed_files.plan_changes(files.directory_entries(cluster)) if users else []
    file_steps = managed_files.plan_changes(files.desired_entries(params, host_state))
    certified_users, stale_paths = (
        list(host_state.uncertified_users),
        files.find_stale_keys(params, host_state) if users else [],
    )
    if not check_mode:
        managed_files.apply_file_changes(directory_steps)
        if certified_users:
            keys.certify_users(run, key_directory, certified_users, identifier)
        managed_files.apply_file_changes(file_steps)
        # The keys are removed last, since they identify the lines that have to be removed.
        for stale_path in stale_paths:
            remove_file(stale_path)
    steps = [*directory_steps, *file_steps]
    values: Dict[str, Any] = {"certified": certified_users, "paths": [*(step.path for step in steps), *stale_paths]}
    if users:
        current_state = (
            host.read_host_trust(run, key_directory, users, identifier, expected_logins)
            if certified_users and not check_mode
            else host_state
        )
        values.update(host_keys=current_state.host_keys, signing_key=current_state.signing_key)
        unqueried_count = host.count_unqueried_members(host_state, expected_logins)
        values.update({"unqueried": unqueried_count} if unqueried_count else {})
    diff_before, diff_after = managed_files.format_diff(steps)
    created_diff, removed_diff = _format_key_diff(key_directory, certified_users, stale_paths)
    return ModuleResult(
        bool(certified_users or values["paths"]),
        values,
        diff_before + removed_diff[0] + created_diff[0],
        diff_after + removed_diff[1] + created_diff[1],
    )


def _refuse_unusable(machine: str, refusal_reasons: List[str]) -> None:
    if refusal_reasons:
        raise HostStateError(" ".join(f"{machine}: {reason}" for reason in refusal_reasons))


def _format_key_diff(
    key_directory: str, certified_users: List[str], stale_paths: List[str]
) -> Tuple[Tuple[str, str], Tuple[str, str]]:
    """Return the diffs of the keys, which only tell that keys are created or removed."""
    certificate_paths = [f"{key_directory}/{user}-cert.pub" for user in certified_users]
    return (
        (
            "".join(f"{path}: absent\n" for path in certificate_paths),
            "".join(f"{path}: file\n" for path in certificate_paths),
        ),
        ("".join(f"{path}: file\n" for path in stale_paths), "".join(f"{path}: absent\n" for path in stale_paths)),
    )

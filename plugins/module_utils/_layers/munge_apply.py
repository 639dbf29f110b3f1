# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply munge to this host: its key and its daemon."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster import claims
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    DEFAULT_DIRECTORY,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import munge
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import configure

_DEFAULT_PATHS = service.ServicePaths()
_START_TIMEOUT = 120.0
#: Seconds. munge rejects credentials that are more than 300 s old or come from the future.
_MAX_CLOCK_SKEW = 60


#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "cluster": {"type": "str"},
    "cluster_id": {"type": "str"},
    "content": {"type": "str", "no_log": True},
    "generate": {"type": "bool", "default": False},
    "rotate": {"type": "bool", "default": False},
    "replace": {"type": "bool", "default": True},
    "sign": {"type": "bool", "default": False},
    "verify": {"type": "str", "no_log": True},
    "manager_name": {"type": "str", "default": ""},
    "controller_time": {"type": "float"},
    "manager_clock_ahead": {"type": "float"},
    "start": {"type": "bool", "default": True},
    "path": {"type": "path", "default": "/etc/munge/munge.key"},
    "user": {"type": "str", "default": "munge"},
    "socket": {"type": "path", "default": "/run/munge/munge.socket.2"},
    "folder": {"type": "path", "default": DEFAULT_DIRECTORY},
    "supervisor_config": {"type": "path", "default": _DEFAULT_PATHS.supervisor_config},
    "supervisor_programs": {"type": "path", "default": _DEFAULT_PATHS.supervisor_programs},
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Write the key, run munged, and sign or verify a credential; or remove all of this."""
    if params["state"] == "absent":
        return _remove_munge(params, check_mode)
    # These checks come first: another cluster may have its key here, and no key works with a wrong clock.
    cluster_owner = claims.Owner(params["cluster"], params["cluster_id"])
    claim = claims.plan_claims(params["folder"], cluster_owner, claims.CLAIMABLE_LAYERS)
    values: Dict[str, Any] = {"fingerprint": "", "restarted": False}
    if params["controller_time"] is not None:
        values["clock_ahead"] = time.time() - params["controller_time"]
        if params["manager_clock_ahead"] is not None:
            refuse_clock(values["clock_ahead"] - params["manager_clock_ahead"], params["manager_name"])
    service_manager = service.service_manager(Tree())
    missing_packages = [] if find_program("munged") else ["munge"]
    if params["start"] and service.supervisord_missing(service_manager):
        missing_packages.append("supervisor")
    values["missing"] = missing_packages
    if missing_packages:
        if params["sign"]:
            values.update(content="", credential="", reason="munge is not installed")
        return ModuleResult(
            check_mode, values, "", "".join(f"package {package_name}\n" for package_name in missing_packages)
        )

    refuse_to_replace(params, not claim.changed)
    if not check_mode:
        claims.write_claims(claim)
    key, key_rewritten = _write_key(params, check_mode)
    values["fingerprint"] = munge.key_fingerprint(key) if key else ""
    daemon_plan = None
    if params["start"]:
        daemon_plan = _run_daemon(params, service_manager, key_rewritten, check_mode)
        values["restarted"] = daemon_plan.restarts_daemon
    if params["sign"]:
        values["content"] = munge.encode_key(key) if key else ""
        values["credential"], values["reason"] = munge.sign_credential(run)
    changed = claim.changed or key_rewritten or (daemon_plan is not None and daemon_plan.changed)
    return ModuleResult(
        changed, values, daemon_plan.before if daemon_plan else "", daemon_plan.after if daemon_plan else ""
    )


def refuse_to_replace(params: Mapping[str, Any], is_owned: bool) -> None:
    """Refuse to replace the key of a Slurm cluster that somebody else has set up here. Raises HostStateError.

    That cluster would stop working without its key, and members of ours that got the key could act as any user there.
    ``is_owned``: whether this cluster has set up munge here.
    """
    current_key = munge.read_key_file(params["path"]).key
    given_key = munge.decode_key(params["content"]) if params["content"] else None
    if current_key is None or current_key == given_key:
        return
    if not is_owned:
        configure.refuse_foreign_config(configure.CONFIG_DIRECTORY, Tree())
    elif given_key is not None and not params["replace"]:
        raise HostStateError(
            f"{params['path']} does not contain the given key, and not all members are in this play: a new key would "
            "cut the others off.",
            "Run this without --limit when all members are up.",
        )


def refuse_clock(clock_skew: float, manager_name: str) -> None:
    """Refuse a clock skew above the limit. A slow connection counts as a few seconds ahead. Raises HostStateError."""
    if abs(clock_skew) > _MAX_CLOCK_SKEW:
        raise HostStateError(
            f"The clock is {abs(clock_skew):.0f} s {'ahead of' if clock_skew > 0 else 'behind'} that of the manager {manager_name}; at "
            f"most {_MAX_CLOCK_SKEW} s are allowed, and at 300 s Slurm stops working.",
            "Synchronize the clock, for example with chrony.",
        )


def _write_key(params: Mapping[str, Any], check_mode: bool) -> Tuple[Optional[bytes], bool]:
    """Write the key. Returns it, or None if it only exists in check mode, and whether it was written."""
    key_path = params["path"]
    key_state = munge.read_key_file(key_path)
    given_key = munge.decode_key(params["content"]) if params["content"] else None
    key = munge.desired_key(key_state, given_key, params["generate"], params["rotate"])
    key_owner = munge.find_key_owner(params["user"])
    if key is None and not check_mode:
        raise HostStateError(f"{key_path} does not exist.", "Set content to the key, or set generate to create one.")
    if key_owner is None and not check_mode:
        raise HostStateError(f"There is no user {params['user']}.", "Install the package munge.")
    changed = key is None or key_owner is None or munge.needs_write(key_state, key, key_owner)
    if changed and key is not None and key_owner is not None and not check_mode:
        munge.write_key(key_path, key, key_owner)
    # A key that check mode has generated differs from the one of a real run, so it is not returned.
    is_hypothetical = check_mode and given_key is None and key != key_state.key
    return None if is_hypothetical else key, changed


def _run_daemon(
    params: Mapping[str, Any], service_manager: str, key_rewritten: bool, check_mode: bool
) -> service.DaemonPlan:
    """Run munged, which reads its key only when it starts. Raises HostStateError if it rejects the credential."""
    credential = params["verify"]
    needs_restart = key_rewritten or munge.is_stale(params["path"], params["socket"])
    if credential and not needs_restart:
        needs_restart = not munge.verify_credential(run, credential)[0]
    desired_daemon = _describe_daemon(params["user"], "restarted" if needs_restart else "started")
    readiness = service.ReadyCondition(params["socket"])
    daemon_plan = service.ensure_daemon(
        run,
        service_manager,
        desired_daemon,
        service.ServicePaths.from_params(params),
        readiness,
        _START_TIMEOUT,
        check_mode,
    )
    # munged accepts a credential only once, so it is not verified again unless munged was restarted.
    if credential and needs_restart and not check_mode:
        is_trusted, reason = munge.verify_credential(run, credential)
        if not is_trusted:
            raise HostStateError(
                f"munge rejects the credential of the manager {params['manager_name']}: {reason}.",
                "Run the role on both, without --limit, to compare clocks and keys.",
            )
    return daemon_plan


def _remove_munge(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Stop munged, then remove its key.

    On a machine where this cluster has not set them up, they may belong to the Slurm cluster of somebody else.
    """
    claim = claims.plan_claims(params["folder"], claims.Owner(params["cluster"], params["cluster_id"]), None)
    if "munge" not in claim.own_claims:
        return ModuleResult(False, {"fingerprint": ""})
    service_manager = service.service_manager(Tree())
    stop_commands: List[List[str]] = []
    diff_before = ""
    if not service.supervisord_missing(service_manager):
        desired_daemon = _describe_daemon(params["user"], "absent")
        service_paths = service.ServicePaths.from_params(params)
        daemon_plan = service.ensure_daemon(
            run,
            service_manager,
            desired_daemon,
            service_paths,
            service.ReadyCondition(),
            _START_TIMEOUT,
            check_mode,
        )
        stop_commands, diff_before = daemon_plan.commands, daemon_plan.before
    key_exists = munge.read_key_file(params["path"]).key is not None
    if key_exists and not check_mode:
        remove_file(params["path"])
    return ModuleResult(key_exists or bool(stop_commands or diff_before), {"fingerprint": ""}, diff_before)


def _describe_daemon(user: str, state: str) -> service.Daemon:
    return service.Daemon("munge", state, "/usr/sbin/munged --foreground", user=user, directories=["/run/munge"])

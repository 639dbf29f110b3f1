# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The common interface of the record's modules: options, and the result for Ansible."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.apply import RecordResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import (
    DEFAULT_WAIT,
    Store,
    format_record,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult

#: Options that are documented in the fragment ``gpumesh.cluster.record``.
STORE_OPTIONS: Dict[str, Any] = {"path": {"type": "path", "default": DEFAULT_DIRECTORY}}

#: Options that are documented in the fragment ``gpumesh.cluster.record.change``.
CHANGE_OPTIONS: Dict[str, Any] = {
    **STORE_OPTIONS,
    "actor": {"type": "str"},
    "lock_timeout": {"type": "float", "default": DEFAULT_WAIT},
    "force": {"type": "bool", "default": False},
    "known_digests": {"type": "list", "elements": "str", "default": []},
    "older_version": {"type": "bool", "default": False},
}

#: Options that are documented in the fragment ``gpumesh.cluster.record.members``.
JOINING_OPTION: Dict[str, Any] = {"type": "list", "elements": "str"}

#: Options that are documented in the fragment ``gpumesh.cluster.record.members``.
MEMBERS_OPTION: Dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "options": {
        "machine": {"type": "str", "required": True},
        "address": {"type": "str"},
        "interface": {"type": "str"},
        "site": {"type": "str"},
        "lan_address": {"type": "str"},
        "endpoint": {"type": "str"},
        "gpus": {"type": "int"},
        "rdma": {"type": "str", "choices": ["infiniband", "roce", "none"]},
        "slurm_node": {"type": "bool"},
        "mesh": {
            "type": "dict",
            "options": {
                "address": {"type": "str"},
                "public_key": {"type": "str", "no_log": False},
                "userspace": {"type": "bool"},
            },
        },
        "ssh_host_keys": {"type": "list", "elements": "str", "no_log": False},
        "ssh_public_key": {"type": "str", "no_log": False},
    },
}


def open_store(params: Mapping[str, Any], cluster_name: str) -> Store:
    """Return the store for a module's options."""
    return Store(params["path"], cluster_name, params["lock_timeout"])


def actor_name(params: Mapping[str, Any]) -> str:
    """Return the name to record in the history: the option, or else the account and host that run the module."""
    configured_actor: Optional[str] = params["actor"]
    if configured_actor:
        return configured_actor
    user_name = os.environ.get("SUDO_USER") or getpass.getuser()
    return f"{user_name}@{socket.gethostname()}"


def build_result(applied: RecordResult, store: Store, known_digests: Sequence[str]) -> ModuleResult:
    """Return the result of a change, with the whole record before and after as the diff.

    The record contains no secrets. ``known_digests``: digests of records that the caller already has, and which need
    not be sent.
    """
    before, after = applied.before, applied.after
    new_digest = derive.record_digest(after) if after else None
    changes: List[Dict[str, Any]] = [
        {"kind": applied_change.kind, "detail": applied_change.detail, "machines": list(applied_change.machines)}
        for applied_change in applied.changes
    ]
    return ModuleResult(
        changed=bool(applied.changes),
        return_values={
            **({} if new_digest in known_digests else {"record": after}),
            "digest": new_digest,
            "generation": after["generation"] if after else None,
            "previous_generation": before["generation"] if before else None,
            "changes": changes,
            "path": store.path,
        },
        before=format_record(before) if before else "",
        after=format_record(after) if after else "",
        diff_header=store.path,
    )

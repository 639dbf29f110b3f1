# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The common interface of the record's modules: options, and the result for Ansible."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.apply import Applied
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DEFAULT_FOLDER
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import DEFAULT_WAIT, Store, to_text

#: Documented in the fragment ``gpumesh.cluster.record``.
STORE_OPTIONS: Dict[str, Any] = {"path": {"type": "path", "default": DEFAULT_FOLDER}}

#: Documented in the fragment ``gpumesh.cluster.record.change``.
CHANGE_OPTIONS: Dict[str, Any] = {
    **STORE_OPTIONS,
    "actor": {"type": "str"},
    "lock_timeout": {"type": "float", "default": DEFAULT_WAIT},
    "force": {"type": "bool", "default": False},
    "known": {"type": "list", "elements": "str", "default": []},
    "older_version": {"type": "bool", "default": False},
}

#: Documented in the fragment ``gpumesh.cluster.record.members``.
JOINING_OPTION: Dict[str, Any] = {"type": "list", "elements": "str"}

#: Documented in the fragment ``gpumesh.cluster.record.members``.
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


def store_of(params: Mapping[str, Any], name: str) -> Store:
    """The store for a module's options."""
    return Store(params["path"], name, params["lock_timeout"])


def actor(params: Mapping[str, Any]) -> str:
    """The name to record in the history: the option, or else the account and host on which the module runs."""
    given: Optional[str] = params["actor"]
    if given:
        return given
    account = os.environ.get("SUDO_USER") or getpass.getuser()
    return f"{account}@{socket.gethostname()}"


def outcome(applied: Applied, store: Store, known: Sequence[str]) -> Outcome:
    """The result of a change, with the whole record before and after as the diff, since it contains no secrets.

    ``known``: digests of records that the caller already has, and which need not be sent.
    """
    before, after = applied.before, applied.after
    digest = derive.digest(after) if after else None
    changes: List[Dict[str, Any]] = [
        {"kind": change.kind, "detail": change.detail, "machines": list(change.machines)} for change in applied.changes
    ]
    return Outcome(
        changed=bool(applied.changes),
        values={
            **({} if digest in known else {"record": after}),
            "digest": digest,
            "generation": after["generation"] if after else None,
            "previous_generation": before["generation"] if before else None,
            "changes": changes,
            "path": store.path,
        },
        before=to_text(before) if before else "",
        after=to_text(after) if after else "",
        diff_header=store.path,
    )

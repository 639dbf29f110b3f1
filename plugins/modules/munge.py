#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: munge
short_description: Run munged with the key of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Writes the munge key of the cluster to a file that only munged can read, and runs munged with it. munged is restarted
    only if it has not read the key yet, or does not accept the credential of the manager.
  - Verifies that the host accepts a credential of the manager, and fails if its clock differs from that of the manager.
  - Refuses a host whose munge belongs to another cluster, because a host can have only one.
  - Set O(record) and the options of the role P(gpumesh.cluster.munge#role), without its name. The other options are derived
    from them on the controller, which installs munge if it is missing. First run it for the manager, without O(manager),
    then on each member with the result.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.daemon
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: partial
    details:
      - Shows packages and daemons, but never the key.
  idempotent:
    support: partial
    details:
      - With O(rotate=true), every run generates a new key.
options:
  state:
    description:
      - V(absent) stops munged, now and at boot, and removes the key. Nothing is changed if the cluster has not set up
        munge on the host.
    type: str
    choices: [present, absent]
    default: present
  key_file:
    description: A file with the key on the controller. Empty means the manager's own key.
    type: path
  rotate_key:
    description: Whether to generate a new key on the manager. All members must be in the play.
    type: bool
    default: false
  max_clock_skew:
    description: The maximum difference in seconds between the clock and that of the manager.
    type: int
    default: 60
  manager:
    description: The result of this module for the manager, whose failure is the failure of this task. If not set, this
      task is the one for the manager.
    type: dict
  cluster:
    description: The name of the cluster.
    type: str
  cluster_id:
    description: The ID of the cluster in the record.
    type: str
  content:
    description: The key in base64. If not set, an existing key is kept.
    type: str
  generate:
    description: Whether to generate a key if there is none.
    type: bool
    default: false
  rotate:
    description: Whether to replace the key with a new one.
    type: bool
    default: false
  replace:
    description: Whether O(content) may replace another key that the cluster has set.
    type: bool
    default: true
  sign:
    description:
      - Return the key as RV(content) and a RV(credential) that munged has signed. Use it only in a task with C(no_log).
    type: bool
    default: false
  verify:
    description: A credential of the manager that munged must accept.
    type: str
  manager_name:
    description: The manager, for messages.
    type: str
    default: ""
  asked_at:
    description: The controller's time in seconds since 1970, for RV(ahead).
    type: float
  manager_ahead:
    description: The value of RV(ahead) on the manager.
    type: float
  start:
    description: Whether to run munged. With V(false), only the key may be changed on the host.
    type: bool
    default: true
  path:
    description: The key file.
    type: path
    default: /etc/munge/munge.key
  user:
    description: The account that munged runs as.
    type: str
    default: munge
  socket:
    description: The socket on which munged listens.
    type: path
    default: /run/munge/munge.socket.2
  folder:
    description: The directory of the cluster records.
    type: path
    default: /var/lib/gpumesh/clusters
"""

EXAMPLES = r"""
- name: Run munge on the manager, with the cluster's key
  gpumesh.cluster.munge:
    record: cluster_record
  register: manager
  delegate_to: "{{ cluster_record.manager }}"
  run_once: true
  no_log: true

- name: Run munge on every member with this key
  gpumesh.cluster.munge:
    record: cluster_record
    manager: "{{ manager }}"
"""

RETURN = r"""
fingerprint:
  description: A fingerprint of the key, from which the key cannot be derived. Empty if there is no key.
  type: str
  returned: always
  sample: 6b7cf7ab3b7b9cf1
missing:
  description: The packages that have to be installed first, such as in check mode.
  type: list
  elements: str
  returned: O(state=present)
ahead:
  description: Seconds by which this host's clock was ahead of O(asked_at), including the time of the connection.
  type: float
  returned: with O(asked_at)
content:
  description: The key in base64. Empty if there is none, as in check mode on a fresh host.
  type: str
  returned: with O(sign=true)
credential:
  description: A credential signed by munged. Empty if munged does not answer.
  type: str
  returned: with O(sign=true)
reason:
  description: The error of munged if it did not sign a credential. Otherwise empty.
  type: str
  returned: with O(sign=true)
restarted:
  description: Whether a running munged was restarted, or would have been.
  type: bool
  returned: O(state=present)
"""

import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon, owners
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import (
    DEFAULT_FOLDER,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import configure, munge

_PLACES = daemon.Places()
_PATIENCE = 120.0


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    if given["state"] == "absent":
        return _leave(module)
    # Before anything changes: another cluster may have its key here, and with a clock that is apart none would do.
    owner = owners.Owner(given["cluster"], given["cluster_id"])
    note = owners.look(given["folder"], owner, owners.THINGS)
    values: Dict[str, Any] = {"fingerprint": "", "restarted": False}
    if given["asked_at"] is not None:
        values["ahead"] = time.time() - given["asked_at"]
        if given["manager_ahead"] is not None:
            refuse_clock(values["ahead"] - given["manager_ahead"], given["max_clock_skew"], given["manager_name"])
    manager = daemon.service_manager(Tree())
    missing = [] if find("munged") else ["munge"]
    if given["start"] and daemon.supervisord_missing(manager):
        missing.append("supervisor")
    values["missing"] = missing
    if missing:
        if given["sign"]:
            values.update(content="", credential="", reason="munge is not installed")
        return Outcome(module.check_mode, values, "", "".join(f"package {name}\n" for name in missing))

    refuse_to_replace(given, not note.changed)
    if not module.check_mode:
        owners.write(note)
    key, rewritten = _write(module)
    values["fingerprint"] = munge.fingerprint(key) if key else ""
    planned = None
    if given["start"]:
        planned = _run_daemon(given, manager, rewritten, module.check_mode)
        values["restarted"] = planned.restarts
    if given["sign"]:
        values["content"] = munge.encode(key) if key else ""
        values["credential"], values["reason"] = munge.sign(run)
    changed = note.changed or rewritten or (planned is not None and planned.changed)
    return Outcome(changed, values, planned.before if planned else "", planned.after if planned else "")


def refuse_to_replace(given: Mapping[str, Any], owned: bool) -> None:
    """Keep the key of a Slurm cluster that somebody else has set up here: it would stop working without the key, and
    the members of ours, who would get it, could act as any user there.

    ``owned``: whether this cluster has set up munge here. Raises HostStateError.
    """
    key = munge.read_state(given["path"]).key
    wanted = munge.decode(given["content"]) if given["content"] else None
    if key is None or key == wanted:
        return
    if not owned:
        configure.refuse_foreign(configure.FOLDER, Tree())
    elif wanted is not None and not given["replace"]:
        raise HostStateError(
            f"{given['path']} has another key than the given one, and not all members are in this play: a new key would "
            "cut the others off.",
            "Run this without --limit when all members are up.",
        )


def refuse_clock(skew: float, most: int, manager: str) -> None:
    """Raises HostStateError. The time that a connection takes counts as ahead: a few seconds."""
    if abs(skew) > most:
        raise HostStateError(
            f"The clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} that of the manager {manager}; at "
            f"most {most} s are allowed, and at 300 s Slurm stops working.",
            "Synchronize the clock, for example with chrony.",
        )


def _write(module: AnsibleModule) -> Tuple[Optional[bytes], bool]:
    """Bring the key about. It, unless check mode has only imagined it, and whether it was written."""
    given = module.params
    path = given["path"]
    state = munge.read_state(path)
    content = munge.decode(given["content"]) if given["content"] else None
    key = munge.desired_key(state, content, given["generate"], given["rotate"])
    owner = munge.account(given["user"])
    if key is None and not module.check_mode:
        raise HostStateError(f"{path} does not exist.", "Set content to the key, or set generate to create one.")
    if owner is None and not module.check_mode:
        raise HostStateError(f"There is no user {given['user']}.", "Install the package munge.")
    changed = key is None or owner is None or munge.differs(state, key, owner)
    if changed and key is not None and owner is not None and not module.check_mode:
        munge.write(path, key, owner)
    # It must not be taken for the one that a real run would make.
    imagined = module.check_mode and content is None and key != state.key
    return None if imagined else key, changed


def _run_daemon(given: Mapping[str, Any], manager: str, rewritten: bool, look_only: bool) -> daemon.Plan:
    """munged reads its key when it starts and at no other time. Raises HostStateError where it does not trust."""
    credential = given["verify"]
    renewed = rewritten or munge.is_stale(given["path"], given["socket"])
    if credential and not renewed:
        renewed = not munge.verify(run, credential)[0]
    wanted = _daemon(given["user"], "restarted" if renewed else "started")
    ready = daemon.Ready(given["socket"])
    planned = daemon.bring_about(run, manager, wanted, daemon.Places.given(given), ready, _PATIENCE, look_only)
    # munged accepts a credential only once, so it is not asked again unless it was restarted.
    if credential and renewed and not look_only:
        trusted, reason = munge.verify(run, credential)
        if not trusted:
            raise HostStateError(
                f"munge rejects the credential of the manager {given['manager_name']}: {reason}.",
                "Run the role on both, without --limit, to compare clocks and keys.",
            )
    return planned


def _leave(module: AnsibleModule) -> Outcome:
    """Stop munged, then remove its key.

    On a machine where this cluster has not set them up, they may be those of a Slurm cluster of somebody else.
    """
    given = module.params
    note = owners.look(given["folder"], owners.Owner(given["cluster"], given["cluster_id"]), None)
    if "munge" not in note.owned:
        return Outcome(False, {"fingerprint": ""})
    manager = daemon.service_manager(Tree())
    commands: List[List[str]] = []
    before = ""
    if not daemon.supervisord_missing(manager):
        wanted = _daemon(given["user"], "absent")
        places = daemon.Places.given(given)
        planned = daemon.bring_about(run, manager, wanted, places, daemon.Ready(), _PATIENCE, module.check_mode)
        commands, before = planned.commands, planned.before
    there = munge.read_state(given["path"]).key is not None
    if there and not module.check_mode:
        remove_file(given["path"])
    return Outcome(there or bool(commands or before), {"fingerprint": ""}, before)


def _daemon(user: str, state: str) -> daemon.Daemon:
    return daemon.Daemon("munge", state, "/usr/sbin/munged --foreground", user=user, directories=["/run/munge"])


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "key_file": {"type": "path", "no_log": False},
            "rotate_key": {"type": "bool", "default": False, "no_log": False},
            "max_clock_skew": {"type": "int", "default": 60},
            "manager": {"type": "dict", "no_log": True},
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
            "asked_at": {"type": "float"},
            "manager_ahead": {"type": "float"},
            "start": {"type": "bool", "default": True},
            "path": {"type": "path", "default": "/etc/munge/munge.key"},
            "user": {"type": "str", "default": "munge"},
            "socket": {"type": "path", "default": "/run/munge/munge.socket.2"},
            "folder": {"type": "path", "default": DEFAULT_FOLDER},
            "supervisor_config": {"type": "path", "default": _PLACES.supervisor_config},
            "supervisor_programs": {"type": "path", "default": _PLACES.supervisor_programs},
        },
        required_if=[
            ("state", "present", ("cluster", "cluster_id")),
            ("state", "absent", ("cluster", "cluster_id")),
        ],
        mutually_exclusive=[("content", "rotate"), ("content", "generate"), ("sign", "verify")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

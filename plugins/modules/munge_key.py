#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: munge_key
short_description: The munge key of a host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Sees to it that the host has a given munge key, or any key, in a file that only munged can read.
  - Does not restart munged, which reads its key only when it starts, but says whether that is needed.
  - Signs and verifies credentials, and compares clocks, to tell whether hosts trust each other.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
attributes:
  diff_mode:
    support: none
    details:
      - Both sides would be secrets.
  idempotent:
    support: partial
    details:
      - With O(rotate=true) there is a new key at every run.
options:
  state:
    description: V(absent) removes the key.
    type: str
    choices: [present, absent]
    default: present
  content:
    description: The key in base64. Without it the key that is there stays.
    type: str
  generate:
    description: Make a key where there is none.
    type: bool
    default: false
  rotate:
    description: Replace the key by a new one.
    type: bool
    default: false
  reveal:
    description: Return the key as RV(content). Use it only in a task with C(no_log).
    type: bool
    default: false
  optional:
    description: Where munge is not installed, say so in RV(installed) and do nothing, instead of failing.
    type: bool
    default: false
  sign:
    description: Return a RV(credential) that munged has signed. Use it only in a task with C(no_log).
    type: bool
    default: false
  verify:
    description: A credential that another host has signed, to be verified by munged. Empty is never trusted.
    type: str
  asked_at:
    description: The controller's time in seconds since 1970, for RV(ahead).
    type: float
  path:
    description: The key file.
    type: path
    default: /etc/munge/munge.key
  user:
    description: The account that munged runs as.
    type: str
    default: munge
  socket:
    description: Where munged listens.
    type: path
    default: /run/munge/munge.socket.2
"""

EXAMPLES = r"""
- name: Read the key on the manager, or make one
  gpumesh.cluster.munge_key:
    generate: true
    reveal: true
  register: key
  delegate_to: n1
  run_once: true
  no_log: true

- name: Give every member this key
  gpumesh.cluster.munge_key:
    content: "{{ key.content }}"
  no_log: true
"""

RETURN = r"""
content:
  description: The key in base64. Empty where there is none, as in check mode on a fresh host.
  type: str
  returned: with O(reveal=true)
fingerprint:
  description: Equal for equal keys, and of no use to find one out. Empty where there is no key.
  type: str
  returned: always
  sample: 6b7cf7ab3b7b9cf1
installed:
  description: Whether munged is installed.
  type: bool
  returned: O(state=present)
stale:
  description: Whether munged does not run, or runs since before the key was written.
  type: bool
  returned: O(state=present)
credential:
  description: What munged has signed. Empty where it does not answer.
  type: str
  returned: with O(sign=true)
trusted:
  description: Whether munged accepts the credential in O(verify).
  type: bool
  returned: with O(verify)
reason:
  description: Why munged did not sign or does not accept it, in its own words. Empty where it did.
  type: str
  returned: with O(sign=true) or O(verify)
ahead:
  description: Seconds that this host's clock was ahead of O(asked_at), with the time that the connection took.
  type: float
  returned: with O(asked_at)
"""

import time
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import munge


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    path = given["path"]
    state = munge.read_state(path)
    if given["state"] == "absent":
        if state.key is not None and not module.check_mode:
            remove_file(path)
        return Outcome(state.key is not None, {"fingerprint": ""})

    installed = find("munged") is not None
    values: Dict[str, Any] = {"installed": installed}
    if given["asked_at"] is not None:
        values["ahead"] = time.time() - given["asked_at"]
    changed = False
    if installed or not given["optional"]:
        changed = _write(module, state, values)
    elif given["reveal"]:
        values["content"] = ""
    values["stale"] = munge.is_stale(path, given["socket"])
    if given["sign"]:
        values["credential"], values["reason"] = munge.sign(run) if installed else ("", "munge is not installed")
    if given["verify"] is not None:
        values["trusted"], values["reason"] = munge.verify(run, given["verify"]) if installed else (False, "")
    return Outcome(changed, {"fingerprint": "", **values})


def _write(module: AnsibleModule, state: munge.State, values: Dict[str, Any]) -> bool:
    """Bring the key about and add what is known of it to ``values``; whether something changed."""
    given = module.params
    path = given["path"]
    content = munge.decode(given["content"]) if given["content"] else None
    key = munge.desired_key(state, content, given["generate"], given["rotate"])
    owner = munge.account(given["user"])
    if key is None and not module.check_mode:
        raise HostStateError(f"{path} does not exist.", "Give the key as content, or let generate make one.")
    if owner is None and not module.check_mode:
        raise HostStateError(f"There is no user {given['user']}.", "Install the package munge.")
    changed = key is None or owner is None or munge.differs(state, key, owner)
    if changed and key is not None and owner is not None and not module.check_mode:
        munge.write(path, key, owner)
    # A key that check mode has only imagined must not be taken for the one that a real run would make.
    shown = None if module.check_mode and content is None and key != state.key else key
    values["fingerprint"] = munge.fingerprint(shown) if shown else ""
    if given["reveal"]:
        values["content"] = munge.encode(shown) if shown else ""
    return changed


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "content": {"type": "str", "no_log": True},
            "generate": {"type": "bool", "default": False},
            "rotate": {"type": "bool", "default": False},
            "reveal": {"type": "bool", "default": False},
            "optional": {"type": "bool", "default": False},
            "sign": {"type": "bool", "default": False},
            "verify": {"type": "str", "no_log": True},
            "asked_at": {"type": "float"},
            "path": {"type": "path", "default": "/etc/munge/munge.key"},
            "user": {"type": "str", "default": "munge"},
            "socket": {"type": "path", "default": "/run/munge/munge.socket.2"},
        },
        mutually_exclusive=[("content", "rotate"), ("content", "generate"), ("sign", "verify")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: names
short_description: Manage the names of a cluster's members in /etc/hosts
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Maintains a block in C(/etc/hosts) with the cluster address and the names of each member.
  - The host's own name is added to its own line. Lines of Debian and of container engines that map it to another address
    are commented out, and their other names, such as the full one, are added to that line too.
  - A container engine overwrites the file at each start. On hosts without systemd, supervisord runs a program when it
    starts that restores the names.
  - Set O(record). The other options are derived from it on the controller.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) removes the block and restores lines that were commented out.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: The name of the cluster.
    type: str
  members:
    description: The members, in the order of their lines.
    type: list
    elements: dict
    default: []
    suboptions:
      address: {description: The cluster address., type: str, required: true}
      names: {description: "The names of the member, if any.", type: list, elements: str, required: true}
  address:
    description: The cluster address of this host.
    type: str
  supervisor_programs:
    description:
      - The directory of the programs that supervisord includes. Defaults to the host variable
        C(daemon_supervisor_programs).
    type: path
    default: /etc/supervisor/conf.d
"""

EXAMPLES = r"""
- name: Add the members' names to /etc/hosts
  gpumesh.cluster.names:
    record: cluster_record

- name: Remove the members' names
  gpumesh.cluster.names:
    record: cluster_record
    state: absent
"""

RETURN = r"""
paths:
  description: The files that were changed, or would be changed in check mode.
  type: list
  elements: str
  returned: success
  sample: [/etc/hosts]
"""

import os
import sys
from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon, host_files, names, package
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, Part, bring_about, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DERIVED_OPTION

_MEMBER = {
    "address": {"type": "str", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
}


def work(module: AnsibleModule) -> Outcome:
    """Plan the block, then write it."""
    steps = host_files.see_to(names.wanted_here(module.params), module.check_mode)
    before, after = host_files.as_diff(steps)
    parts = at_boot(module.params, daemon.service_manager(Tree()))
    changed = [path for path, part in parts.items() if part.changed]
    done = bring_about(list(parts.values()), {"paths": [*(step.path for step in steps), *changed]}, module.check_mode)
    return Outcome(bool(steps) or done.changed, done.values, before + done.before, after + done.after)


def at_boot(params: Mapping[str, Any], manager: str) -> Dict[str, Part]:
    """What puts the names back after a start of the container, by path. Where systemd runs, there is none of it."""
    name = f"gpumesh-names-{params['cluster']}"
    path, settings = f"/usr/local/sbin/{name}", os.path.join(params["supervisor_programs"], f"{name}.conf")
    if params["state"] == "absent" or manager != daemon.SUPERVISORD:
        return {settings: package.part(settings, None), path: package.part(path, None)}
    given = {key: params[key] for key in ("cluster", "state", "members", "address")}
    program = package.build(sys.executable, names.__name__, given)
    text = names.program_text(name, path).encode("utf-8")
    return {path: package.part(path, program), settings: package.file_part(settings, text)}


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "cluster": {"type": "str"},
            "members": {"type": "list", "elements": "dict", "options": _MEMBER, "default": []},
            "address": {"type": "str"},
            "supervisor_programs": {"type": "path", "default": daemon.Places().supervisor_programs},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

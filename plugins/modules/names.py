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
  - Set O(record). The other options are derived from it.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.record.copy
  - gpumesh.cluster.push
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) removes the block and restores lines that were commented out.
    type: str
    choices: [present, absent]
    default: present
  machine:
    description: The name of this host in the record.
    type: str
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
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
paths:
  description: The files that were changed, or would be changed in check mode.
  type: list
  elements: str
  returned: success
  sample: [/etc/hosts]
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: success
  sample: [gpumesh-names]
"""

import os
from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files, program_archive, push, service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import (
    LayerChange,
    ModuleResult,
    apply_changes,
    exit_with,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.host_names import derive_parameters

_MEMBER_OPTIONS = {
    "address": {"type": "str", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
}


def work(module: AnsibleModule) -> ModuleResult:
    """Write or remove the names in /etc/hosts, and what restores them; change nothing while sources are missing."""
    boot_changes = plan_boot_restore(module.params, service.service_manager(Tree()))
    outdated_contents = push.missing_contents(boot_changes.values())
    if outdated_contents and not module.check_mode:
        return ModuleResult(False, {"paths": [], "outdated": outdated_contents})
    file_steps = managed_files.ensure_files(names.build_local_entries(module.params), module.check_mode)
    diff_before, diff_after = managed_files.format_diff(file_steps)
    changed_paths = [path for path, change in boot_changes.items() if change.changed]
    boot_result = apply_changes(
        list(boot_changes.values()),
        {"paths": [*(step.path for step in file_steps), *changed_paths], "outdated": outdated_contents},
        module.check_mode,
    )
    return ModuleResult(
        bool(file_steps) or boot_result.changed,
        boot_result.return_values,
        diff_before + boot_result.before,
        diff_after + boot_result.after,
    )


def plan_boot_restore(params: Mapping[str, Any], service_manager: str) -> Dict[str, LayerChange]:
    """Return the files that restore the names when a container starts, by path. With systemd, there are none."""
    program_name = f"{names.PROGRAM_NAME}-{params['cluster']}"
    program_path, settings_path = (
        f"/usr/local/sbin/{program_name}",
        os.path.join(params["supervisor_programs"], f"{program_name}.conf"),
    )
    if params["state"] == "absent" or service_manager != service.SUPERVISORD:
        return {
            settings_path: program_archive.zipapp_change(settings_path, None),
            program_path: program_archive.zipapp_change(program_path, None),
        }
    program_params = {key: params[key] for key in ("cluster", "state", "members", "address")}
    supervisor_config = names.render_boot_program(program_name, program_path).encode("utf-8")
    return {
        program_path: push.program_change(params, names.PROGRAM_NAME, program_path, names.__name__, program_params),
        settings_path: program_archive.file_change(settings_path, supervisor_config),
    }


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            **COPY_OPTION,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "machine": {"type": "str"},
            "cluster": {"type": "str"},
            "members": {"type": "list", "elements": "dict", "options": _MEMBER_OPTIONS, "default": []},
            "address": {"type": "str"},
            **push.PUSH_OPTIONS,
            "supervisor_programs": {"type": "path", "default": service.ServicePaths().supervisor_programs},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), derive=derive_parameters)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_environment
short_description: Set the environment of Slurm jobs on a node
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Installs the program that sets the environment of jobs with its data about this node and the cluster, a block in
    C(/etc/nccl.conf), and the permission to lock memory. It is run by Slurm, as C(TaskProlog) or by the plugin of
    M(gpumesh.cluster.slurm).
  - Mounts a small tmpfs on C(/run/gpumesh/jobs), the directory of the hostfiles of jobs, so that no job can fill C(/run).
    In a container that may not mount, the directory stays on C(/run), and a warning is shown.
  - Set O(record). The other options are derived from it and from the options of the role
    P(gpumesh.cluster.job_environment#role) on the controller.
  - "Reads these options of roles: C(job_environment_dialects), C(job_environment_logins),
    C(job_environment_port_range), C(job_environment_rdma), C(job_environment_variables)."
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
    description: V(absent) removes everything that this module manages.
    type: str
    choices: [present, absent]
    default: present
  rdma:
    description: Whether jobs use the active RDMA devices. Otherwise, NCCL is configured not to.
    type: bool
    default: true
  cluster:
    description: The name of the cluster.
    type: str
  machine:
    description: The name of this host in the record.
    type: str
  settings:
    description: The data that the programs read, without the devices of this host.
    type: dict
"""

EXAMPLES = r"""
- name: Set the environment of jobs
  gpumesh.cluster.job_environment:
    record: cluster_record
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
  sample: [/etc/gpumesh/job_environment.json]
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: success
  sample: [task_prolog.py]
limited:
  description: Whether the directory of the hostfiles is a separate file system.
  type: bool
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.desired import derive_parameters


def report(module: AnsibleModule) -> ModuleResult:
    """Do the work, and warn if jobs can fill the file system of the host."""
    environment_result = apply.work(module.params, module.check_mode)
    unlimited_reason = environment_result.return_values.pop("unlimited_reason", None)
    if unlimited_reason is None:
        return environment_result
    if unlimited_reason:
        module.warn(unlimited_reason)
    is_limited = module.params["state"] == "present" and not unlimited_reason
    return environment_result._replace(return_values={**environment_result.return_values, "limited": is_limited})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "raw"}, **DERIVED_OPTION, **COPY_OPTION, **apply.OPTIONS},
        supports_check_mode=True,
    )
    exit_with(module, lambda: report(module), host_name=module.params["machine"], derive=derive_parameters)


if __name__ == "__main__":
    main()

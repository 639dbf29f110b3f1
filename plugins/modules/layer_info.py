#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layer_info
short_description: Compare a host with its cluster's record
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Compares the files and services of all layers with what the record requires on this host, in one call.
  - Set O(record). The other options are derived from it and from the options of the layers' roles on the controller.
  - Never returns the content of files, and only a fingerprint of the munge key.
  - "Reads these options of roles: C(firewall_enabled), C(firewall_ephemeral), C(firewall_open_udp_ports),
    C(firewall_ssh_from), C(firewall_ssh_port), C(firewall_tcp_ports), C(firewall_trusted), C(firewall_udp_ports),
    C(job_environment_dialects), C(job_environment_logins), C(job_environment_port_range), C(job_environment_rdma),
    C(job_environment_variables), C(mesh_preshared_keys), C(mesh_relays), C(mesh_userspace), C(mesh_userspace_nodes),
    C(session_allow), C(session_enabled), C(session_mounts_allowed), C(session_nat), C(session_ports), C(session_storage_dir), C(session_subnets),
    C(slurm_accounting), C(slurm_accounts), C(slurm_cgroup), C(slurm_conf), C(slurm_dbd_conf), C(slurm_gres),
    C(slurm_health_check), C(slurm_health_check_interval), C(slurm_health_max_drained_percent),
    C(slurm_health_mount_timeout), C(slurm_health_prolog), C(slurm_health_rdma_rate_gbps), C(slurm_job_plugin),
    C(slurm_max_nodes),
    C(slurm_node_conf), C(slurm_nodesets), C(slurm_partitions), C(slurm_qos), C(slurm_rest), C(slurm_rest_address),
    C(slurm_rest_port), C(ssh_trust_port), C(ssh_trust_users), C(storage_backend), C(storage_server), C(tracking_uid),
    C(tracking_unconfined), C(train_run_dir), C(train_stage_dir)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.copy
  - gpumesh.cluster.internal
options:
  modules:
    description: The parameters for the modules of layers that compare the host themselves, by module.
    type: dict
    default: {}
  files:
    description: The expected files. If only the path is set, the file must exist.
    type: list
    elements: dict
    default: []
    suboptions:
      layer: {description: The layer of the file., type: str, required: true}
      path: {description: The path of the file., type: str, required: true}
      contains: {description: A text that the file must contain., type: str}
      state: {description: Whether the file must exist., type: str, choices: [present, absent], default: present}
  services:
    description: Units that must be active and enabled. They are not compared if systemd is not the service manager.
    type: list
    elements: dict
    default: []
    suboptions:
      layer: {description: The layer of the unit., type: str, required: true}
      unit: {description: "The name of the unit with its suffix, such as V(slurmd.service).", type: str, required: true}
      reads:
        description: Files that the service reads when it starts, and that must not be newer than it.
        type: list
        elements: str
        default: []
      watches:
        description: A log of the kernel. Where the host cannot read it, the unit is not expected.
        type: str
"""

EXAMPLES = r"""
- name: Compare this host with the record
  gpumesh.cluster.layer_info:
    record: cluster_record
  register: layers
"""

RETURN = r"""
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
drift:
  description: A description of the differences, by layer. V(not set up) if nothing of a layer exists.
  type: dict
  returned: always
  sample: {slurm: slurmd.service does not run}
ssh_keys:
  description: The public SSH keys of the host, for the comparison with the record. Empty without an SSH trust.
  type: dict
  returned: always
pending:
  description: What a layer has to do that is no drift, by layer.
  type: dict
  returned: always
layers:
  description: The layers that the host should have, according to the record and the options of their roles.
  type: list
  elements: str
  returned: with O(record)
userspace_only:
  description: Whether the host can connect to the other members only through a proxy, and so has no layer of nodes.
  type: bool
  returned: with O(record)
slurm_version:
  description: The version of the host's slurmd. Null if it is not installed or was not compared.
  type: str
  returned: always
controller:
  description: On the manager, the values of M(gpumesh.cluster.slurm_state_info), and C(readiness) with whether each node
    that the controller knows accepts jobs, by name. C(readiness) is null if the controller does not respond.
  type: dict
  returned: always, null on other members, and if it could not be read
munge_key:
  description: The fingerprint of the host's munge key. Empty if there is none.
  type: str
  returned: always
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import COPY_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift, munge
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import controller
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.state import STATE_DIRECTORY

_MUNGE_KEY = "/etc/munge/munge.key"
#: A comparison takes less than a second, unless a volume does not respond on which a layer has files.
_COMPARISON_SECONDS = 120.0


def work(params: Dict[str, Any]) -> ModuleResult:
    """Compare the layers with the state of the host."""
    comparison = drift.compare_in_time(run, params["modules"], _COMPARISON_SECONDS)
    controller_state, controller_problem = None, {}
    if "slurm_served" in params["modules"]:
        try:
            controller_state = controller.read_controller(run, STATE_DIRECTORY)
            controller_state["readiness"] = controller.read_readiness(run)
        except GpumeshError as failure:
            controller_problem = {"slurm": failure.message.rstrip(".")}
    munge_key = munge.read_key_file(_MUNGE_KEY).key
    return ModuleResult(
        False,
        {
            "drift": {
                **comparison.drift,
                **drift.compare_layers(run, params["files"], params["services"]),
                **controller_problem,
            },
            "ssh_keys": comparison.ssh_keys,
            "pending": comparison.pending,
            "slurm_version": comparison.slurm_version,
            "controller": controller_state,
            "munge_key": munge.key_fingerprint(munge_key) if munge_key else "",
        },
        warnings=comparison.warnings,
    )


def main() -> None:
    """The module's entry point."""
    required_text = {"type": "str", "required": True}
    file_options = {
        "layer": required_text,
        "path": required_text,
        "contains": {"type": "str"},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **COPY_OPTION,
            "modules": {"type": "dict", "default": {}},
            "files": {"type": "list", "elements": "dict", "default": [], "options": file_options},
            "services": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "layer": required_text,
                    "unit": required_text,
                    "reads": {"type": "list", "elements": "str", "default": []},
                    "watches": {"type": "str"},
                },
            },
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params), derive=drift.derive_parameters)


if __name__ == "__main__":
    main()

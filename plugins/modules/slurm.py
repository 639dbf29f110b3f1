#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm
short_description: Run Slurm on a member of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Writes the configuration of a configless Slurm cluster with dynamic nodes, and runs the daemons. Slurm's own parser must
    accept the files first. A daemon is restarted only if it has not read its current settings.
  - The controller serves C(slurm.conf), C(cgroup.conf) and C(gres.conf), which do not contain nodes. So a node can join or
    leave without a changed file or a restart on other hosts. Host-specific settings are in O(directory) below C(node).
  - Detects the cgroup version, the GPUs, the memory and the version of Slurm on the host.
  - Compiles the plugin for Slurm that sets the environment of jobs instead of O(task_prolog), which works in containers,
    too, where Slurm would look for that program inside. The manager compiles it, and members with the same Slurm,
    architecture and C library copy it; others compile it themselves. Needs Slurm 24.11 or later. C(slurm_conf) with a
    C(TaskProlog) of its own disables both.
  - Set O(record). The other options are derived from it and from the options of the role P(gpumesh.cluster.slurm#role) in
    the variables of the host. This happens on the controller, which also installs missing packages.
  - "Reads these options of roles: C(session_enabled), C(slurm_accounting), C(slurm_accounts), C(slurm_cgroup),
    C(slurm_conf), C(slurm_dbd_conf), C(slurm_gres), C(slurm_health_check), C(slurm_health_check_interval),
    C(slurm_health_max_drained_percent), C(slurm_health_mount_timeout), C(slurm_health_prolog),
    C(slurm_health_rdma_rate_gbps), C(slurm_job_plugin), C(slurm_max_nodes), C(slurm_node_conf), C(slurm_nodesets),
    C(slurm_partitions), C(slurm_qos), C(slurm_rest), C(slurm_rest_address), C(slurm_rest_port)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.daemon
  - gpumesh.cluster.push
  - gpumesh.cluster.internal
attributes:
  idempotent:
    support: partial
    details:
      - With O(restart=true), every run restarts the controller.
options:
  state:
    description:
      - V(present) sets up the host as a node, with its health check, slurmd, and the daemon C(gpumesh-health), which
        runs the check when the kernel log reports a fault. The daemon is left out where the log cannot be read. If the
        node has to be deleted from the controller first, it stops before slurmd and returns RV(redefined). With
        O(slurm_node=false), the host gets the configuration of Slurm's commands instead, and what a node had is removed.
      - V(configured) writes the configuration of the controller, V(stored) runs MariaDB, and V(served) runs slurmdbd,
        slurmctld and slurmrestd. These three are for the manager, in this order. With O(record), V(served) includes
        M(gpumesh.cluster.slurm_accounting), and M(gpumesh.cluster.slurm_accounts) with the options of the role.
      - V(absent) removes the configuration.
    type: str
    choices: [present, configured, stored, served, absent]
    default: present
  restart:
    description: Whether the controller has to be restarted, according to RV(reload).
    type: bool
    default: false
  registered:
    description: The names under which results with the version of Slurm on the manager have been registered. The first
      one that has it counts. The same for RV(rest_certificates), RV(plugins_included) and RV(job_plugin).
    type: list
    elements: str
    default: []
  slurm_node:
    description: Whether the host runs jobs.
    type: bool
    default: true
  plugins_included:
    description: Whether the controller serves a C(plugstack.conf) that includes the file with plugins of each host. Only
      then is the plugin used that sets the environment of jobs. Null keeps the plugin on a host that has it in use.
    type: bool
  job_plugin:
    description: Whether to set the environment of jobs by a plugin. Otherwise O(task_prolog) does it.
    type: bool
    default: true
  install_compiler:
    description: Whether to return what is missing to compile the plugin as RV(missing). Otherwise O(task_prolog) sets the
      environment of jobs.
    type: bool
    default: true
  manager_plugin:
    description: The plugin of the manager, RV(job_plugin) without its library. Null if it has none, or is not known.
    type: dict
    suboptions:
      stamp:
        description: What it was compiled for, and the SHA-256 of the library.
        type: str
        required: true
      source_digest:
        description: The SHA-256 of its source.
        type: str
        required: true
  reregister:
    description: Whether the node was deleted from the controller, so that slurmd can register it again, or stop.
    type: bool
    default: false
  programs:
    description: The programs that the host needs.
    type: list
    elements: str
    default: []
  health_mount_timeout:
    description: The timeout in seconds for a volume to respond to the health check of the node.
    type: float
    default: 10
  health_rdma_rate_gbps:
    description: The rate in Gbit/s that RDMA ports of the fastest kind must have. V(0) only compares ports of the same
      kind.
    type: float
    default: 0
  health_max_drained_percent:
    description: The percentage of nodes that may be drained for the same fault.
    type: float
    default: 25
  keep_checks:
    description: Whether to keep the health check program if O(health_check) is empty.
    type: bool
    default: true
  controller_name:
    description: The machine of the controller, for messages.
    type: str
    default: ""
  controller_version:
    description: The version of Slurm on the machine of the controller. A node whose installed slurmd, or the one that
      would be installed, does not work with it is refused before anything changes. Empty means that it is not known.
    type: str
    default: ""
  controller_port:
    description: The port of the controller.
    type: int
    default: 6817
  token_key:
    description: The file with the key that signs the tokens of slurmrestd, which is created if missing. Empty for none.
    type: str
    default: ""
  files:
    description: Files to write, as entries for C(module_utils/_core/managed_files.py).
    type: list
    elements: dict
    default: []
  withdrawn:
    description: Files and directories of services that are no longer wanted.
    type: list
    elements: str
    default: []
  system_accounts:
    description: The system accounts that O(daemons) need, which are created if missing.
    type: list
    elements: str
    default: []
  certificate:
    description: The certificate that the proxy of slurmrestd makes for itself, and renews. Null for none.
    type: dict
    suboptions:
      folder:
        description: The directory of the certificate and its private key.
        type: path
        required: true
      cluster:
        description: The name of the cluster.
        type: str
        required: true
      service:
        description: The name of the service.
        type: str
        required: true
      machine:
        description: The name of the host.
        type: str
        required: true
      addresses:
        description: The addresses at which clients reach it.
        type: list
        elements: str
        required: true
  rest_certificates:
    description: The certificates that clients of the REST API have to trust, which are written to
      C(/etc/gpumesh/slurm-rest-ca.crt). An empty list removes that file, and null keeps it.
    type: list
    elements: str
  daemons:
    description: The daemons to run, in this order, with options of M(gpumesh.cluster.daemon).
    type: list
    elements: dict
    default: []
  cluster:
    description: The name of the cluster. Required for V(present) and V(configured).
    type: str
  controller:
    description: The address of the controller in the cluster. Required for V(present) and V(configured).
    type: str
  machine:
    description: The node name of this host. Required for V(present) and V(configured).
    type: str
  address:
    description: The address of this host in the cluster. Required for V(present) and V(configured).
    type: str
  serve:
    description: Whether this host runs the controller.
    type: bool
    default: false
  accounting:
    description: Whether the controller uses slurmdbd.
    type: bool
    default: true
  max_nodes:
    description: The maximum number of nodes.
    type: int
    default: 1024
  task_prolog:
    description:
      - A program that runs before each task of a job and can set its environment. Empty means none.
      - Slurm fails a task whose prolog is missing, so an empty program is installed if there is none.
    type: str
    default: ""
  health_check:
    description: A program that slurmd runs every O(health_check_interval) seconds, in any state of the node. Empty
      means none.
    type: str
    default: ""
  health_check_interval:
    description: The interval between two runs of O(health_check) in seconds.
    type: int
    default: 300
  prolog:
    description: A program that runs on each node before a job starts there. If it fails, the job is requeued.
    type: str
    default: ""
  epilog:
    description:
      - A program that runs on each node after a job has ended there. Empty means none.
      - Slurm drains a node whose epilog is missing, so an empty program is installed if there is none.
    type: str
    default: ""
  state_folder:
    description: The directory of the controller's state.
    type: path
    default: /var/lib/slurm/slurmctld
  spool_folder:
    description: The directory of slurmd's state.
    type: path
    default: /var/lib/slurm/slurmd
  log_folder:
    description: The directory of the log files.
    type: path
    default: /var/log/slurm
  settings:
    description:
      - Settings for C(slurm.conf). They take precedence over those of this module; null removes one.
      - C(SlurmctldParameters), C(DebugFlags) and C(SchedulerParameters) keep the words that this module needs, in
        addition to yours. null removes them as well, except C(enable_configless).
    type: dict
    default: {}
  partitions:
    description: The partitions by name, with their parameters.
    type: dict
    default: {cluster: {Nodes: ALL, Default: true, State: UP, MaxTime: INFINITE}}
  nodesets:
    description: Node sets by name, with their parameters, for C(Nodes) of a partition.
    type: dict
    default: {}
  cgroup:
    description: Settings for C(cgroup.conf). They take precedence over those of this module.
    type: dict
    default: {}
  gres:
    description:
      - The GRES of this host by name, such as C(gpu), each a mapping with parameters of C(gres.conf) or a list of
        mappings. C(gpu) replaces the detected GPUs; an empty list means that there are none.
    type: dict
    default: {}
  gres_types:
    description: The names of GRES of other members, which the controller has to know.
    type: list
    elements: str
    default: []
  keep_gres_types:
    description: Whether the controller keeps the names of GRES that it knows, since O(gres_types) may be incomplete.
    type: bool
    default: false
  plugins:
    description: The paths of SPANK plugins that slurmd and srun load, the same on all hosts. Missing ones are skipped.
    type: list
    elements: str
    default: []
  gpus:
    description:
      - The number of GPUs that this host should have. If fewer are found and O(gres) does not list them, the node still
        declares this number, and Slurm takes it out of service with a reason.
    type: int
    default: 0
  node:
    description: Node parameters of this host, such as C(Feature) and C(Weight). They take precedence over those of this
      module.
    type: dict
    default: {}
  directory:
    description: The directory of Slurm's configuration.
    type: path
    default: /etc/slurm
"""

EXAMPLES = r"""
- name: Run the node
  gpumesh.cluster.slurm:
    record: cluster_record
"""

RETURN = r"""
sessions:
  description: Whether the host has the plugin for sessions.
  type: bool
  returned: unless O(state=absent)
missing:
  description: The programs that have to be installed first, such as in check mode.
  type: list
  elements: str
  returned: unless O(state=absent)
reload:
  description: What a running controller needs to apply the changes, V(none), V(reconfigure) or V(restart).
  type: str
  returned: O(state=present) or O(state=configured)
node_changed:
  description: Whether slurmd has to be restarted.
  type: bool
  returned: O(state=present) or O(state=configured)
redefined:
  description: Whether the definition of the node has changed, or there is to be none any more, so that it has to be
    deleted from the controller first.
  type: bool
  returned: O(state=present) or O(state=configured)
changed_files:
  description: The files that were written or removed.
  type: list
  elements: str
  returned: unless O(state=stored) or O(state=served)
slurm_node:
  description: Whether the host runs jobs.
  type: bool
  returned: O(state=present) or O(state=configured)
leftover:
  description: Whether this host has the state of a controller although it does not run one, as a former manager.
  type: bool
  returned: O(state=present) or O(state=configured)
definition:
  description: The definition of the node.
  type: str
  returned: O(state=present) or O(state=configured)
  sample: NodeAddr=10.99.0.1 RealMemory=23622 Gres=gpu:2
cgroup:
  description: The cgroup version that Slurm uses on this host, C(v1), C(v2) or C(none), and why.
  type: dict
  returned: O(state=present) or O(state=configured)
  sample: {version: none, why: systemd does not run as PID 1}
slurm_version:
  description: The version of the installed Slurm. Null if it is not installed.
  type: str
  returned: O(state=present) or O(state=configured)
  sample: 24.11.5
validated:
  description: Whether the files were checked by Slurm's parser. They are not if Slurm is not installed, as in check mode.
  type: bool
  returned: O(state=present) or O(state=configured)
socket:
  description: The socket on which MariaDB listens.
  type: str
  returned: O(state=stored)
database:
  description: Whether the database has to be created, its account lacks rights, or an accounting has to be loaded into
    it, and MariaDB is available for this.
  type: bool
  returned: O(state=stored)
plugins_included:
  description: Whether the C(plugstack.conf) of the controller includes the file with plugins of each host.
  type: bool
  returned: O(state=present) and O(state=configured)
job_plugin:
  description: The plugin that sets the environment of jobs, as from M(gpumesh.cluster.slurm_state_info).
  type: dict
  returned: O(state=configured)
withdrawn:
  description: The existing files of services that are no longer wanted.
  type: list
  elements: str
  returned: O(state=served)
rest_certificates:
  description: The certificates that clients of the REST API have to trust, the current one and possibly the next one. Null
    if there is none yet.
  type: list
  elements: str
  returned: O(state=served)
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: unless O(state=absent)
  sample: [gpumesh-node-health]
restarted:
  description: The daemons that were restarted, or would have been.
  type: list
  elements: str
  returned: unless O(state=absent)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import apply


def main() -> None:
    """The module's entry point."""
    identity_names = ("cluster", "controller", "machine", "address")
    module = AnsibleModule(
        argument_spec={
            # The action of the same name reads these two.
            "record": {"type": "raw"},
            "registered": {"type": "list", "elements": "str", "default": []},
            **DERIVED_OPTION,
            **apply.OPTIONS,
        },
        required_if=[("state", "present", identity_names), ("state", "configured", identity_names)],
        supports_check_mode=True,
    )
    exit_with(module, lambda: apply.work(module.params, module.check_mode), host_name=module.params["machine"])


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_config
short_description: The files of a configless Slurm cluster on one host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Looks at the host's control groups, GPUs and memory, writes what Slurm has to know of it, and on the controller what
    is served to all nodes. Nodes register themselves, so no file names them.
  - Slurm's own parser reads everything before a file is replaced. What it refuses leaves the old files as they are.
  - Starts and restarts nothing, but says what is needed.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  state:
    description: V(absent) removes what this module has written.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: Name of the cluster. Required for V(present).
    type: str
  controller:
    description: Address of the controller in the cluster. Required for V(present).
    type: str
  machine:
    description: Name of this host as a node. Required for V(present).
    type: str
  address:
    description: Its address in the cluster. Required for V(present).
    type: str
  serve:
    description: This host runs the controller.
    type: bool
    default: false
  accounting:
    description: The controller has a slurmdbd beside it.
    type: bool
    default: true
  max_nodes:
    description: How many nodes may register.
    type: int
    default: 1024
  task_prolog:
    description:
      - Program that runs before each task and may set its environment. Empty for none.
      - Slurm fails a task whose prolog is missing, so one that does nothing is put where there is none.
    type: str
    default: ""
  health_check:
    description: Program that slurmd runs every O(health_check_interval) seconds, whatever the node does. Empty for none.
    type: str
    default: ""
  health_check_interval:
    description: Seconds between two runs of O(health_check).
    type: int
    default: 300
  prolog:
    description: Program that runs on each node before a job starts there. Where it fails, the job is queued again.
    type: str
    default: ""
  epilog:
    description:
      - Program that runs on each node after a job has ended there. Empty for none.
      - Slurm drains a node whose epilog is missing, so one that does nothing is put where there is none.
    type: str
    default: ""
  state_folder:
    description: Where the controller keeps its state.
    type: path
    default: /var/lib/slurm/slurmctld
  spool_folder:
    description: Where slurmd keeps its state.
    type: path
    default: /var/lib/slurm/slurmd
  log_folder:
    description: Folder of the log files.
    type: path
    default: /var/log/slurm
  settings:
    description: Settings of C(slurm.conf), which win over ours. Null takes one of ours out.
    type: dict
    default: {}
  partitions:
    description: The partitions by name, with their parameters.
    type: dict
    default: {cluster: {Nodes: ALL, Default: true, State: UP, MaxTime: INFINITE}}
  nodesets:
    description: Sets of nodes by name, with their parameters, as for C(Nodes) of a partition.
    type: dict
    default: {}
  dbd_settings:
    description: Settings of C(slurmdbd.conf), for RV(accounting_port). The file is not written.
    type: dict
    default: {}
  cgroup:
    description: Settings of C(cgroup.conf), which win over ours.
    type: dict
    default: {}
  gres:
    description:
      - Devices to schedule on by their name (C(gpu), for example), each a mapping of parameters of C(gres.conf) or a
        list of mappings. C(gpu) replaces what is detected; an empty list means that there is none.
    type: dict
    default: {}
  gpus:
    description:
      - How many GPUs this host is known to have. Where fewer are found and O(gres) does not name them, the node goes on
        declaring so many, and Slurm takes it out of service and says why.
    type: int
    default: 0
  node:
    description: Parameters of this node, such as C(Feature) and C(Weight), which win over ours.
    type: dict
    default: {}
  directory:
    description: Folder of Slurm's configuration.
    type: path
    default: /etc/slurm
"""

EXAMPLES = r"""
- name: Configure the controller, which is a node too
  gpumesh.cluster.slurm_config:
    cluster: lab
    controller: 10.99.0.1
    machine: n1
    address: 10.99.0.1
    serve: true
    settings:
      MaxJobCount: 20000

- name: Configure a node whose GPUs are named by hand
  gpumesh.cluster.slurm_config:
    cluster: lab
    controller: 10.99.0.1
    machine: n2
    address: 10.99.0.2
    gres:
      gpu:
        Type: h100
        File: /dev/nvidia[0-7]
    node:
      Feature: nvlink
"""

RETURN = r"""
reload:
  description: What a running controller needs to take the changes over, V(none), V(reconfigure) or V(restart).
  type: str
  returned: always
node_changed:
  description: Whether slurmd has to be restarted.
  type: bool
  returned: always
redefined:
  description: Whether what the node declares of itself has changed, so that the controller has to forget it first.
  type: bool
  returned: always
changed_files:
  description: The files that were written or removed.
  type: list
  elements: str
  returned: always
leftover:
  description: Whether this host, which is not to serve, has the state of a controller, as when it was the manager before.
  type: bool
  returned: always
definition:
  description: What the node declares of itself.
  type: str
  returned: O(state=present)
  sample: NodeAddr=10.99.0.1 RealMemory=23622 Gres=gpu:2
arguments:
  description: The arguments of slurmd.
  type: list
  elements: str
  returned: O(state=present)
controller_port:
  description: The port at which the controller answers, by O(settings).
  type: int
  returned: O(state=present)
  sample: 6817
accounting_port:
  description: The port at which slurmdbd answers, by O(dbd_settings).
  type: int
  returned: O(state=present)
  sample: 6819
cgroup:
  description: The version of the control groups that Slurm uses on this host, C(v1), C(v2) or C(none), and why.
  type: dict
  returned: O(state=present)
  sample: {version: none, why: systemd does not run as PID 1}
slurm_version:
  description: Version of the installed Slurm. Null where there is none.
  type: str
  returned: O(state=present)
  sample: 24.11.5
validated:
  description: Whether Slurm's parser has read the files. It has not where Slurm is not installed, as in check mode.
  type: bool
  returned: O(state=present)
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import config, configure
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import read_host, running_options
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.tenure import is_there


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    folder = given["directory"]
    present = configure.read_files(folder)
    values: Dict[str, Any] = {}
    wanted = None
    runs: Dict[str, str] = {}
    if given["state"] == "present":
        host = read_host(run, Tree())
        request = config.Request(**{name: given[name] for name in config.Request._fields})
        runs = running_options(Tree(), given["machine"])
        wanted = config.documents(request, host, folder, config.definition_in(present[config.OPTIONS]) or "")
        values = {
            "definition": wanted.definition,
            "arguments": list(wanted.arguments),
            "controller_port": int(config.first_port("slurm_conf", given["settings"], "SlurmctldPort", "6817")),
            "accounting_port": int(config.first_port("slurm_dbd_conf", given["dbd_settings"], "DbdPort", "6819")),
            "cgroup": {"version": host.cgroups.version, "why": host.cgroups.why},
            "slurm_version": ".".join(map("{:02d}".format, host.version)) if host.version else None,
        }
    planned = configure.plan(present, wanted, given["serve"], folder, runs)
    if wanted is not None:
        values["validated"] = bool(planned.write) and configure.validate(run, wanted, folder)
    folders = configure.missing_folders(wanted_folders(given)) if wanted is not None else []
    missing = configure.missing_programs([given["task_prolog"], given["epilog"]]) if wanted is not None else []
    if not module.check_mode:
        configure.make_folders(folders)
        configure.make_programs(missing)
        configure.apply(folder, planned)
    return Outcome(
        bool(planned.write or folders or missing),
        {
            **values,
            "reload": planned.reload,
            "node_changed": planned.node_changed,
            "redefined": planned.redefined,
            "leftover": wanted is not None and not given["serve"] and is_there(given["state_folder"]),
            "changed_files": sorted(planned.write),
        },
        planned.before,
        planned.after,
        folder,
    )


def wanted_folders(given: Mapping[str, Any]) -> Dict[str, str]:
    """The folders that the daemons need and do not make, with their owners."""
    folders = {given["spool_folder"]: "root", given["log_folder"]: "slurm"}
    if given["serve"]:
        folders[given["state_folder"]] = "slurm"
    return folders


def main() -> None:
    """The module's entry point."""
    partitions = {"cluster": {"Nodes": "ALL", "Default": True, "State": "UP", "MaxTime": "INFINITE"}}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "cluster": {"type": "str"},
            "controller": {"type": "str"},
            "machine": {"type": "str"},
            "address": {"type": "str"},
            "serve": {"type": "bool", "default": False},
            "accounting": {"type": "bool", "default": True},
            "max_nodes": {"type": "int", "default": 1024},
            "task_prolog": {"type": "str", "default": ""},
            "health_check": {"type": "str", "default": ""},
            "health_check_interval": {"type": "int", "default": 300},
            "prolog": {"type": "str", "default": ""},
            "epilog": {"type": "str", "default": ""},
            "state_folder": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "spool_folder": {"type": "path", "default": "/var/lib/slurm/slurmd"},
            "log_folder": {"type": "path", "default": "/var/log/slurm"},
            "settings": {"type": "dict", "default": {}},
            "partitions": {"type": "dict", "default": partitions},
            "nodesets": {"type": "dict", "default": {}},
            "dbd_settings": {"type": "dict", "default": {}},
            "cgroup": {"type": "dict", "default": {}},
            "gres": {"type": "dict", "default": {}},
            "gpus": {"type": "int", "default": 0},
            "node": {"type": "dict", "default": {}},
            "directory": {"type": "path", "default": "/etc/slurm"},
        },
        required_if=[("state", "present", ("cluster", "controller", "machine", "address"))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), host=module.params["machine"])


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_reboot
short_description: Decide which machines of a cluster are rebooted, and in which order
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the members of the play in the order of the record, with the manager last, and prints that order.
  - Members that are containers, or were not booted with systemd, are left out and named.
  - Fails if a member of the play has not answered, if the manager does not answer, if a member is the machine that runs
    Ansible, or if its Slurm does not belong to the cluster.
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - "Reads these options of roles: C(cluster_reboot_timeout)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  record:
    description: The cluster record, or the name of the variable that holds it.
    type: raw
    required: true
  copies:
    description: The name of the variable in which M(gpumesh.cluster.cluster_copies) is registered.
    type: str
    required: true
  registered:
    description:
      - The names of the variables in which tasks have registered what each host is.
      - C(container) is the output of C(systemd-detect-virt --container), C(systemd) is M(ansible.builtin.stat) of
        C(/run/systemd/system), C(boot_id) is the content of C(/proc/sys/kernel/random/boot_id), and C(owner) is
        M(gpumesh.cluster.host_owner).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Decide which machines are rebooted
  gpumesh.cluster.cluster_reboot:
    record: cluster_record
    copies: copies
    registered: {container: container, systemd: systemd, boot_id: boot_id, owner: owner}
  register: reboot
  run_once: true
"""

RETURN = r"""
machines:
  description: The machines to reboot, in order.
  returned: success
  type: list
  elements: str
  sample: [gpu2, gpu3, gpu1]
timeout:
  description: The option C(cluster_reboot_timeout), in seconds.
  returned: success
  type: int
  sample: 1800
obstacles:
  description: Why the other members of the play cannot be rebooted, by machine.
  returned: success
  type: dict
  sample: {pod1: "a container (docker), which has no kernel of its own"}
"""

# The work is done by the action plugin of the same name.

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_host
short_description: Let the members of a cluster through the host's own ufw or firewalld
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Compares the rules of ufw, and two zones and two policies of firewalld, with what a cluster needs on this host. Does nothing
    about a firewall that is not active.
  - The rules are derived from the record on the controller. If C(firewall_host) is V(auto), the missing ones are then added,
    with C(community.general.ufw), C(ansible.posix.firewalld) and, since that knows no policies, C(firewall-cmd). Otherwise,
    the commands are printed.
  - Never enables, disables or resets a firewall, changes its defaults, or changes rules of others.
  - "Reads these options of roles: C(cluster_name), C(firewall_host), C(session_enabled), C(session_nat),
    C(session_ports), C(session_subnets)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.internal
options:
  registration:
    description:
      - The name of the variable with the result of M(gpumesh.cluster.cluster_registration), for a record that is not written
        yet.
    type: str
  cluster:
    description: The name of the cluster.
    type: str
  state:
    description: V(absent) removes the rules of the cluster, even if C(firewall_host) is V(report).
    type: str
    choices: [present, absent]
    default: present
  apply:
    description: Whether to run the commands of firewalld that RV(zones) does not contain.
    type: bool
    default: false
  rules:
    description: What the firewalls must accept.
    type: list
    elements: dict
    default: []
    suboptions:
      interface: {description: "The interface that receives it; a trailing + stands for any end of the name.", type: str}
      source: {description: The network of the sender., type: str}
      port: {description: The port., type: int}
      protocol: {description: The protocol of the port., type: str, choices: [tcp, udp]}
      forward: {description: Whether it is forwarded., type: bool}
      out_interface: {description: The interface that sends what is forwarded., type: str}
      mesh: {description: Whether the interface belongs to the cluster alone., type: bool}
"""

EXAMPLES = r"""
- name: Let the members through the host's own firewall
  gpumesh.cluster.firewall_host:
    record: cluster_record

- name: Remove the rules of the cluster
  gpumesh.cluster.firewall_host:
    record: cluster_record
    state: absent
"""

RETURN = r"""
firewalls:
  description: The firewalls that are active, V(ufw) and V(firewalld).
  type: list
  elements: str
  returned: success
commands:
  description: The commands that make the changes.
  type: list
  elements: str
  returned: success
  sample: ["ufw allow in on eth0 from 10.0.0.0/24 comment 'gpumesh.cluster lab'"]
obstacles:
  description: What prevents the changes.
  type: list
  elements: str
  returned: success
ufw:
  description: The arguments for C(community.general.ufw), for each change of ufw.
  type: list
  elements: dict
  returned: success
applies:
  description: Whether O(apply) has something to do.
  type: bool
  returned: success
zones:
  description: The arguments for C(ansible.posix.firewalld), for each permanent change of the zones that is not a deletion.
  type: list
  elements: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import host_apply


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            # The action of the same name reads these two.
            "record": {"type": "raw"},
            "registration": {"type": "str"},
            **DERIVED_OPTION,
            **host_apply.OPTIONS,
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: host_apply.work(module.params, module.check_mode))


if __name__ == "__main__":
    main()

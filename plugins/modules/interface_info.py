#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: interface_info
short_description: Tell of a host's network interfaces, RDMA ports and GPUs
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Tells what a host's interfaces really are (physical or not, their speed, driver, place on the PCI bus and the RDMA
    port behind them), its default routes, what its own name resolves to, and the GPUs that jobs can open.
  - Reads C(ip -j) and files of the kernel; it needs nothing but Python and iproute2 4.13 or later, and no privilege.
  - It takes a fraction of the time of M(ansible.builtin.setup), since it starts three short processes.
  - Of a host on which it cannot run it says why. That takes C(paramiko) where Ansible runs, and time only then.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options: {}
seealso:
  - plugin: gpumesh.cluster.shared_subnets
    plugin_type: filter
  - plugin: gpumesh.cluster.choose_subnet
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Look at the interfaces
  gpumesh.cluster.interface_info:
  register: detected

- name: Name the physical ones that are up
  ansible.builtin.debug:
    msg: "{{ detected.interfaces | selectattr('physical') | selectattr('state', 'eq', 'up') | map(attribute='name') }}"
"""

RETURN = r"""
interfaces:
  description: Every interface, in the order of C(ip).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Its name.
      type: str
      sample: eno1
    alternative_names:
      description: Other names of it.
      type: list
      elements: str
    kind:
      description:
        - One of C(ethernet), C(infiniband), C(bond), C(vlan), C(bridge), C(veth), C(tun), C(wireguard), C(vxlan),
          C(loopback) and C(other).
      type: str
      sample: ethernet
    link_kind:
      description: The kernel's own word for a virtual one, such as C(macvlan).
      type: str
    physical:
      description: Whether there is a device behind it, real or given by a hypervisor.
      type: bool
    state:
      description: C(up), C(down) or another operational state of the kernel in lower case.
      type: str
      sample: up
    mtu:
      description: In bytes.
      type: int
      sample: 9000
    mac:
      description: The hardware address; none for tunnels and the loopback.
      type: str
    speed_mbps:
      description: In Mbit/s. None where the kernel's figure says nothing, as with bridges, veth and many virtual cards.
      type: int
      sample: 100000
    driver:
      description: The driver of a physical one.
      type: str
      sample: mlx5_core
    pci_address:
      description: Its place on the PCI bus.
      type: str
      sample: "0000:3b:00.0"
    numa_node:
      description: The NUMA node of that place; none on a machine with only one.
      type: int
    master:
      description: The bond or bridge that it is a port of.
      type: str
    members:
      description: The ports of a bond or bridge.
      type: list
      elements: str
    parent:
      description: The interface that a VLAN or the like stands on.
      type: str
    vlan_id:
      description: The number of a VLAN.
      type: int
    rdma:
      description: The RDMA port behind it, or none.
      type: dict
      contains:
        device:
          description: Its name.
          type: str
          sample: mlx5_0
        port:
          description: Its number, from 1.
          type: int
        state:
          description: C(active), C(down) or another state of the kernel in lower case.
          type: str
        link_layer:
          description: C(InfiniBand) or C(Ethernet).
          type: str
        rate_gbps:
          description: In Gbit/s.
          type: float
          sample: 200.0
        gids:
          description: The identifiers in use that belong to the interface.
          type: list
          elements: dict
    addresses:
      description: Its addresses.
      type: list
      elements: dict
      contains:
        address:
          description: Without the prefix length.
          type: str
          sample: 10.77.0.11
        prefix_length:
          description: The length of the prefix.
          type: int
          sample: 24
        subnet:
          description: The network that it is in.
          type: str
          sample: 10.77.0.0/24
        family:
          description: C(inet) or C(inet6).
          type: str
        scope:
          description: C(global), C(link) or C(host).
          type: str
        secondary:
          description: Whether it stands behind another one of the same subnet; so do temporary IPv6 addresses.
          type: bool
        flags:
          description: Those of C(dynamic), C(temporary), C(deprecated), C(tentative) and C(dadfailed) that it has.
          type: list
          elements: str
host:
  description: What belongs to the host as a whole.
  returned: always
  type: dict
  contains:
    default_routes:
      description: The default routes of both families, one for each next hop, the best metric first.
      type: list
      elements: dict
      sample: [{family: inet, gateway: 10.77.0.1, interface: eno1, metric: 100, source: null}]
    hostname:
      description: What the host's own name resolves to on it, with the problem and its remedy in words, if any.
      type: dict
      sample:
        name: n1
        addresses: [127.0.1.1]
        hosts_file: [127.0.1.1]
        loopback: true
        problem: "The host's own name n1 resolves to 127.0.1.1 (in /etc/hosts): services listen where no one else is."
        remedy: Map n1 to its cluster address in /etc/hosts instead of 127.0.1.1.
    efa:
      description: Whether AWS EFA is there, its devices and what says so.
      type: dict
      sample: {present: false, devices: [], reasons: []}
    gpudirect_tcpx:
      description: Whether GPUDirect-TCPX of Google's A3 machines seems possible, its interfaces and what says so.
      type: dict
      sample: {present: false, devices: [], reasons: []}
    gpus:
      description: The GPUs that have a device file, and a problem in words where there are others.
      type: dict
      sample:
        count: 2
        vendor: nvidia
        type: NVIDIA H200
        files: [/dev/nvidia0, /dev/nvidia1]
        pci_addresses: ["0000:18:00.0", "0000:2a:00.0"]
        problem: null
    local_ports:
      description:
        - The C(first) and C(last) port that the kernel gives to outgoing connections, and the ports and ranges among them
          that it leaves alone. None where it does not say.
      type: dict
      sample: {first: 32768, last: 60999, reserved: []}
    may_lock_memory:
      description: Whether the account of the task may lift the limit of locked memory, as RDMA needs.
      type: bool
error:
  description: Why it could not run on the host. The guide on troubleshooting has the causes.
  returned: failure
  type: dict
  contains:
    cause:
      description: The cause as one word, where the host is silent.
      type: str
      sample: key_refused
    message:
      description: What is the matter.
      type: str
      sample: 192.168.1.12 answers, but nothing listens on port 22.
    remedy:
      description: What to do.
      type: str
      sample: Start its SSH server (systemctl start ssh, or sshd), or give its port in ansible_port.
said:
  description: What Ansible says of a silent host by itself.
  returned: when the host is silent
  type: str
  sample: "Failed to connect to the host via ssh: Connection refused"
"""

import socket

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.facts import gather
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.hostname import resolve
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    hostname = socket.gethostname()
    exit_with(module, lambda: Outcome(False, {**gather(run, Tree(), hostname, resolve)}), host=hostname)


if __name__ == "__main__":
    main()

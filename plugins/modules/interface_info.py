#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: interface_info
short_description: Gather information about the network interfaces, RDMA ports and GPUs of a host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the properties of all interfaces (whether they are physical, their speed, driver, PCI address and RDMA port),
    the default routes, the addresses to which the host's own name resolves, and the GPUs that jobs can open.
  - Reads the output of C(ip -j) and kernel files. It requires only Python and iproute2 4.13 or later, and no privileges.
  - Takes a fraction of the time of M(ansible.builtin.setup), since it starts only three short processes.
  - If it cannot run on a host, it reports the reason. This requires C(paramiko) on the controller, and takes time only then.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options: {}
seealso:
  - plugin: gpumesh.cluster.shared_subnets
    plugin_type: filter
  - module: gpumesh.cluster.discover
"""

EXAMPLES = r"""
- name: Gather the interfaces
  gpumesh.cluster.interface_info:
  register: detected

- name: Show the physical interfaces that are up
  ansible.builtin.debug:
    msg: "{{ detected.interfaces | selectattr('physical') | selectattr('state', 'eq', 'up') | map(attribute='name') }}"
"""

RETURN = r"""
interfaces:
  description: All interfaces, in the order of C(ip).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The name of the interface.
      type: str
      sample: eno1
    alternative_names:
      description: Alternative names of the interface.
      type: list
      elements: str
    kind:
      description:
        - One of C(ethernet), C(infiniband), C(bond), C(vlan), C(bridge), C(veth), C(tun), C(wireguard), C(vxlan),
          C(loopback) and C(other).
      type: str
      sample: ethernet
    link_kind:
      description: The kernel's link type of a virtual interface, such as C(macvlan).
      type: str
    physical:
      description: Whether it belongs to a device, either a real one or one provided by a hypervisor.
      type: bool
    state:
      description: C(up), C(down) or another operational state of the kernel, in lower case.
      type: str
      sample: up
    mtu:
      description: The MTU in bytes.
      type: int
      sample: 9000
    mac:
      description: The MAC address. Null for tunnels and the loopback interface.
      type: str
    speed_mbps:
      description: The speed in Mbit/s. Null if the kernel's value is meaningless, as for bridges, veth and many virtual NICs.
      type: int
      sample: 100000
    driver:
      description: The driver of a physical interface.
      type: str
      sample: mlx5_core
    pci_address:
      description: The PCI address.
      type: str
      sample: "0000:3b:00.0"
    numa_node:
      description: The NUMA node of the device. Null on machines with only one.
      type: int
    master:
      description: The bond or bridge to which the interface belongs.
      type: str
    members:
      description: The ports of a bond or bridge.
      type: list
      elements: str
    parent:
      description: The interface below a VLAN or a similar interface.
      type: str
    vlan_id:
      description: The VLAN ID.
      type: int
    rdma:
      description: The RDMA port of the interface, or null.
      type: dict
      contains:
        device:
          description: The name of the RDMA device.
          type: str
          sample: mlx5_0
        port:
          description: The port number, starting at 1.
          type: int
        state:
          description: C(active), C(down) or another state of the kernel, in lower case.
          type: str
        link_layer:
          description: C(InfiniBand) or C(Ethernet).
          type: str
        rate_gbps:
          description: The rate in Gbit/s.
          type: float
          sample: 200.0
        gids:
          description: The GIDs in use that belong to the interface.
          type: list
          elements: dict
    addresses:
      description: The addresses of the interface.
      type: list
      elements: dict
      contains:
        address:
          description: The address without the prefix length.
          type: str
          sample: 10.77.0.11
        prefix_length:
          description: The prefix length.
          type: int
          sample: 24
        subnet:
          description: The subnet of the address.
          type: str
          sample: 10.77.0.0/24
        family:
          description: C(inet) or C(inet6).
          type: str
        scope:
          description: C(global), C(link) or C(host).
          type: str
        secondary:
          description: Whether it is a secondary address of the same subnet, like temporary IPv6 addresses.
          type: bool
        flags:
          description: The flags of the address, of C(dynamic), C(temporary), C(deprecated), C(tentative) and C(dadfailed).
          type: list
          elements: str
host:
  description: Properties of the host as a whole.
  returned: always
  type: dict
  contains:
    boot_id:
      description: The kernel's ID of its current start, which no other machine has. Containers have that of their host.
      type: str
      sample: 3f0c8f5e-6b0a-4c8e-9d1b-0d6f2a1c7e55
    default_routes:
      description: The default routes of both address families, one per next hop, best metric first.
      type: list
      elements: dict
      sample: [{family: inet, gateway: 10.77.0.1, interface: eno1, metric: 100, source: null}]
    hostname:
      description: The addresses to which the host's own name resolves on the host, with the problem and its remedy, if any.
      type: dict
      sample:
        name: n1
        addresses: [127.0.1.1]
        hosts_file: [127.0.1.1]
        loopback: true
        problem: "The host's own name n1 resolves to 127.0.1.1 (in /etc/hosts): services listen where others cannot reach them."
        remedy: Map n1 to its cluster address in /etc/hosts instead of 127.0.1.1.
    efa:
      description: Whether AWS EFA is present, its devices, and the evidence.
      type: dict
      sample: {present: false, devices: [], reasons: []}
    gpudirect_tcpx:
      description: Whether GPUDirect-TCPX of Google's A3 machines appears to be available, its interfaces, and the evidence.
      type: dict
      sample: {present: false, devices: [], reasons: []}
    gpus:
      description: The GPUs that have a device file, and a description of the problem if there are others.
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
        - The C(first) and C(last) port of the kernel's range for outgoing connections, and the reserved ports and ranges in
          it. Null if unknown.
      type: dict
      sample: {first: 32768, last: 60999, reserved: []}
    may_lock_memory:
      description: Whether the user of the task can raise the limit of locked memory, which RDMA requires.
      type: bool
    rdma:
      description: The fabric of the active RDMA ports that jobs can use, C(infiniband), C(roce) or C(none).
      type: str
      sample: infiniband
error:
  description: Why the module could not run on the host. The troubleshooting guide lists the causes.
  returned: failure
  type: dict
  contains:
    cause:
      description: The name of the cause, if the host does not answer.
      type: str
      sample: key_refused
    message:
      description: What is wrong.
      type: str
      sample: 192.168.1.12 answers, but nothing listens on port 22.
    remedy:
      description: What to do.
      type: str
      sample: Start its SSH server (systemctl start ssh, or sshd), or set ansible_port to its port.
ansible_message:
  description: Ansible's own message about a host that does not answer.
  returned: when the host does not answer
  type: str
  sample: "Failed to connect to the host via ssh: Connection refused"
"""

import socket

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.facts import gather_facts
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.hostname import resolve_hostname


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    hostname = socket.gethostname()
    exit_with(
        module,
        lambda: ModuleResult(False, {**gather_facts(run, Tree(), hostname, resolve_hostname)}),
        host_name=hostname,
    )


if __name__ == "__main__":
    main()

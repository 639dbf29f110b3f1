#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wireguard
short_description: Manage a WireGuard interface, its key and its peers
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Generates the key pair on the host. The private key is in C(/etc/wireguard/<interface>.key), readable only by root; it
    does not appear in any configuration, command line, result or diff.
  - With O(peers), or with O(record), from which they are derived, writes the configuration for C(wg-quick) and applies it
    to the running interface. Only differences are changed; the sessions of other peers continue. Manual changes are
    reverted.
  - With O(record), installs WireGuard if it is missing.
  - Does not start an interface that is down. Start the service C(wg-quick@<interface>) after this module; it falls back to
    C(wireguard-go) if the kernel does not support WireGuard.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.record.copy
  - gpumesh.cluster.mesh.tunnel
options:
  machine:
    description: The name of this host in the record. It is set on the controller by O(record).
    type: str
  relays:
    description:
      - With O(record), members that relay between two others that cannot connect to each other, in order of preference. An
        empty list means the manager.
    type: list
    elements: str
    default: []
  state:
    description: V(absent) removes the interface, its configuration and its key.
    type: str
    choices: [present, absent]
    default: present
  mtu:
    description: The MTU of the tunnel in bytes.
    type: int
    default: 1420
  probe_mtu:
    description:
      - Lower O(mtu) to the MTU of the paths to the endpoints, measured with echo requests that must not be fragmented.
      - Each endpoint is measured in its first run; later runs confirm the result with one packet, or two if the path is
        narrow, and measure again if it has changed. For an endpoint that does not answer echo requests in its first run,
        O(mtu) is used.
    type: bool
    default: false
  public_key:
    description:
      - The public key of this host that its peers know. If the host has a different one, or none yet, only its key is
        set up and returned, so that it can be registered first; an empty string matches no key.
      - If not set, the interface is set up with the key of the host.
    type: str
  forward:
    description:
      - Whether the kernel forwards packets between the peers, as on a relay. For IPv4 this affects only O(interface).
      - V(false) does not change the setting of a running interface.
    type: bool
    default: false
  preshared:
    description:
      - With O(record), V(false) removes the preshared keys of this host with the members of the play. V(true) keeps them.
      - If not set, they are kept.
    type: bool
  absent_members:
    description:
      - With O(preshared=false), the members that are not in the play. The preshared keys with them are kept. It is set on the
        controller by O(record).
    type: list
    elements: str
    default: []
  preshared_results:
    description:
      - With O(record), the variable in which each host of the play has registered
        M(gpumesh.cluster.wireguard_preshared). O(preshared_keys) is derived from these results.
    type: str
  preshared_keys:
    description:
      - The preshared keys of peers, by machine; set each at both ends. They are stored in files of root, and do not appear in
        any configuration, command line, result or diff. Peers that are not listed keep their keys.
    type: dict
  preshared_without:
    description:
      - Machines of peers whose preshared keys are removed; set it at both ends. Sessions continue.
    type: list
    elements: str
    default: []
  supervisor_programs:
    description:
      - The directory of the programs of supervisord, in which the module M(gpumesh.cluster.daemon) has configured the
        tunnel on a host without systemd.
    type: path
    default: /etc/supervisor/conf.d
seealso:
  - module: gpumesh.cluster.wireguard_preshared
  - module: gpumesh.cluster.wireguard_rotation
"""

EXAMPLES = r"""
- name: Set up a member's tunnel
  gpumesh.cluster.wireguard:
    record: cluster_record
  register: tunnel

- name: Generate the key pair
  gpumesh.cluster.wireguard:
    interface: gpumesh0
  register: key

- name: Connect to the peers
  gpumesh.cluster.wireguard:
    interface: gpumesh0
    address: 10.99.0.1/16
    peers:
      - machine: n2
        public_key: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
        endpoint: 203.0.113.20:51820
        allowed_ips: [10.99.0.2/32]
        persistent_keepalive: 25

- name: Remove the tunnel
  gpumesh.cluster.wireguard:
    interface: gpumesh0
    state: absent
"""

RETURN = r"""
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
ready:
  description: Whether the interface is up, and is started at boot.
  type: bool
  returned: with O(record)
registration:
  description: The values to register in the cluster record, for O(gpumesh.cluster.cluster_member#module:registered).
  type: dict
  returned: with O(record), when its key is not the one in the record
public_key:
  description: The public key. Null if there is none yet, as in check mode on a fresh host.
  type: str
  returned: success
interface_up:
  description: Whether the interface is running.
  type: bool
  returned: success
tools:
  description: Whether C(wg) is installed. If it is not, and only the key is requested, nothing is done.
  type: bool
  returned: success
implementation:
  description: The implementation that runs the interface, or would. V(missing) means that wireguard-go has to be installed.
  type: str
  sample: kernel
  returned: success
systemd:
  description: Whether systemd is the service manager of this host.
  type: bool
  returned: success
boot:
  description: Whether a service of systemd or supervisord brings the interface up at boot.
  type: bool
  returned: success
other_interfaces:
  description: The other interfaces that supervisord runs on this host, such as those of other clusters.
  type: list
  elements: str
  sample: [gpumesh1]
  returned: with O(state=absent)
foreign:
  description: Whether the interface is configured by a file that this collection did not create, and so was left alone.
  type: bool
  returned: with O(state=absent)
mtu:
  description: The MTU of the tunnel in bytes. 0 if only the key was set up.
  type: int
  returned: success
  sample: 1420
peers:
  description: The difference, as sorted lists of machines. A peer with a new key is updated.
  type: dict
  returned: success
  contains:
    added:
      description: New peers.
      type: list
      elements: str
    removed:
      description: Removed peers.
      type: list
      elements: str
    updated:
      description: Changed peers.
      type: list
      elements: str
handshakes:
  description:
    - For each public key of a running peer its C(machine), C(latest_handshake) in seconds since 1970 (0 for never),
      current C(endpoint), and C(received) and C(sent) in bytes.
  type: dict
  returned: success
  sample:
    xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=:
      machine: n2
      latest_handshake: 1795206000
      endpoint: 203.0.113.20:51820
      received: 4096
      sent: 8192
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.desired import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import RECORD


def main() -> None:
    """The module's entry point. The action turns the options about the record into the others."""
    module = AnsibleModule(
        argument_spec={**RECORD, **DERIVED_OPTION, **COPY_OPTION, **apply.OPTIONS},
        required_by={"peers": ("address",)},
        required_one_of=[("interface", "record")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: apply.work(module.params, module.check_mode), derive=derive_parameters)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wireguard
short_description: One WireGuard interface, its key and its peers
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the key pair on the host itself. The private key is in C(/etc/wireguard/<interface>.key), readable by root
    alone; it is in no configuration, command line, result or diff.
  - With O(peers), writes the configuration for C(wg-quick) and brings the running interface to the same state. Only
    what differs is touched; the sessions of other peers go on. What somebody changed by hand comes back.
  - An interface that is not up is not started. Start the service C(wg-quick@<interface>) after this module; where the
    kernel has no WireGuard, it falls back to C(wireguard-go) by itself.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
attributes:
  idempotent:
    support: partial
    details:
      - Not with O(rotation), whose purpose is a new key.
options:
  interface:
    description: Name of the interface, 1 to 15 characters.
    type: str
    required: true
  state:
    description: V(absent) removes the interface, its configuration and its key.
    type: str
    choices: [present, absent]
    default: present
  address:
    description:
      - Address of this host in CIDR form, with the prefix length of the whole mesh, such as V(10.99.0.1/16).
      - Required with O(peers).
    type: str
  listen_port:
    description: UDP port.
    type: int
    default: 51820
  mtu:
    description: Largest packet through the tunnel, in bytes.
    type: int
    default: 1420
  probe_mtu:
    description:
      - Lower O(mtu) to what the paths to the endpoints carry, found out by echo requests that may not be fragmented.
      - Each endpoint is measured at its first run; later runs confirm that with one packet, or two where the path is
        narrow, and measure again where it has shrunk or grown. One that does not answer to echo requests at its first run
        is taken to carry O(mtu).
    type: bool
    default: false
  peers:
    description:
      - All peers that the interface is to have, as P(gpumesh.cluster.mesh_plan#filter) gives them.
      - Without it, only the key is seen to.
    type: list
    elements: dict
    suboptions:
      machine:
        description: Name of the peer, for people.
        type: str
        required: true
      public_key:
        description: Its public key.
        type: str
        required: true
      endpoint:
        description: Where it is dialled, C(host:port). Without it, the peer dials.
        type: str
      allowed_ips:
        description: Networks behind the peer. A default route is refused.
        type: list
        elements: str
        required: true
      persistent_keepalive:
        description: Seconds between packets that keep a NAT open. V(0) sends none.
        type: int
        default: 0
  public_key:
    description:
      - The public key that the peers know this host by. Where the host has another one, or none yet, only its key is
        seen to and returned, so that it can be made known first; the empty text is nobody's key.
      - Without it, the interface is set up with whatever key the host has.
    type: str
  forward:
    description:
      - Let the kernel forward between the peers, as a relay does. For IPv4 this concerns O(interface) alone.
      - V(false) leaves the setting of a running interface as it is.
    type: bool
    default: false
  preshared_with:
    description:
      - Peers with whom this host, called O(machine), is to share a key beside the two hosts' own. Nothing is changed; the keys
        that this host makes, for the peers whose names sort after its own, are returned in RV(preshared_keys).
      - They are secret. The task that asks for them needs C(no_log=true).
    type: list
    elements: str
  preshared_renew:
    description: With O(preshared_with), return new keys and not those in use.
    type: bool
    default: false
  machine:
    description: This host's name. Required with O(preshared_with).
    type: str
  preshared_keys:
    description:
      - Keys to share with peers from now on, by the peer's machine; each is to be given to both ends. They are kept in files of
        root, and in no configuration, command line, result or diff. A peer that is not named keeps the key that it has.
    type: dict
  preshared_without:
    description:
      - Peers, by machine, with whom no key is shared any more; to be given to both ends. Sessions go on.
    type: list
    elements: str
    default: []
  rotation:
    description:
      - One step of a change of keys without a lost packet. All hosts do each step before any does the next.
      - V(prepare) makes the host's next key and returns its public half.
      - V(arm) needs O(peers) with their next keys. A process in the background waits, for an hour at most, for each
        peer's word to replace it; it listens inside the tunnel on the UDP port after O(listen_port).
      - V(switch) changes the key, in step with the peers. One host after the other, as with C(throttle=1). Refused, with
        nothing changed, when a peer that has a session does not answer.
    type: str
    choices: [prepare, arm, switch]
  supervisor_programs:
    description:
      - Folder of the programs of supervisord, where the module M(gpumesh.cluster.daemon) has put the tunnel
        on a host without systemd.
    type: path
    default: /etc/supervisor/conf.d
"""

EXAMPLES = r"""
- name: Make the key
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

- name: Take it all away
  gpumesh.cluster.wireguard:
    interface: gpumesh0
    state: absent
"""

RETURN = r"""
preshared_keys:
  description: The keys that this host makes, by the peer's machine. Secret.
  type: dict
  returned: with O(preshared_with)
next_public_key:
  description: The public half of the next key. Null in check mode where it would be made.
  type: str
  returned: with O(rotation=prepare)
public_key:
  description: The public half of the key. Null where there is none yet, as in check mode on a fresh host.
  type: str
  returned: without O(rotation) and O(preshared_with), and with O(rotation=switch)
interface_up:
  description: Whether the interface is running.
  type: bool
  returned: without O(rotation) and O(preshared_with)
tools:
  description: Whether C(wg) is installed. Where it is not, and only the key is wanted, nothing is done.
  type: bool
  returned: without O(rotation) and O(preshared_with)
implementation:
  description: What runs the interface, or would. V(missing) means that wireguard-go has to be installed.
  type: str
  sample: kernel
  returned: without O(rotation) and O(preshared_with)
systemd:
  description: Whether systemd is the service manager of this host.
  type: bool
  returned: without O(rotation) and O(preshared_with)
boot:
  description: Whether a service of systemd or supervisord brings the interface up at boot.
  type: bool
  returned: without O(rotation) and O(preshared_with)
mtu:
  description: Largest packet through the tunnel, in bytes. 0 where only the key was seen to.
  type: int
  returned: without O(rotation) and O(preshared_with)
  sample: 1420
peers:
  description: The difference, as sorted lists of machines. A peer with a new key is updated.
  type: dict
  returned: without O(rotation) and O(preshared_with)
  contains:
    added:
      description: New peers.
      type: list
      elements: str
    removed:
      description: Peers that are gone.
      type: list
      elements: str
    updated:
      description: Peers of which something changed.
      type: list
      elements: str
handshakes:
  description:
    - For each public key of a running peer its C(machine), C(latest_handshake) in seconds since 1970 (0 for never),
      C(endpoint) as it is now, and C(received) and C(sent) in bytes.
  type: dict
  returned: without O(rotation) and O(preshared_with)
  sample:
    xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=:
      machine: n2
      latest_handshake: 1795206000
      endpoint: 203.0.113.20:51820
      received: 4096
      sent: 8192
"""

from typing import Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.interface import (
    Host,
    Result,
    absent,
    present,
    runs_systemd,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.preshared import offer
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.rotation import arm, prepare, switch
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import Desired, make_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with

_PEER = {
    "machine": {"type": "str", "required": True},
    "public_key": {"type": "str", "required": True, "no_log": False},
    "endpoint": {"type": "str"},
    "allowed_ips": {"type": "list", "elements": "str", "required": True},
    "persistent_keepalive": {"type": "int", "default": 0},
}


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    interface = given["interface"]
    host = Host(run, module.check_mode, places=Places(supervisor_programs=given["supervisor_programs"]))
    if given["state"] == "absent":
        return _outcome(module, absent(host, interface), host)
    desired = None
    if given["peers"] is not None:
        desired = make_desired(
            interface, given["address"], given["listen_port"], given["mtu"], given["peers"], given["forward"]
        )
    if given["preshared_with"] is not None:
        folder = host.preshared_path(interface)
        keys = offer(folder, given["machine"], given["preshared_with"], given["preshared_renew"])
        return Outcome(False, {"preshared_keys": keys})
    if given["rotation"] is not None:
        return _rotate(module, host, interface, desired)
    result = present(
        host,
        interface,
        desired,
        given["probe_mtu"],
        given["public_key"],
        given["preshared_keys"],
        given["preshared_without"],
    )
    return _outcome(module, result, host)


def _rotate(module: AnsibleModule, host: Host, interface: str, desired: Optional[Desired]) -> Outcome:
    """One step of a change of keys."""
    step = module.params["rotation"]
    if step == "prepare" or desired is None:
        changed, next_key = prepare(host, interface)
        return Outcome(changed, {"next_public_key": next_key})
    if step == "arm":
        return Outcome(arm(host, desired), {})
    if host.check_mode:
        return Outcome(True, {})
    switched = switch(host, desired)
    for late in switched.late:
        module.warn(f"No new session yet with {late}; the next run sets it right.")
    return Outcome(True, {"public_key": switched.public_key})


def _outcome(module: AnsibleModule, result: Result, host: Host) -> Outcome:
    for warning in result.warnings:
        module.warn(warning)
    return Outcome(
        result.changed,
        {
            "public_key": result.public_key,
            "interface_up": result.interface_up,
            "tools": result.tools,
            "implementation": result.implementation,
            "systemd": runs_systemd(),
            "boot": result.boot,
            "mtu": result.mtu,
            "peers": result.peers._asdict(),
            "handshakes": result.handshakes,
        },
        result.before,
        result.after,
        host.conf_path(module.params["interface"]),
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "interface": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "address": {"type": "str"},
            "listen_port": {"type": "int", "default": 51820},
            "mtu": {"type": "int", "default": 1420},
            "probe_mtu": {"type": "bool", "default": False},
            "peers": {"type": "list", "elements": "dict", "options": _PEER},
            "public_key": {"type": "str", "no_log": False},
            "forward": {"type": "bool", "default": False},
            "preshared_with": {"type": "list", "elements": "str"},
            "preshared_renew": {"type": "bool", "default": False, "no_log": False},
            "machine": {"type": "str"},
            "preshared_keys": {"type": "dict", "no_log": True},
            "preshared_without": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "rotation": {"type": "str", "choices": ["prepare", "arm", "switch"]},
            "supervisor_programs": {"type": "path", "default": Places().supervisor_programs},
        },
        required_by={"peers": ("address",), "preshared_with": ("machine",)},
        required_if=[("rotation", "arm", ("peers",)), ("rotation", "switch", ("peers",))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

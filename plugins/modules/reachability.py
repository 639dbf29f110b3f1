#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reachability
short_description: Probe all other members of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Tests every ordered pair of members in a constant number of tasks. M(gpumesh.cluster.reachability_listener) starts a
    listener on each member, then this module connects each member to all others at the same time.
    The role P(gpumesh.cluster.reachability#role) runs both, and M(gpumesh.cluster.reachability_verdicts) evaluates the
    results.
  - Requires Python and iproute2 on the host, and root to find duplicate addresses.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.reachability
  - gpumesh.cluster.reachability.host
attributes:
  check_mode:
    details:
      - It only measures. The processes that it starts end by themselves and leave nothing behind.
options:
  peers:
    description:
      - The members to probe; O(machine) itself is skipped. Give all participants, in the same order on all hosts.
    type: list
    elements: dict
    default: []
    suboptions:
      machine:
        description: The name of the member.
        type: str
        required: true
      address:
        description: The address of the member in the cluster.
        type: str
        required: true
      ports:
        description: The C(ports) returned by its listener. If empty, it has no listener, and only O(ports) are tried.
        type: list
        elements: dict
        default: []
        suboptions:
          port:
            description: The port number.
            type: int
            required: true
          role:
            description: The reason why the port is tested.
            type: str
            required: true
            choices: [named, ephemeral]
          protocol:
            description: The protocol.
            type: str
            required: true
            choices: [tcp, udp]
          state:
            description: The state of the port at the listener.
            type: str
            required: true
            choices: [listening, service, busy, forbidden, unknown]
      rdma:
        description: Whether its listener has returned a device in C(rdma).
        type: bool
        default: false
  timeout:
    description: The timeout in seconds. All peers are probed at the same time, so silent peers together cost this time twice.
    type: float
    default: 5
  payload_bytes:
    description: The size of the payload in each direction, up to V(268435456); V(0) for none.
    type: int
    default: 1048576
  check_name:
    description: Whether to check what the host's own name resolves to. With O(members), this depends on O(layer).
    type: bool
    default: true
  throughput_seconds:
    description:
      - The duration of each throughput measurement in seconds, up to V(50). If it is not V(0), the throughput to all
        O(peers) with a listener is measured afterwards, in the background. The measurements start when all hosts are
        ready, and no host takes part in two at a time. M(gpumesh.cluster.reachability_listener) returns the results
        when it is stopped.
      - If two hosts have RDMA, each direction takes another two times as long, plus four seconds.
    type: int
    default: 0
seealso:
  - module: gpumesh.cluster.reachability_listener
  - module: gpumesh.cluster.reachability_peers
  - module: gpumesh.cluster.reachability_verdicts
"""

EXAMPLES = r"""
- name: Probe every pair of members
  gpumesh.cluster.reachability:
    run: "{{ run_name }}"
    token: "{{ run_token }}"
    members: "{{ cluster_record }}"
    peers: "{{ reachability_peers.peers }}"
  register: probed
"""

RETURN = r"""
probe:
  description:
    - The findings of this host. C(interface) (name, mtu, mac), C(own_macs), C(duplicate) (checked, reason, macs of
      others that answer for this host's address), C(hostname) as in M(gpumesh.cluster.interface_info), C(seconds), and
      C(peers).
    - Each of C(peers) has C(machine), C(address), C(route) (dev, prefsrc, gateway, error), C(macs) that answer for its
      address, C(ports) (port, role, protocol, outcome, detail), C(source) (the source address on this host) and C(seen)
      (the source address that the peer saw), C(clock) (offset_s, rtt_ms), C(path_mtu) (interface, peer_interface,
      to_peer, from_peer, signalled; in bytes), C(sent) and C(received) (outcome, size, passed, detail), and
      C(finished). Values that could not be measured are V(none).
    - The C(outcome) of a port is one of C(ok), C(connected), C(refused), C(filtered), C(no_route), C(closed),
      C(mute), C(stranger) and C(not_checked); that of a payload is one of C(ok), C(stalled), C(corrupted), C(broken) and
      C(not_checked).
  returned: success
  type: dict
longest:
  description: The time in seconds within which the throughput measurement is complete. V(0) if there is none.
  returned: success
  type: int
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import phases
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import (
    ListenerPort,
    LocalMember,
    ProbedPeer,
    ReachabilityLimits,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.options import (
    HOST_OPTIONS,
    check_prober_options,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.ports import check_ports
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with


def read_peers(peer_options: List[Dict[str, Any]], named_ports: List[int]) -> List[ProbedPeer]:
    """Return the peers. Those without a listener get the named ports, on which a service may listen."""
    unknown_ports: List[ListenerPort] = [
        {"port": port, "role": "named", "protocol": "tcp", "state": "unknown"} for port in named_ports
    ]
    return [
        {
            "machine": peer["machine"],
            "address": peer["address"],
            "ports": peer["ports"] or unknown_ports,
            "rdma": peer["rdma"],
        }
        for peer in peer_options
    ]


def work(params: Dict[str, Any]) -> ModuleResult:
    """Connect to all peers, and start the throughput measurement if it is requested."""
    check_prober_options(params)
    peers = read_peers(params["peers"], check_ports(params["ports"]))
    own_endpoint, token = LocalMember(params["machine"], params["address"], params["interface"]), params["token"]
    probe_limits = ReachabilityLimits(params["timeout"], params["payload_bytes"])
    other_peers = [peer for peer in peers if peer["machine"] != own_endpoint.own_machine]
    probe_result = phases.probe_peers(own_endpoint, token, other_peers, probe_limits, params["check_name"])
    listening_peers = [peer for peer, peer_options in zip(peers, params["peers"]) if peer_options["ports"]]
    throughput_seconds, longest_seconds = params["throughput_seconds"], 0
    if throughput_seconds and own_endpoint.own_machine in [peer["machine"] for peer in listening_peers]:
        longest_seconds = phases.start_throughput(
            own_endpoint, params["run"], token, listening_peers, throughput_seconds
        )
    return ModuleResult(False, {"probe": probe_result, "longest": longest_seconds})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            **HOST_OPTIONS,
            "peers": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "machine": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "rdma": {"type": "bool", "default": False},
                    "ports": {
                        "type": "list",
                        "elements": "dict",
                        "default": [],
                        "options": {
                            "port": {"type": "int", "required": True},
                            "role": {"type": "str", "required": True, "choices": ["named", "ephemeral"]},
                            "protocol": {"type": "str", "required": True, "choices": ["tcp", "udp"]},
                            "state": {
                                "type": "str",
                                "required": True,
                                "choices": ["listening", "service", "busy", "forbidden", "unknown"],
                            },
                        },
                    },
                },
            },
            "timeout": {"type": "float", "default": 5},
            "payload_bytes": {"type": "int", "default": 1048576},
            "check_name": {"type": "bool", "default": True},
            "throughput_seconds": {"type": "int", "default": 0},
        },
        required_together=[("run", "token", "machine", "address", "interface")],
        required_one_of=[("machine", "members")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params), host_name=module.params["machine"])


if __name__ == "__main__":
    main()

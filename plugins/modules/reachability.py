#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reachability
short_description: Prove that the members of a cluster reach each other
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Tests every ordered pair of members in a constant number of tasks. First each member listens, then each member
    connects to all others at once. The role P(gpumesh.cluster.reachability#role) runs the phases in their order and
    P(gpumesh.cluster.reachability_verdicts#filter) says what the results mean.
  - A listener binds to the member's address alone, hangs up on whoever does not prove to know O(token), and is ended by
    the kernel after O(lifetime), even if everything else has died. Nothing is written to the disk.
  - Where a run is cut off, what it has left ends a quarter of O(lifetime) after the SSH connection of its controller is
    gone, and at once when the same controller begins another run, or when the module M(gpumesh.cluster.daemon) starts
    a service. What belongs to another controller that is still connected is left alone.
  - Needs Python and iproute2 on the host, and root for ports below 1024 and for the search for duplicate addresses.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
attributes:
  check_mode:
    details:
      - It only measures. What it starts ends by itself and leaves nothing behind.
options:
  phase:
    description:
      - V(listen) starts the listener of this host and returns the ports that it got.
      - V(probe) connects to O(peers) and returns what was found out.
      - V(throughput) starts measuring the throughput to O(peers) in the background, V(collect) waits for the result.
        The listeners must be there.
      - V(stop) ends what this run has left on this host; without O(run), what runs that were cut off have.
    type: str
    required: true
    choices: [listen, probe, throughput, collect, stop]
  run:
    description: Name of the run, the same on all hosts and a new one each time. Needed for all but V(stop).
    type: str
  token:
    description: The secret that all hosts of the run share. Needed for V(listen), V(probe) and V(throughput).
    type: str
  machine:
    description: This host's name in the cluster. Needed for V(listen), V(probe) and V(throughput).
    type: str
  address:
    description: This host's address in the cluster. Needed for V(listen), V(probe) and V(throughput).
    type: str
  interface:
    description: The interface that has O(address). Needed for V(listen), V(probe) and V(throughput).
    type: str
  ports:
    description:
      - TCP ports of services that the members must reach. One that is free is listened on; where a service listens
        already, the others only connect to it.
    type: list
    elements: int
    default: [22, 2049, 6817, 6818]
  ephemeral_range:
    description: The ports that programs such as NCCL are given, as FIRST-LAST. TCP and UDP are tested.
    type: str
    default: 32768-60999
  sample_count:
    description: How many ports of O(ephemeral_range) stand for all. They are spread over the range.
    type: int
    default: 4
  lifetime:
    description: Seconds after which the listener ends.
    type: int
    default: 300
  visitors:
    description:
      - The machines that will probe this one. After the last of them the listener ends. With an empty list it waits for
        V(stop) or its end.
    type: list
    elements: str
    default: []
  peers:
    description:
      - Whom to probe; O(machine) itself is passed over. For V(throughput) all that take part, in the same order on all
        hosts.
    type: list
    elements: dict
    default: []
    suboptions:
      machine:
        description: Its name.
        type: str
        required: true
      address:
        description: Its address in the cluster.
        type: str
        required: true
      ports:
        description: RV(ports) of its phase V(listen). Without any, it has no listener, and only O(ports) are tried.
        type: list
        elements: dict
        default: []
        suboptions:
          port:
            description: Its number.
            type: int
            required: true
          role:
            description: Why it is tried.
            type: str
            required: true
            choices: [named, ephemeral]
          protocol:
            description: Its protocol.
            type: str
            required: true
            choices: [tcp, udp]
          state:
            description: What the listener made of it.
            type: str
            required: true
            choices: [listening, service, forbidden, unknown]
      rdma:
        description: Whether RV(rdma) of its phase V(listen) names a device.
        type: bool
        default: false
  timeout:
    description: Seconds to wait for an answer. All peers are asked at once, so silent ones cost this time once.
    type: float
    default: 5
  payload_bytes:
    description: Size of the payload that goes each way; V(0) for none.
    type: int
    default: 1048576
  check_name:
    description: Also look at what the host's own name resolves to.
    type: bool
    default: true
  throughput_seconds:
    description:
      - How long each measurement takes. Where two hosts have RDMA, each direction takes twice as long once more, and
        four seconds.
    type: int
    default: 3
"""

EXAMPLES = r"""
- name: Listen
  gpumesh.cluster.reachability:
    phase: listen
    run: run-1
    token: "{{ token }}"
    machine: n1
    address: 10.77.0.11
    interface: eth0
  register: listening

- name: Probe
  gpumesh.cluster.reachability:
    phase: probe
    run: run-1
    token: "{{ token }}"
    machine: n1
    address: 10.77.0.11
    interface: eth0
    peers:
      - machine: n2
        address: 10.77.0.12
        ports: "{{ hostvars['n2'].listening.ports }}"
  register: probed

- name: Stop
  gpumesh.cluster.reachability:
    phase: stop
    run: run-1
"""

RETURN = r"""
ports:
  description: What became of each port.
  returned: phase is V(listen)
  type: list
  elements: dict
  contains:
    port:
      description: Its number.
      type: int
    role:
      description: C(named) or C(ephemeral).
      type: str
    protocol:
      description: C(tcp) or C(udp).
      type: str
    state:
      description:
        - C(listening) where the listener has it, C(service) where something else listens there, C(forbidden) where this
          user may not open it.
      type: str
rdma:
  description:
    - The RDMA port by which this host takes part, C(device), C(port), C(gid_index) and C(rate_gbps). That behind
      O(interface), else the fastest that is active.
    - Where there is none, or no perftest, C(device) is empty and C(reason) says why.
  returned: phase is V(listen)
  type: dict
probe:
  description:
    - What this host found out. C(interface) (name, mtu, mac), C(own_macs), C(duplicate) (checked, reason, macs of others
      that answer for this host's address), C(hostname) as in M(gpumesh.cluster.interface_info), C(seconds), and
      C(peers).
    - Each of C(peers) has C(machine), C(address), C(route) (dev, prefsrc, gateway, error), C(macs) that answer for its
      address, C(ports) (port, role, protocol, outcome, detail), C(source) (where we sent from) and C(seen) (what the
      peer saw), C(clock) (offset_s, rtt_ms), C(path_mtu) (interface, peer_interface, to_peer, from_peer, signalled; in
      bytes), C(sent) and C(received) (outcome, size, passed, detail), and C(finished). What could not be measured is
      V(none).
    - C(outcome) of a port is one of C(ok), C(connected), C(refused), C(filtered), C(no_route), C(closed), C(stranger)
      and C(not_checked); of a payload one of C(ok), C(stalled), C(corrupted), C(broken) and C(not_checked).
  returned: phase is V(probe)
  type: dict
longest:
  description: Seconds within which the measurement is through.
  returned: phase is V(throughput)
  type: int
throughput:
  description:
    - For each peer C(machine), C(gbps) (10^9 bits a second to it), C(method) and C(error).
    - C(rdma) has what C(ib_write_bw) and C(ib_write_lat) measured where both ends have RDMA, C(gbps) and C(latency_us)
      (microseconds one way), and C(error).
  returned: phase is V(collect)
  type: list
  elements: dict
stopped:
  description: Whether there was something to end.
  returned: phase is V(stop)
  type: bool
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import phases
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.ports import check_ports, parse_range
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import Limits, Peer, Port, Self


def read_peers(given: List[Dict[str, Any]], named: List[int]) -> List[Peer]:
    """Those without a listener get the named ports, which a service may have."""
    unknown: List[Port] = [{"port": port, "role": "named", "protocol": "tcp", "state": "unknown"} for port in named]
    return [
        {
            "machine": peer["machine"],
            "address": peer["address"],
            "ports": peer["ports"] or unknown,
            "rdma": peer["rdma"],
        }
        for peer in given
    ]


def work(params: Dict[str, Any]) -> Outcome:
    """Run one phase."""
    phase, run = params["phase"], params["run"]
    if phase == "stop":
        return Outcome(False, {"stopped": phases.stop(run)})
    named = check_ports(params["ports"])
    peers = read_peers(params["peers"], named)
    if phase == "collect":
        return Outcome(False, {"throughput": phases.collect_throughput(run, params["timeout"])})
    own, token = Self(params["machine"], params["address"], params["interface"]), params["token"]
    if phase == "listen":
        wanted = phases.Wanted(
            named, parse_range(params["ephemeral_range"]), params["sample_count"], params["lifetime"]
        )
        return Outcome(False, phases.listen(own, run, token, wanted, params["visitors"])._asdict())
    if phase == "throughput":
        return Outcome(
            False, {"longest": phases.start_throughput(own, run, token, peers, params["throughput_seconds"])}
        )
    limits = Limits(params["timeout"], params["payload_bytes"])
    others = [peer for peer in peers if peer["machine"] != own.machine]
    return Outcome(False, {"probe": phases.probe(own, token, others, limits, params["check_name"])})


def main() -> None:
    own = ["run", "token", "machine", "address", "interface"]
    module = AnsibleModule(
        argument_spec={
            "phase": {
                "type": "str",
                "required": True,
                "choices": ["listen", "probe", "throughput", "collect", "stop"],
            },
            "run": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "machine": {"type": "str"},
            "address": {"type": "str"},
            "interface": {"type": "str"},
            "ports": {"type": "list", "elements": "int", "default": [22, 2049, 6817, 6818]},
            "ephemeral_range": {"type": "str", "default": "32768-60999"},
            "sample_count": {"type": "int", "default": 4},
            "lifetime": {"type": "int", "default": 300},
            "visitors": {"type": "list", "elements": "str", "default": []},
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
                                "choices": ["listening", "service", "forbidden", "unknown"],
                            },
                        },
                    },
                },
            },
            "timeout": {"type": "float", "default": 5},
            "payload_bytes": {"type": "int", "default": 1048576},
            "check_name": {"type": "bool", "default": True},
            "throughput_seconds": {"type": "int", "default": 3},
        },
        required_if=[
            ("phase", "listen", own),
            ("phase", "probe", own),
            ("phase", "throughput", own),
            ("phase", "collect", ["run"]),
        ],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params), host=module.params["machine"])


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reachability_listener
short_description: Let the other members of a cluster connect to this one
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Starts or stops the listener for M(gpumesh.cluster.reachability) on the other members.
  - A listener binds only to the member's address, closes connections from peers that do not know O(token), and is ended by
    the kernel after O(lifetime), even if everything else has died. Nothing is written to disk.
  - After an interrupted run, listeners end a quarter of O(lifetime) after the SSH connection of the controller has closed,
    or immediately if the same controller starts another run or the module M(gpumesh.cluster.daemon) starts a service.
    Listeners of other connected controllers and of the runs in O(concurrent_runs) are not affected.
  - Requires Python and iproute2 on the host, and root for ports below 1024.
  - "Reads these options of roles: C(reachability_layer), C(reachability_ports)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.reachability
  - gpumesh.cluster.reachability.host
  - gpumesh.cluster.internal
attributes:
  check_mode:
    details:
      - It only measures. The processes that it starts end by themselves and leave nothing behind.
options:
  state:
    description:
      - V(started) starts the listener and returns its ports. A host that is not among O(members) is skipped.
      - V(stopped) ends the processes of the run on this host; without O(run), those of interrupted runs.
    type: str
    choices: [started, stopped]
    default: started
  ephemeral_range:
    description: The range of ports that programs such as NCCL use, as FIRST-LAST. TCP and UDP are tested.
    type: str
    default: 32768-60999
  sample_count:
    description: The number of ports to test in O(ephemeral_range). They are spread over the range.
    type: int
    default: 4
  lifetime:
    description: Seconds after which the listener ends. With O(members), it is increased if there are many.
    type: int
    default: 300
  peers:
    description:
      - The machines that will probe this one. The listener ends after the last of them. With an empty list it runs until it
        is stopped or its lifetime ends. With O(members), these are the other members in the play.
    type: list
    elements: str
    default: []
  concurrent_runs:
    description:
      - Other current runs of the same controller, such as those of another playbook. Their listeners are kept. Defaults to
        the runs of the user's other playbooks on the controller.
    type: list
    elements: str
  throughput_seconds:
    description:
      - The duration of each throughput measurement in seconds, the same as for M(gpumesh.cluster.reachability). If it is
        not V(0), the listener runs until it is stopped.
    type: int
    default: 0
  timeout:
    description:
      - With V(stopped), the timeout in seconds for the throughput results. V(0) does not wait.
    type: float
    default: 0
seealso:
  - module: gpumesh.cluster.reachability
"""

EXAMPLES = r"""
- name: Listen on every member
  gpumesh.cluster.reachability_listener:
    run: "{{ run_name }}"
    token: "{{ run_token }}"
    members: "{{ cluster_record }}"
  register: listening

- name: Stop listening
  gpumesh.cluster.reachability_listener:
    run: "{{ run_name }}"
    state: stopped
"""

RETURN = r"""
ports:
  description: The result for each port.
  returned: O(state=started)
  type: list
  elements: dict
  contains:
    port:
      description: The port number.
      type: int
    role:
      description: C(named) or C(ephemeral).
      type: str
    protocol:
      description: C(tcp) or C(udp).
      type: str
    state:
      description:
        - C(listening) if the listener uses it, C(service) if another program listens there, C(busy) if that is the
          listener of another run, C(forbidden) if this user may not open it.
      type: str
rdma:
  description:
    - The RDMA port that this host uses, with C(device), C(port), C(gid_index) and C(rate_gbps). This is the port of
      O(interface), otherwise the fastest active one.
    - If there is no port or no perftest, C(device) is empty and C(reason) says why.
  returned: O(state=started)
  type: dict
host_firewalls:
  description: The firewalls of the administrator that are active on this host, V(ufw) and V(firewalld).
  returned: O(state=started)
  type: list
  elements: str
throughput:
  description:
    - For each peer, C(machine), C(gbps) (10^9 bits per second to the peer), C(method) and C(error).
    - If both ends have RDMA, C(rdma) contains the results of C(ib_write_bw) and C(ib_write_lat), with C(gbps),
      C(latency_us) (microseconds, one way) and C(error).
  returned: a measurement was under way, and O(timeout) is set
  type: list
  elements: dict
stopped:
  description: Whether any process was ended.
  returned: O(state=stopped)
  type: bool
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import phases
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import LocalMember
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.options import (
    HOST_OPTIONS,
    check_listener_options,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.ports import check_ports, parse_range
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with


def start(params: Dict[str, Any]) -> Dict[str, Any]:
    """Start the listener."""
    check_listener_options(params)
    own_endpoint = LocalMember(params["machine"], params["address"], params["interface"])
    listener_settings = phases.RequestedPorts(
        check_ports(params["ports"]),
        parse_range(params["ephemeral_range"]),
        params["sample_count"],
        params["lifetime"],
    )
    listener = phases.start_listener(
        own_endpoint,
        params["run"],
        params["token"],
        listener_settings,
        params["peers"],
        params["concurrent_runs"] or [],
    )
    return listener._asdict()


def stop(params: Dict[str, Any]) -> Dict[str, Any]:
    """Stop the listener. With a timeout, wait for the throughput results first."""
    try:
        throughput_results = phases.collect_throughput(params["run"], params["timeout"]) if params["timeout"] else None
    finally:
        was_stopped = phases.stop_run(params["run"])
    return {"stopped": was_stopped, **({"throughput": throughput_results} if throughput_results is not None else {})}


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            **HOST_OPTIONS,
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "ephemeral_range": {"type": "str", "default": "32768-60999"},
            "sample_count": {"type": "int", "default": 4},
            "lifetime": {"type": "int", "default": 300},
            "peers": {"type": "list", "elements": "str", "default": []},
            "concurrent_runs": {"type": "list", "elements": "str"},
            "throughput_seconds": {"type": "int", "default": 0},
            "timeout": {"type": "float", "default": 0},
        },
        required_if=[
            ("state", "started", ["run", "token"]),
            ("state", "started", ["machine", "members"], True),
        ],
        required_together=[("machine", "address", "interface")],
        supports_check_mode=True,
    )
    state_function = {"started": start, "stopped": stop}[module.params["state"]]
    exit_with(module, lambda: ModuleResult(False, state_function(module.params)), host_name=module.params["machine"])


if __name__ == "__main__":
    main()

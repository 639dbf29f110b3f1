#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_test
short_description: Run a collective over GPUs or nodes and evaluate it
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs a binary of nccl-tests or rccl-tests or, without O(path), a built-in program with the PyTorch of the nodes
    (NCCL on GPUs, otherwise gloo), always with a time limit.
  - To pass, the output must be complete, with every rank on the requested number of hosts, no wrong values, and the
    required speed. Each kind of failure has its own message. A usage text, truncated output, a hang or a missing rank
    never passes, regardless of the exit status.
  - If it is too slow on three or more nodes, it runs on pairs and halves of them to find the slow node or link.
  - If O(record) is given, O(nodes), O(nodelist), O(ranks) and O(gpus) are derived from it on the controller. With
    O(path), only members with GPUs take part, each with as many GPUs as the one with the fewest.
  - The module does not fail if the collective fails. Evaluate RV(status) and RV(error) instead.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.record.given
attributes:
  check_mode:
    support: full
    details:
      - No collective is run, and RV(status) is V(skipped).
  diff_mode:
    support: N/A
    details:
      - It changes nothing.
  idempotent:
    support: full
    details:
      - It changes nothing.
options:
  collective:
    description: The collective. Without O(path), only V(all_reduce), V(all_gather) and V(broadcast) are supported.
    type: str
    choices: [all_reduce, all_gather, reduce_scatter, reduce, broadcast, alltoall, sendrecv, gather, scatter]
    default: all_reduce
  path:
    description: The directory of the nccl-tests or rccl-tests binaries, which must be the same on all nodes.
    type: str
    default: ""
  launcher:
    description: The program that starts the ranks. V(local) uses only this host.
    type: str
    choices: [local, mpirun, srun]
    default: local
  mpi:
    description:
      - The MPI plugin with which V(srun) starts the binaries in O(path), as in C(srun --mpi=list). Empty means Slurm's default.
      - If it does not match the MPI of the binaries, every process runs its own test, which is reported as a failure.
    type: str
    default: pmix
  gpus:
    description:
      - Whether V(srun) requests one GPU per rank of O(path). Disable this if the GPUs are not configured in Slurm.
      - Without O(path), V(false) makes PyTorch use gloo on all nodes, as is necessary if only some of them have GPUs.
    type: bool
    default: true
  ranks:
    description: The number of ranks. With O(path), the number of GPUs. Required without O(record).
    type: int
  nodes:
    description: The number of nodes. O(ranks) must be a multiple of it.
    type: int
    default: 1
  nodelist:
    description: The names of the nodes. Required with V(mpirun), and to find slow nodes and links.
    type: list
    elements: str
    default: []
  min_bytes:
    description: The smallest message size in bytes.
    type: int
    default: 1024
  max_bytes:
    description:
      - The largest message size in bytes, which is the one that is evaluated. Defaults to 8 GiB with O(path), otherwise to
        64 MiB. nccl-tests reduces it to what the memory of the GPUs holds.
      - The table of known machines and the threshold from O(nic_gbps) only apply from 1 GiB on.
    type: int
  iterations:
    description: The number of measurements per message size.
    type: int
    default: 5
  min_busbw_gbps:
    description:
      - The minimum bus bandwidth for the largest message, in 10^9 bytes per second.
      - Defaults to the value from O(thresholds), or from the table of known machines, or, for several nodes, from
        O(nic_gbps), or to none.
    type: float
  thresholds:
    description: Your own minimum bandwidths, which precede those of the table of known machines. The first matching
      entry is used.
    type: list
    elements: dict
    default: []
    suboptions:
      min_busbw_gbps:
        description: The minimum bus bandwidth for the largest message, in 10^9 bytes per second.
        type: float
        required: true
      collective:
        description: Apply only to this collective.
        type: str
      gpu:
        description: Apply only if the name of each GPU matches this regular expression.
        type: str
      gpus:
        description: Apply only to this number of ranks.
        type: int
      nodes:
        description: Apply only to this number of nodes.
        type: int
      source:
        description: The origin of the value.
        type: str
  nic_gbps:
    description:
      - The rate of each node's NIC in Gbit/s, used as the threshold between nodes.
      - If this is the threshold, NCCL runs the largest message once more with the Ring algorithm, which is evaluated. Tree
        can report up to twice the bandwidth of the link.
    type: float
  nics:
    description: The number of NICs per node with the rate in O(nic_gbps).
    type: int
    default: 1
  fabric:
    description: How NCCL uses the NICs of O(nic_gbps). Gloo always uses TCP.
    type: str
    choices: [rdma, tcp]
    default: rdma
  timeout:
    description: The time limit of a single run in seconds.
    type: float
    default: 300
  bisect:
    description: Whether to search for the slow node or link with further runs.
    type: bool
    default: true
  python:
    description:
      - The Python with PyTorch on the nodes, for the built-in program. O(user) must be able to run it. It runs in isolated
        mode, without C(PYTHONPATH) and packages installed by the user.
    type: str
    default: python3
  user:
    description:
      - The user that runs the collective if the module runs as root. It must exist with the same UID on every node and, if
        Slurm enforces accounts, must have one there.
      - Ignored with O(launcher=mpirun), which logs in to the nodes as the user that runs the module.
    type: str
    default: nobody
"""

EXAMPLES = r"""
- name: Test the eight GPUs of each host
  gpumesh.cluster.collective_test:
    path: /opt/nccl-tests/build
    ranks: 8
    max_bytes: 8589934592
  register: all_reduce

- name: Fail if a host is too slow
  ansible.builtin.assert:
    that: all_reduce.status == 'pass'
    fail_msg: "{{ all_reduce.error.message }} {{ all_reduce.error.remedy }}"

- name: Run over three nodes through Slurm, with PyTorch
  gpumesh.cluster.collective_test:
    launcher: srun
    nodes: 3
    ranks: 3
    nodelist: [n1, n2, n3]
  delegate_to: n1
  run_once: true
"""

RETURN = r"""
collective:
  description: The collective that ran.
  type: str
  returned: always
ranks:
  description: The number of ranks that took part.
  type: int
  returned: always
nodes:
  description: The number of distinct hosts on which they ran.
  type: int
  returned: always
devices:
  description: Each rank with its C(rank), C(host), C(device) number and C(name).
  type: list
  elements: dict
  returned: always
rows:
  description:
    - The measurements, each with C(size_bytes), C(count), C(type), C(redop), C(time_us), C(algbw_gbps), C(busbw_gbps),
      C(wrong) and C(in_place). Bandwidths are in 10^9 bytes per second. C(wrong) is null if it was not checked.
  type: list
  elements: dict
  returned: always
out_of_bounds:
  description: The number of wrong values that the program reported. Null if the output is incomplete.
  type: int
  returned: always
avg_busbw_gbps:
  description: The average over all sizes as printed by the program. Small messages reduce it.
  type: float
  returned: always
busbw_gbps:
  description: The bus bandwidth at the largest size, which is the one that is evaluated.
  type: float
  returned: always
ring_busbw_gbps:
  description: The bus bandwidth of Ring at the largest size if O(nic_gbps) is the threshold, otherwise null.
  type: float
  returned: always
versions:
  description: Versions by program or library.
  type: dict
  returned: always
status:
  description:
    - V(pass) or V(fail). V(skipped) in check mode, if the required program is not installed on the nodes, if no
      partition has all of the nodes, or if C(srun) would have to wait for other jobs.
  type: str
  returned: always
min_busbw_gbps:
  description: The threshold. Null if there is none.
  type: float
  returned: always
threshold_source:
  description: The origin of the threshold.
  type: str
  returned: always
not_judged:
  description:
    - Why the speed was not evaluated if there is only a threshold for larger messages, otherwise null.
  type: str
  returned: always
left_out:
  description:
    - The members and GPUs in O(record) that did not take part, and why. Null if all of them did, or without O(record).
  type: str
  returned: always
error:
  description: The failure. Null if the collective passed.
  type: dict
  returned: always
  contains:
    kind:
      description:
        - One of V(timeout), V(usage), V(not_installed), V(busy), V(no_partition), V(not_started), V(rank_died), V(failed),
          V(exit_status), V(truncated), V(missing_rank), V(wrong_ranks), V(wrong_nodes), V(wrong_values), V(no_rows)
          and V(slow).
      type: str
    message:
      description: What failed, and where.
      type: str
    remedy:
      description: What to do about it.
      type: str
    details:
      description: Messages of the program and the launcher.
      type: list
      elements: str
    warnings:
      description: Warnings of the library.
      type: list
      elements: str
    culprit:
      description: C(kind), C(names) and C(words) of the cause of the slowness.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.launch import (
    CollectiveRequest,
    Measurement,
    bisect_nodes,
    build_result,
    check_request,
    choose_partition,
    find_busy_nodes,
    run_and_judge,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.parse import make_empty_output
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.thresholds import (
    LARGE_BYTES,
    CustomThreshold,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import NOBODY
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with


def work(module: AnsibleModule) -> ModuleResult:
    """Run and judge the collective, and find the culprit if it is slow."""
    params = module.params
    request_options = {
        option_name: value for option_name, value in params.items() if option_name in CollectiveRequest._fields
    }
    request_options.update(
        max_bytes=params["max_bytes"] or (8 * LARGE_BYTES if params["path"] else 1 << 26),
        timeout_s=params["timeout"],
        thresholds=[CustomThreshold(**entry) for entry in params["thresholds"]],
    )
    request = CollectiveRequest(**request_options)
    check_request(request)
    if module.check_mode:
        return ModuleResult(
            False, {**build_result(request, Measurement(make_empty_output(), None, None), None), "status": "skipped"}
        )
    request, placement_problem = choose_partition(request, run)
    obstacle = placement_problem or find_busy_nodes(request, run)
    measurement = Measurement(make_empty_output(), obstacle, None) if obstacle else run_and_judge(request, run)
    culprit = None
    if params["bisect"] and measurement.problem is not None and measurement.problem.kind == "slow":
        culprit = bisect_nodes(request, measurement, run)
    return ModuleResult(False, build_result(request, measurement, culprit))


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "collective": {
                "type": "str",
                "default": "all_reduce",
                "choices": [
                    "all_reduce",
                    "all_gather",
                    "reduce_scatter",
                    "reduce",
                    "broadcast",
                    "alltoall",
                    "sendrecv",
                    "gather",
                    "scatter",
                ],
            },
            "path": {"type": "str", "default": ""},
            "launcher": {"type": "str", "choices": ["local", "mpirun", "srun"], "default": "local"},
            "mpi": {"type": "str", "default": "pmix"},
            "gpus": {"type": "bool", "default": True},
            "ranks": {"type": "int"},
            "nodes": {"type": "int", "default": 1},
            "nodelist": {"type": "list", "elements": "str", "default": []},
            "min_bytes": {"type": "int", "default": 1024},
            "max_bytes": {"type": "int"},
            "iterations": {"type": "int", "default": 5},
            "min_busbw_gbps": {"type": "float"},
            "nic_gbps": {"type": "float"},
            "thresholds": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "min_busbw_gbps": {"type": "float", "required": True},
                    "collective": {"type": "str"},
                    "gpu": {"type": "str"},
                    "gpus": {"type": "int"},
                    "nodes": {"type": "int"},
                    "source": {"type": "str"},
                },
            },
            "nics": {"type": "int", "default": 1},
            "fabric": {"type": "str", "choices": ["rdma", "tcp"], "default": "rdma"},
            "timeout": {"type": "float", "default": 300},
            "bisect": {"type": "bool", "default": True},
            "python": {"type": "str", "default": "python3"},
            "user": {"type": "str", "default": NOBODY},
        },
        required_one_of=[("record", "ranks")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

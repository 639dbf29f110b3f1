#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_test
short_description: Run a collective over GPUs or nodes and judge it
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs a binary of nccl-tests or rccl-tests, or, without O(path), a program of our own with the PyTorch of the nodes
    (NCCL where there are GPUs, else gloo), always with a time limit.
  - A pass needs the footer of the output, every rank on as many hosts as asked for, no wrong value, and the threshold.
    Each way to fail has its own words. A usage text, a truncated output, a hang and a missing rank are none of them
    a pass, whatever the exit status.
  - When it is too slow on three nodes or more, it is run on pairs and halves of them to find the node or link.
  - The module does not fail when the collective does. Judge by RV(status) and RV(error).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - Nothing is run, and RV(status) is V(skipped).
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
    description: The collective. Without O(path), V(all_reduce), V(all_gather) and V(broadcast).
    type: str
    choices: [all_reduce, all_gather, reduce_scatter, reduce, broadcast, alltoall, sendrecv, gather, scatter]
    default: all_reduce
  path:
    description: The folder of the nccl-tests or rccl-tests binaries, the same on each node.
    type: str
    default: ""
  launcher:
    description: What starts the ranks. V(local) uses this host alone.
    type: str
    choices: [local, mpirun, srun]
    default: local
  mpi:
    description:
      - How V(srun) starts the binaries of O(path), a name that C(srun --mpi=list) shows. Empty for Slurm's own choice.
      - Where it does not fit the MPI that they were built with, every process runs a test of its own, which is found.
    type: str
    default: pmix
  gpus:
    description: Have V(srun) ask for a GPU a rank of O(path). Not where Slurm does not know of the GPUs.
    type: bool
    default: true
  ranks:
    description: The number of ranks; with O(path), of GPUs.
    type: int
    required: true
  nodes:
    description: The number of nodes. Has to divide O(ranks).
    type: int
    default: 1
  nodelist:
    description: The nodes by name. Needed with V(mpirun), and to find what is slow.
    type: list
    elements: str
    default: []
  min_bytes:
    description: The smallest message.
    type: int
    default: 1024
  max_bytes:
    description:
      - The largest message. It is the one that is judged. By default 8 GiB with O(path), else 64 MiB.
      - The table of known machines, and what O(nic_gbps) comes to, hold from 1 GiB on.
    type: int
  iterations:
    description: How often each size is measured.
    type: int
    default: 5
  min_busbw_gbps:
    description:
      - The bus bandwidth, in 10^9 bytes a second, that the largest message has to reach.
      - By default from O(thresholds), else from the table of known machines, or from O(nic_gbps) for several nodes,
        else none.
    type: float
  thresholds:
    description: Entries of your own, before those of the table. The first one that fits is taken.
    type: list
    elements: dict
    default: []
    suboptions:
      min_busbw_gbps:
        description: The bus bandwidth that the largest message has to reach.
        type: float
        required: true
      collective:
        description: Only for this collective.
        type: str
      gpu:
        description: Only where the name of each GPU has this regular expression in it.
        type: str
      gpus:
        description: Only for this number of ranks.
        type: int
      nodes:
        description: Only for this number of nodes.
        type: int
      source:
        description: Where the number comes from.
        type: str
  nic_gbps:
    description:
      - The rate in Gbit/s of each node's network card, for the threshold between nodes.
      - Where this is the measure, NCCL runs the largest message once more with Ring, which is judged. Tree can show up
        to twice what the wire carries.
    type: float
  nics:
    description: How many such cards a node has.
    type: int
    default: 1
  fabric:
    description: How NCCL uses the cards. Gloo always uses TCP.
    type: str
    choices: [rdma, tcp]
    default: rdma
  timeout:
    description: Seconds that one run may take.
    type: float
    default: 300
  bisect:
    description: Whether to find the slow node or link by further runs.
    type: bool
    default: true
  python:
    description:
      - The Python with PyTorch on the nodes, for our own program. O(user) has to be able to run it. It is isolated, so
        that it has neither C(PYTHONPATH) nor what a user has installed.
    type: str
    default: python3
  user:
    description:
      - The account that runs it, where the module runs as root. Every node has to have it with the same number, and Slurm
        an account for it where it enforces accounts.
      - Not with O(launcher=mpirun), which logs in to the nodes as the account that the module runs as.
    type: str
    default: nobody
"""

EXAMPLES = r"""
- name: Measure the eight GPUs of each host
  gpumesh.cluster.collective_test:
    path: /opt/nccl-tests/build
    ranks: 8
    max_bytes: 8589934592
  register: all_reduce

- name: Refuse a host that is not up to it
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
  description: Ranks that took part.
  type: int
  returned: always
nodes:
  description: Distinct hosts on which they ran.
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
      C(wrong) and C(in_place). Bandwidths are in 10^9 bytes a second. C(wrong) is null where it was not checked.
  type: list
  elements: dict
  returned: always
out_of_bounds:
  description: Wrong values that the program counted. Null without a footer.
  type: int
  returned: always
avg_busbw_gbps:
  description: The mean over all sizes, as the program prints it. Small messages pull it down.
  type: float
  returned: always
busbw_gbps:
  description: The bus bandwidth at the largest size, by which it is judged.
  type: float
  returned: always
ring_busbw_gbps:
  description: What Ring reached at the largest size, where the network is the measure. Else null.
  type: float
  returned: always
versions:
  description: Versions by program or library.
  type: dict
  returned: always
status:
  description:
    - V(pass) or V(fail). V(skipped) in check mode, where the nodes have no program for it, and where C(srun) would have
      to wait for somebody's job.
  type: str
  returned: always
min_busbw_gbps:
  description: The threshold. Null for none.
  type: float
  returned: always
threshold_source:
  description: Where the threshold comes from.
  type: str
  returned: always
not_judged:
  description:
    - Why the speed was not judged, where there is a threshold for larger messages than the largest one. Else null.
  type: str
  returned: always
error:
  description: Null on a pass.
  type: dict
  returned: always
  contains:
    kind:
      description:
        - One of V(timeout), V(usage), V(not_installed), V(busy), V(rank_died), V(failed), V(exit_status), V(truncated), V(missing_rank),
          V(wrong_ranks), V(wrong_nodes), V(wrong_values), V(no_rows) and V(slow).
      type: str
    message:
      description: What is wrong, and where.
      type: str
    remedy:
      description: What to do about it.
      type: str
    details:
      description: The program's and the launcher's own words.
      type: list
      elements: str
    warnings:
      description: The library's warnings.
      type: list
      elements: str
    culprit:
      description: The C(kind), C(names) and C(words) of what makes it slow.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import NOBODY
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.launch import (
    Measurement,
    Request,
    as_result,
    busy,
    check,
    find_culprit,
    measure,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.parse import (
    empty,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.thresholds import (
    LARGE_BYTES,
    Own,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import (
    Outcome,
    exit_with,
)


def work(module: AnsibleModule) -> Outcome:
    """Run, judge, and find the culprit of what is slow."""
    given = module.params
    request = Request(
        collective=given["collective"],
        path=given["path"],
        launcher=given["launcher"],
        ranks=given["ranks"],
        nodes=given["nodes"],
        nodelist=given["nodelist"],
        min_bytes=given["min_bytes"],
        max_bytes=given["max_bytes"] or (8 * LARGE_BYTES if given["path"] else 1 << 26),
        iterations=given["iterations"],
        timeout_s=given["timeout"],
        min_busbw_gbps=given["min_busbw_gbps"],
        nic_gbps=given["nic_gbps"],
        nics=given["nics"],
        python=given["python"],
        fabric=given["fabric"],
        mpi=given["mpi"],
        user=given["user"],
        gpus=given["gpus"],
        thresholds=[Own(**entry) for entry in given["thresholds"]],
    )
    check(request)
    if module.check_mode:
        return Outcome(False, {**as_result(request, Measurement(empty(), None, None), None), "status": "skipped"})
    held = busy(request, run)
    made = Measurement(empty(), held, None) if held else measure(request, run)
    culprit = None
    if given["bisect"] and made.problem is not None and made.problem.kind == "slow":
        culprit = find_culprit(request, made.threshold, run)
    return Outcome(False, as_result(request, made, culprit))


def main() -> None:
    """The module's entry."""
    module = AnsibleModule(
        argument_spec={
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
            "ranks": {"type": "int", "required": True},
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
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()

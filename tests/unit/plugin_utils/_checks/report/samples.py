# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts for tests: invented clusters, in the form that the check role uses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import assemble_verdict

HEALTH = [
    ("health.gpu_count", "The number of GPUs matches the record", 8, 8, ""),
    ("health.gpu_ecc", "No uncorrected memory error on a GPU", 0, 0, ""),
    ("health.kernel_xid", "No GPU errors in the kernel log", 0, 0, ""),
    ("health.pcie_link", "GPU PCIe links are at full width", "x16", "x16", ""),
    ("health.memlock", "Memory can be pinned without limit", "unlimited", "unlimited", ""),
    ("health.swap", "No swap in use", 0, 0, "MiB"),
    ("health.disk_root", "Room on the root file system", 41.5, 95, "%"),
    ("health.mounts", "Mounts can be written", "3 writable", "all", ""),
    ("health.time_synchronised", "The clock is synchronised", True, True, ""),
]


def record(
    number: int, sites: Sequence[str] = ("default",), backend: str = "wireguard", gpus: int = 8
) -> dict[str, Any]:
    """A record of ``number`` members n1, n2, ... distributed over the sites in turn."""
    width = len(str(number))
    return {
        "schema_version": 1,
        "id": "5f0c2f4a9d7e4b0e8a3f6f2f1c9b7d10",
        "name": "lab",
        "generation": 4,
        "subnet": "10.77.0.0/24",
        "manager": f"n{1:0{width}d}",
        "members": [
            {
                "machine": f"n{index + 1:0{width}d}",
                "address": f"10.77.0.{index + 11}",
                "interface": "eth0",
                "site": sites[index * len(sites) // number],
                "endpoint": f"203.0.113.{index + 1}:51820" if index % 4 != 3 else None,
                "gpus": gpus,
                "mesh": {"address": f"10.99.0.{index + 1}", "public_key": "k="} if backend != "none" else None,
            }
            for index in range(number)
        ],
        "mesh": {"backend": backend, "subnet": "10.99.0.0/16", "port": 51820, "interface": "gpumesh0", "mtu": 1420},
        "storage": {"volumes": [{"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/mnt/data"}]},
        "history": [],
    }


def check(name: str, host: Any, status: str = "pass", **values: Any) -> dict[str, Any]:
    """One check result."""
    return {
        "id": name,
        "purpose": "",
        "host": host,
        "actual": None,
        "required": None,
        "unit": "",
        "status": status,
        "reason": "",
        "remedy": "",
        **values,
    }


def pairs(cluster: dict[str, Any], dead: Sequence[str] = (), seed: int = 7) -> list[dict[str, Any]]:
    """All ordered pairs: close within a site, distant between sites, and no connection to or from a dead member."""
    dice = random.Random(seed)
    made = []
    for one in cluster["members"]:
        for other in cluster["members"]:
            if one is other:
                continue
            ends = {"from": one["machine"], "to": other["machine"]}
            if one["machine"] in dead or other["machine"] in dead:
                silent = one["machine"] if one["machine"] in dead else other["machine"]
                made.append(
                    {
                        **ends,
                        "status": "fail",
                        "verdict": "no_answer",
                        "message": f"{ends['from']} → {ends['to']}: {silent} does not answer.",
                        "remedy": f"Start {silent}, or remove it with cluster_machine={silent}.",
                    }
                )
                continue
            near = one["site"] == other["site"]
            made.append(
                {
                    **ends,
                    "status": "pass",
                    "verdict": "reachable",
                    "message": "Every port, both payloads and the path MTU passed.",
                    "remedy": "",
                    "rtt_ms": round(dice.uniform(0.3, 0.7) if near else dice.uniform(11, 38), 3),
                    "path_mtu": 1420,
                    "offset_s": round(dice.uniform(-0.004, 0.004), 4),
                    "bandwidth_gbps": round(dice.uniform(8.9, 9.4) if near else dice.uniform(0.7, 1.9), 2),
                }
            )
    return made


def volumes(machines: Sequence[str]) -> list[dict[str, Any]]:
    """The record's volume, mounted and measured on these members."""
    members = [
        {
            "machine": machine,
            "mounted": True,
            "trouble": "",
            "write_mbps": 880.5 + index,
            "read_mbps": 1104.0,
            "files_per_second": 412.5,
            "shared": "pass",
            "locks": "pass",
        }
        for index, machine in enumerate(machines)
    ]
    return [
        {
            "name": "data",
            "server": "n1",
            "path": "/srv/data",
            "mount_point": "/mnt/data",
            "filesystem": "nfs4",
            "total_bytes": 8 << 40,
            "free_bytes": 3 << 40,
            "mounted_on": list(machines),
            "members": members,
        }
    ]


def collectives(ceiling: float = 11.4, required: float = 9.0) -> list[dict[str, Any]]:
    """Two collectives whose bandwidth rises to ``ceiling`` GB/s with the message size."""
    made = []
    for name, share in (("all_reduce", 1.0), ("all_gather", 0.93)):
        rows = []
        for power in range(10, 31, 2):
            size = 2**power
            rows.append(
                {
                    "size_bytes": size,
                    "time_us": None,
                    "algbw_gbps": None,
                    "busbw_gbps": round(ceiling * share * size / (size + 3.0e6), 3),
                    "in_place": False,
                }
            )
        made.append(
            {
                "collective": name,
                "ranks": 24,
                "nodes": 3,
                "rows": rows,
                "busbw_gbps": rows[-1]["busbw_gbps"],
                "min_busbw_gbps": required,
                "threshold_source": "100 Gbit/s Ethernet, one NIC",
                "status": "pass" if rows[-1]["busbw_gbps"] >= required else "fail",
            }
        )
    return made


def checks(cluster: dict[str, Any], dead: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The results of the check role on a cluster that is healthy except for its dead members."""
    made: list[dict[str, Any]] = []
    machines = [member["machine"] for member in cluster["members"]]
    for machine in machines:
        purpose = "The member answers over SSH"
        if machine in dead:
            made.append(
                check(
                    "members.answer",
                    machine,
                    "fail",
                    purpose=purpose,
                    actual="no answer",
                    required="an answer",
                    reason=f"{machine} does not answer over SSH at 10.77.0.13: connection timed out.",
                    remedy=f"Start {machine} and look at its network, or remove it with cluster_machine={machine}.",
                )
            )
            continue
        made.append(check("members.answer", machine, purpose=purpose, actual="answers", required="an answer"))
        others = len(machines) - 1
        reached = others - len(dead)
        made.append(
            check(
                "reachability.peers",
                machine,
                "pass" if reached == others else "fail",
                purpose="Every other member can be reached",
                actual=reached,
                required=others,
                unit="peers",
                reason="" if reached == others else f"No way to {', '.join(dead)}.",
                remedy="" if reached == others else f"Look at {', '.join(dead)} first: nobody reaches it.",
            )
        )
        made.append(
            check(
                "mesh.handshake",
                machine,
                purpose="A handshake with each peer",
                actual=reached,
                required=reached,
                unit="peers",
            )
        )
        made.append(
            check(
                "clock.offset", machine, purpose="The clock agrees with the others", actual=0.004, required=5, unit="s"
            )
        )
        made.append(
            check(
                "slurm.node",
                machine,
                purpose="The Slurm node can take jobs",
                actual="idle",
                required="idle or allocated",
            )
        )
        for name, text, actual, required, unit in HEALTH:
            made.append(check(name, machine, purpose=text, actual=actual, required=required, unit=unit))
        made.append(
            check(
                "health.rdma_ports",
                machine,
                "skipped",
                purpose="RDMA ports are active at full rate",
                reason="This host has no RDMA device.",
            )
        )
    made.append(
        check(
            "slurm.job",
            None,
            purpose="A job runs on every member",
            actual=f"{len(machines)} nodes",
            required=f"{len(machines)} nodes",
        )
    )
    return made


def verdict(
    number: int = 3,
    sites: Sequence[str] = ("default",),
    dead: Sequence[str] = (),
    runs: int = 6,
    measured: bool = True,
    backend: str = "wireguard",
) -> dict[str, Any]:
    """A complete verdict with ``runs`` earlier ones."""
    cluster = record(number, sites, backend)
    machines = [member["machine"] for member in cluster["members"]]
    all_pairs = pairs(cluster, dead)
    if not measured:
        for pair in all_pairs:
            pair.pop("bandwidth_gbps", None)
    previous = None
    for index in range(runs):
        previous = assemble_verdict(
            record=cluster,
            checks=checks(cluster, machines[-1:] if index == 2 else ()),
            generated_at=f"2026-11-{index + 1:02d}T06:00:00Z",
            answering_machines=machines,
            pairs=pairs(cluster, seed=index),
            collectives=collectives(),
            previous_verdict=previous,
        )
    return assemble_verdict(
        record=cluster,
        checks=checks(cluster, dead),
        generated_at="2026-11-20T20:31:00Z",
        level="full",
        answering_machines=[machine for machine in machines if machine not in dead],
        pairs=all_pairs,
        collectives=collectives() if measured else [],
        jobs=[
            {
                "title": "One task on every member, started by Slurm",
                "command": f"srun -N{number} hostname",
                "status": "fail" if dead else "pass",
                "output": "\n".join(machine for machine in machines if machine not in dead),
            }
        ],
        volumes=volumes([machine for machine in machines if machine not in dead]) if measured else [],
        previous_verdict=previous,
    )

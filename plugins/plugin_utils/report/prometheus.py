# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.statuses import STATUSES

Sample = tuple[Mapping[str, Any], float]


def _label(value: Any) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _metric(name: str, text: str, samples: list[Sample]) -> list[str]:
    """A gauge with its samples; empty if there are none."""
    if not samples:
        return []
    series: dict[str, float] = {}
    for labels, value in samples:
        inside = ",".join(f'{key}="{_label(one)}"' for key, one in labels.items())
        # A file in which a series occurs twice is rejected as a whole, so the worse of two results is taken.
        series[inside] = min(value, series.get(inside, value))
    lines = [f"{name}{{{inside}}} {value!r}" for inside, value in series.items()]
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *lines]


def render(verdict: Mapping[str, Any]) -> str:
    """The text exposition: gauges for the verdict, the counts, each check, and the measurements of the pairs."""
    cluster = {"cluster": verdict["cluster"]["name"]}
    when = datetime.strptime(verdict["generated_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    pairs = verdict["reachability"]["pairs"]
    volumes = verdict.get("volumes", [])

    def room(key: str) -> list[Sample]:
        return [
            ({**cluster, "volume": volume["name"]}, float(volume[key])) for volume in volumes if volume[key] is not None
        ]

    def speed(key: str, factor: float) -> list[Sample]:
        return [
            ({**cluster, "volume": volume["name"], "host": member["machine"]}, member[key] * factor)
            for volume in volumes
            for member in volume["members"]
            if member[key] is not None
        ]

    def measured(key: str, factor: float) -> list[Sample]:
        return [
            ({**cluster, "from": pair["from"], "to": pair["to"]}, pair[key] * factor)
            for pair in pairs
            if pair.get(key) is not None
        ]

    lines = [
        *_metric(
            "gpumesh_cluster_ok",
            "1 if all performed checks passed.",
            [(cluster, float(verdict["status"] == "pass"))],
        ),
        *_metric("gpumesh_cluster_checked_timestamp_seconds", "Time of the check.", [(cluster, when.timestamp())]),
        *_metric(
            "gpumesh_cluster_members", "Members in the record.", [(cluster, float(len(verdict["cluster"]["members"])))]
        ),
        *_metric(
            "gpumesh_checks",
            "Number of checks by status.",
            [({**cluster, "status": status}, float(verdict["counts"][status])) for status in STATUSES],
        ),
        *_metric(
            "gpumesh_check_ok",
            "1 if the check passed, 0 if it failed or could not be performed; skipped checks are omitted.",
            [
                ({**cluster, "host": check["host"] or "", "check": check["id"]}, float(check["status"] == "pass"))
                for check in verdict["checks"]
                if check["status"] != "skipped"
            ],
        ),
        *_metric(
            "gpumesh_pair_ok",
            "1 if the pair is reachable in this direction; with more than 100 members, only faulty pairs are listed.",
            [
                ({**cluster, "from": pair["from"], "to": pair["to"]}, float(pair["status"] == "pass"))
                for pair in pairs
                if pair["status"] != "skipped"
            ],
        ),
        *_metric("gpumesh_pair_rtt_seconds", "Round-trip time of the pair.", measured("rtt_ms", 1e-3)),
        *_metric("gpumesh_pair_bandwidth_bits_per_second", "Throughput of the pair.", measured("bandwidth_gbps", 1e9)),
        *_metric("gpumesh_pair_rdma_bits_per_second", "RDMA throughput of the pair.", measured("rdma_gbps", 1e9)),
        *_metric("gpumesh_pair_rdma_latency_seconds", "One-way RDMA latency.", measured("rdma_latency_us", 1e-6)),
        *_metric(
            "gpumesh_collective_busbw_bytes_per_second",
            "Bus bandwidth at the largest size.",
            [
                ({**cluster, "collective": result["collective"]}, result["busbw_gbps"] * 1e9)
                for result in verdict["collectives"]
                if result["busbw_gbps"] is not None
            ],
        ),
        *_metric("gpumesh_volume_size_bytes", "Size of the volume.", room("total_bytes")),
        *_metric("gpumesh_volume_free_bytes", "Free space on the volume for users.", room("free_bytes")),
        *_metric("gpumesh_volume_write_bytes_per_second", "Synced, while all members write.", speed("write_mbps", 1e6)),
        *_metric("gpumesh_volume_read_bytes_per_second", "While all members read.", speed("read_mbps", 1e6)),
        *_metric("gpumesh_volume_files_per_second", "Small files created and removed.", speed("files_per_second", 1.0)),
    ]
    return "\n".join(lines) + "\n"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict as a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.statuses import STATUSES

Sample = tuple[Mapping[str, Any], float]


def _escape_label(value: Any) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_gauge(name: str, help_text: str, samples: list[Sample]) -> list[str]:
    """Format a gauge with its samples; empty if there are none."""
    if not samples:
        return []
    values_by_labels: dict[str, float] = {}
    for labels, value in samples:
        label_text = ",".join(f'{key}="{_escape_label(label_value)}"' for key, label_value in labels.items())
        # Prometheus rejects a whole file in which a series occurs twice, so the worse of two results is used.
        values_by_labels[label_text] = min(value, values_by_labels.get(label_text, value))
    lines = [f"{name}{{{label_text}}} {value!r}" for label_text, value in values_by_labels.items()]
    return [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *lines]


def render(verdict: Mapping[str, Any]) -> str:
    """Render the text exposition: gauges for the verdict, the counts, each check, and the measurements of the pairs."""
    cluster_labels = {"cluster": verdict["cluster"]["name"]}
    checked_at = datetime.strptime(verdict["generated_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    pairs = verdict["reachability"]["pairs"]
    volumes = verdict.get("volumes", [])

    def volume_samples(key: str) -> list[Sample]:
        return [
            ({**cluster_labels, "volume": volume["name"]}, float(volume[key]))
            for volume in volumes
            if volume[key] is not None
        ]

    def member_samples(key: str, factor: float) -> list[Sample]:
        return [
            ({**cluster_labels, "volume": volume["name"], "host": member["machine"]}, member[key] * factor)
            for volume in volumes
            for member in volume["members"]
            if member[key] is not None
        ]

    def pair_samples(key: str, factor: float) -> list[Sample]:
        return [
            ({**cluster_labels, "from": pair["from"], "to": pair["to"]}, pair[key] * factor)
            for pair in pairs
            if pair.get(key) is not None
        ]

    lines = [
        *_format_gauge(
            "gpumesh_cluster_ok",
            "1 if all performed checks passed.",
            [(cluster_labels, float(verdict["status"] == "pass"))],
        ),
        *_format_gauge(
            "gpumesh_cluster_checked_timestamp_seconds",
            "Time of the check.",
            [(cluster_labels, checked_at.timestamp())],
        ),
        *_format_gauge(
            "gpumesh_cluster_members",
            "Members in the record.",
            [(cluster_labels, float(len(verdict["cluster"]["members"])))],
        ),
        *_format_gauge(
            "gpumesh_checks",
            "Number of checks by status.",
            [({**cluster_labels, "status": status}, float(verdict["counts"][status])) for status in STATUSES],
        ),
        *_format_gauge(
            "gpumesh_check_ok",
            "1 if the check passed, 0 if it failed or could not be performed; skipped checks are omitted.",
            [
                (
                    {**cluster_labels, "host": check["host"] or "", "check": check["id"]},
                    float(check["status"] == "pass"),
                )
                for check in verdict["checks"]
                if check["status"] != "skipped"
            ],
        ),
        *_format_gauge(
            "gpumesh_pair_ok",
            "1 if the pair is reachable in this direction; with more than 100 members, only faulty pairs are listed.",
            [
                ({**cluster_labels, "from": pair["from"], "to": pair["to"]}, float(pair["status"] == "pass"))
                for pair in pairs
                if pair["status"] != "skipped"
            ],
        ),
        *_format_gauge("gpumesh_pair_rtt_seconds", "Round-trip time of the pair.", pair_samples("rtt_ms", 1e-3)),
        *_format_gauge(
            "gpumesh_pair_bandwidth_bits_per_second", "Throughput of the pair.", pair_samples("bandwidth_gbps", 1e9)
        ),
        *_format_gauge(
            "gpumesh_pair_rdma_bits_per_second", "RDMA throughput of the pair.", pair_samples("rdma_gbps", 1e9)
        ),
        *_format_gauge(
            "gpumesh_pair_rdma_latency_seconds", "One-way RDMA latency.", pair_samples("rdma_latency_us", 1e-6)
        ),
        *_format_gauge(
            "gpumesh_collective_busbw_bytes_per_second",
            "Bus bandwidth at the largest size.",
            [
                ({**cluster_labels, "collective": result["collective"]}, result["busbw_gbps"] * 1e9)
                for result in verdict["collectives"]
                if result["busbw_gbps"] is not None
            ],
        ),
        *_format_gauge("gpumesh_volume_size_bytes", "Size of the volume.", volume_samples("total_bytes")),
        *_format_gauge(
            "gpumesh_volume_free_bytes", "Free space on the volume for users.", volume_samples("free_bytes")
        ),
        *_format_gauge(
            "gpumesh_volume_write_bytes_per_second",
            "Synced, while all members write.",
            member_samples("write_mbps", 1e6),
        ),
        *_format_gauge(
            "gpumesh_volume_read_bytes_per_second", "While all members read.", member_samples("read_mbps", 1e6)
        ),
        *_format_gauge(
            "gpumesh_volume_files_per_second",
            "Small files created and removed.",
            member_samples("files_per_second", 1.0),
        ),
    ]
    return "\n".join(lines) + "\n"

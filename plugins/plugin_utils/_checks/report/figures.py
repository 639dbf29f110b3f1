# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The geometry of the report's figures: from values to coordinates in SVG user units. No markup is created here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.volumes import format_bytes

Figure = dict[str, Any]

#: From this number on, names of members would be too small to read beside horizontal labels, so they are radial.
_RADIAL_LABELS_FROM = 13


def classify_link(mesh: Mapping[str, Any], member: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    """Return how two members communicate: ``lan``, ``tunnel`` or ``relayed`` (neither has an endpoint)."""
    if mesh.get("backend") in (None, "none"):
        return "lan"
    if member["site"] != peer["site"] and not member["endpoint"] and not peer["endpoint"]:
        return "relayed"
    return "tunnel"


def draw_topology(cluster: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the members on a ring, grouped by site, with a chord for each connected pair.

    A chord is ``broken`` if either direction failed, ``slow`` if one is too slow, and ``unmeasured`` if neither was
    judged.
    """
    site_names: list[str] = list(dict.fromkeys(member["site"] for member in cluster["members"]))
    members = sorted(cluster["members"], key=lambda member: site_names.index(member["site"]))
    member_count = len(members)
    radial_labels = member_count >= _RADIAL_LABELS_FROM
    label_margin = 14 + 7 * max((len(member["machine"]) for member in members), default=0)
    radius = 190.0 if radial_labels else (150.0 if member_count > 6 else 120.0)
    width = 2 * (radius + 30 + min(label_margin, 150))
    centre_point = (width / 2, width / 2)
    site_gap = 0.0 if len(site_names) < 2 else min(0.6, 6.0 / max(member_count, 1))
    angle_step = 2 * math.pi / (member_count + site_gap * len(site_names)) if member_count else 0.0

    def point_at(angle: float, distance: float) -> tuple[float, float]:
        return round(centre_point[0] + distance * math.cos(angle), 1), round(
            centre_point[1] + distance * math.sin(angle), 1
        )

    nodes: list[dict[str, Any]] = []
    positions: dict[str, tuple[float, float]] = {}
    arcs: list[dict[str, Any]] = []
    angle = -math.pi / 2
    for site in site_names:
        site_members = [member for member in members if member["site"] == site]
        first_angle = angle
        for member in site_members:
            position = point_at(angle, radius)
            positions[member["machine"]] = position
            label_flipped = math.cos(angle) < -1e-9
            label_position = point_at(angle, radius + (20 if radial_labels else 22))
            label_rotation = math.degrees(angle) + (180 if label_flipped else 0)
            label_upright = abs(math.cos(angle)) < 0.25 and not radial_labels
            nodes.append(
                {
                    "machine": member["machine"],
                    "x": position[0],
                    "y": position[1],
                    "r": 4.5 if radial_labels else 8,
                    "label_x": label_position[0],
                    "label_y": round(
                        label_position[1]
                        + (10 if label_upright and math.sin(angle) > 0 else -6 if label_upright else 4),
                        1,
                    ),
                    "anchor": "middle" if label_upright else ("end" if label_flipped else "start"),
                    "rotate": round(label_rotation, 1) if radial_labels else None,
                    "manager": member["machine"] == cluster["manager"],
                    "answered": member["answered"],
                    "gpus": member["gpus"],
                    "address": member["mesh_address"] or member["address"],
                }
            )
            angle += angle_step
        last_angle = angle - angle_step
        # A site with a single member gets a visible arc, too.
        arc_margin = min(angle_step * 0.32, 0.16)
        arc_start, arc_end = (
            point_at(first_angle - arc_margin, radius + 13),
            point_at(last_angle + arc_margin, radius + 13),
        )
        arcs.append(
            {
                "site": site_names.index(site),
                "path": f"M{arc_start[0]} {arc_start[1]} A{radius + 13} {radius + 13} 0 "
                f"{int(last_angle - first_angle + 2 * arc_margin > math.pi)} 1 {arc_end[0]} {arc_end[1]}",
            }
        )
        angle += site_gap * angle_step

    statuses_by_pair: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        first_name, second_name = sorted((pair["from"], pair["to"]))
        statuses_by_pair.setdefault((first_name, second_name), []).append(
            "slow" if pair.get("slow") else pair["status"]
        )
    links = []
    for index, member in enumerate(members):
        for peer in members[index + 1 :]:
            first_name, second_name = sorted((member["machine"], peer["machine"]))
            link_statuses = statuses_by_pair.get((first_name, second_name), [])
            kind = classify_link(cluster["mesh"], member, peer)
            if "fail" in link_statuses:
                kind = "broken"
            elif "slow" in link_statuses:
                kind = "slow"
            elif "pass" not in link_statuses:
                kind = "unmeasured"
            start_point, end_point = positions[member["machine"]], positions[peer["machine"]]
            links.append(
                {
                    "kind": kind,
                    "path": f"M{start_point[0]} {start_point[1]} L{end_point[0]} {end_point[1]}",
                    "title": f"{member['machine']} and {peer['machine']}",
                }
            )
    # Links with a fault are drawn last, on top of the others.
    links.sort(key=lambda link: ("slow", "broken").index(link["kind"]) if link["kind"] in ("slow", "broken") else -1)
    # A triangle does not fill the square around its circle, so the page shows only the drawn area.
    top_edge = min([node["y"] for node in nodes], default=0.0) - (label_margin + 30 if radial_labels else 44)
    bottom_edge = max([node["y"] for node in nodes], default=0.0) + (label_margin + 30 if radial_labels else 38)
    return {
        "box": f"0 {top_edge:.0f} {width:.0f} {bottom_edge - top_edge:.0f}",
        "nodes": nodes,
        "links": links,
        "arcs": arcs if len(site_names) > 1 else [],
        "sites": [
            {"name": site, "members": sum(1 for counted_member in members if counted_member["site"] == site)}
            for site in site_names
        ],
        "kinds": [
            kind_name
            for kind_name in ("lan", "tunnel", "relayed", "slow", "broken", "unmeasured")
            if any(drawn_link["kind"] == kind_name for drawn_link in links)
        ],
        "crowded": radial_labels,
    }


def class_bounds(values: Sequence[float], class_count: int = 5) -> list[float]:
    """Return the upper bounds of ``class_count`` classes of equal ratio over the values, since latencies span decades.

    There is one class if all values are about the same, so that noise does not look like a pattern.
    """
    positive_values = [value for value in values if value > 0]
    if not positive_values:
        return []
    lowest, highest = min(positive_values), max(positive_values)
    if highest / lowest < 2:
        return [highest]
    ratio = (highest / lowest) ** (1 / class_count)
    return [lowest * ratio ** (index + 1) for index in range(class_count - 1)] + [highest]


def find_class(value: float, bounds: Sequence[float]) -> int:
    """Return the class of a value: its index in ``bounds``."""
    return min(bisect_left(bounds, value), max(len(bounds) - 1, 0))


#: Each of these gives round numbers when an axis is divided in four.
_AXIS_TOPS = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0)


def nice_ceiling(value: float) -> float:
    """Return the next round number from the table above, for the top of an axis."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    for factor in _AXIS_TOPS:
        if value <= factor * magnitude * 1.0000001:
            return factor * magnitude
    return 10.0 * magnitude


def _curve_rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the out-of-place rows with a bandwidth, or the in-place ones if there are no others."""
    measured_rows = [row for row in result["rows"] if row["busbw_gbps"] is not None and row["size_bytes"] > 0]
    return [row for row in measured_rows if not row["in_place"]] or measured_rows


def draw_curves(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw bus bandwidth (10^9 bytes/s) against message size on a log axis; None if there is no row."""
    drawn_results = [result for result in results if _curve_rows(result)]
    if not drawn_results:
        return None
    width, height, left_margin, right_margin, top_margin, bottom_margin = 720, 330, 52, 20, 30, 44
    message_sizes = [row["size_bytes"] for result in drawn_results for row in _curve_rows(result)]
    thresholds = sorted({result["min_busbw_gbps"] for result in drawn_results if result.get("min_busbw_gbps")})
    highest_bandwidth = max([row["busbw_gbps"] for result in drawn_results for row in _curve_rows(result)] + thresholds)
    axis_top = nice_ceiling(highest_bandwidth * 1.05)
    low_power, high_power = math.floor(math.log2(min(message_sizes))), math.ceil(math.log2(max(message_sizes)))
    high_power = max(high_power, low_power + 1)

    def to_x(message_size: float) -> float:
        return round(
            left_margin
            + (math.log2(message_size) - low_power) / (high_power - low_power) * (width - left_margin - right_margin),
            1,
        )

    def to_y(bandwidth: float) -> float:
        return round(height - bottom_margin - bandwidth / axis_top * (height - top_margin - bottom_margin), 1)

    tick_stride = max(1, math.ceil((high_power - low_power) / 7))
    return {
        "width": width,
        "height": height,
        "left": left_margin,
        "right": width - right_margin,
        "base": height - bottom_margin,
        "x_ticks": [
            {"x": to_x(2.0**power), "text": format_bytes(2**power)}
            for power in range(low_power, high_power + 1, tick_stride)
        ],
        "y_ticks": [{"y": to_y(axis_top * quarter / 4), "text": f"{axis_top * quarter / 4:g}"} for quarter in range(5)],
        "thresholds": [{"y": to_y(threshold), "text": f"required {threshold:g} GB/s"} for threshold in thresholds],
        "series": [
            {
                "name": result["collective"] or "collective",
                "index": index % 6,
                "path": "M"
                + " L".join(f"{to_x(row['size_bytes'])} {to_y(row['busbw_gbps'])}" for row in _curve_rows(result)),
                "points": [
                    {
                        "x": to_x(row["size_bytes"]),
                        "y": to_y(row["busbw_gbps"]),
                        "title": f"{result['collective']}, {format_bytes(row['size_bytes'])}: {row['busbw_gbps']:g} GB/s",
                    }
                    for row in _curve_rows(result)
                ],
            }
            for index, result in enumerate(drawn_results)
        ],
    }


def draw_history(history: Sequence[Mapping[str, Any]], current_run: Mapping[str, Any]) -> Figure:
    """Draw one column per run, oldest first: its height is the number of checks, its segments are their results."""
    runs = [*history, current_run]
    most_checks = max([sum(run["counts"].values()) for run in runs] + [1])
    width, column_gap, height = 18, 6, 56
    columns = []
    for index, run in enumerate(runs):
        segment_top = float(height)
        segments = []
        for status in ("pass", "skipped", "error", "fail"):
            segment_height = run["counts"][status] / most_checks * height
            if segment_height:
                # A single failing check among hundreds must still be visible.
                segment_height = max(segment_height, 2.0)
                segment_top -= segment_height
                segments.append({"status": status, "y": round(segment_top, 1), "height": round(segment_height, 1)})
        columns.append({"x": index * (width + column_gap), "parts": segments, "run": run})
    return {"width": len(runs) * (width + column_gap) - column_gap, "height": height, "bar": width, "columns": columns}

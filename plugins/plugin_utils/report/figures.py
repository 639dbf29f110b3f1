# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The geometry of the report's figures: from values to coordinates in SVG user units. No markup is created here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.volumes import in_bytes

Figure = dict[str, Any]

#: From this number on, names of members would be too small to read beside horizontal labels, so they are radial.
_RADIAL_LABELS_FROM = 13


def link_kind(mesh: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How two members communicate: ``lan``, ``tunnel`` or ``relayed`` (neither has an endpoint, so a third forwards)."""
    if mesh.get("backend") in (None, "none"):
        return "lan"
    if one["site"] != other["site"] and not one["endpoint"] and not other["endpoint"]:
        return "relayed"
    return "tunnel"


def topology(cluster: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Figure:
    """Members on a ring, grouped by site, with a chord for each connected pair.

    A chord is ``broken`` if either direction failed, ``slow`` if one is too slow, and ``unmeasured`` if neither was
    judged.
    """
    sites: list[str] = list(dict.fromkeys(member["site"] for member in cluster["members"]))
    members = sorted(cluster["members"], key=lambda member: sites.index(member["site"]))
    number = len(members)
    radial = number >= _RADIAL_LABELS_FROM
    margin = 14 + 7 * max((len(member["machine"]) for member in members), default=0)
    radius = 190.0 if radial else (150.0 if number > 6 else 120.0)
    width = 2 * (radius + 30 + min(margin, 150))
    centre = (width / 2, width / 2)
    gap = 0.0 if len(sites) < 2 else min(0.6, 6.0 / max(number, 1))
    step = 2 * math.pi / (number + gap * len(sites)) if number else 0.0

    def at(angle: float, distance: float) -> tuple[float, float]:
        return round(centre[0] + distance * math.cos(angle), 1), round(centre[1] + distance * math.sin(angle), 1)

    nodes: list[dict[str, Any]] = []
    place: dict[str, tuple[float, float]] = {}
    arcs: list[dict[str, Any]] = []
    angle = -math.pi / 2
    for site in sites:
        own = [member for member in members if member["site"] == site]
        first = angle
        for member in own:
            spot = at(angle, radius)
            place[member["machine"]] = spot
            flipped = math.cos(angle) < -1e-9
            label = at(angle, radius + (20 if radial else 22))
            turn = math.degrees(angle) + (180 if flipped else 0)
            upright = abs(math.cos(angle)) < 0.25 and not radial
            nodes.append(
                {
                    "machine": member["machine"],
                    "x": spot[0],
                    "y": spot[1],
                    "r": 4.5 if radial else 8,
                    "label_x": label[0],
                    "label_y": round(label[1] + (10 if upright and math.sin(angle) > 0 else -6 if upright else 4), 1),
                    "anchor": "middle" if upright else ("end" if flipped else "start"),
                    "rotate": round(turn, 1) if radial else None,
                    "manager": member["machine"] == cluster["manager"],
                    "answered": member["answered"],
                    "gpus": member["gpus"],
                    "address": member["mesh_address"] or member["address"],
                }
            )
            angle += step
        last = angle - step
        # A site with a single member gets a visible arc, too.
        spread = min(step * 0.32, 0.16)
        start, end = at(first - spread, radius + 13), at(last + spread, radius + 13)
        arcs.append(
            {
                "site": sites.index(site),
                "path": f"M{start[0]} {start[1]} A{radius + 13} {radius + 13} 0 "
                f"{int(last - first + 2 * spread > math.pi)} 1 {end[0]} {end[1]}",
            }
        )
        angle += gap * step

    status: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        one, other = sorted((pair["from"], pair["to"]))
        status.setdefault((one, other), []).append("slow" if pair.get("slow") else pair["status"])
    links = []
    for index, member in enumerate(members):
        for peer in members[index + 1 :]:
            one, other = sorted((member["machine"], peer["machine"]))
            seen = status.get((one, other), [])
            kind = link_kind(cluster["mesh"], member, peer)
            if "fail" in seen:
                kind = "broken"
            elif "slow" in seen:
                kind = "slow"
            elif "pass" not in seen:
                kind = "unmeasured"
            a, b = place[member["machine"]], place[peer["machine"]]
            links.append(
                {
                    "kind": kind,
                    "path": f"M{a[0]} {a[1]} L{b[0]} {b[1]}",
                    "title": f"{member['machine']} and {peer['machine']}",
                }
            )
    # Those with a fault last, on top of the others.
    links.sort(key=lambda link: ("slow", "broken").index(link["kind"]) if link["kind"] in ("slow", "broken") else -1)
    # A triangle does not fill the square around its circle, so the page shows only the drawn area.
    top = min([node["y"] for node in nodes], default=0.0) - (margin + 30 if radial else 38)
    bottom = max([node["y"] for node in nodes], default=0.0) + (margin + 30 if radial else 38)
    return {
        "box": f"0 {top:.0f} {width:.0f} {bottom - top:.0f}",
        "nodes": nodes,
        "links": links,
        "arcs": arcs if len(sites) > 1 else [],
        "sites": [{"name": site, "members": sum(1 for m in members if m["site"] == site)} for site in sites],
        "kinds": [
            k
            for k in ("lan", "tunnel", "relayed", "slow", "broken", "unmeasured")
            if any(x["kind"] == k for x in links)
        ],
        "crowded": radial,
    }


def steps(values: Sequence[float], number: int = 5) -> list[float]:
    """Upper bounds of ``number`` classes of equal ratio over the values, since latencies span decades.

    One class if all values are about the same, so that noise does not look like a pattern.
    """
    positive = [value for value in values if value > 0]
    if not positive:
        return []
    low, high = min(positive), max(positive)
    if high / low < 2:
        return [high]
    ratio = (high / low) ** (1 / number)
    return [low * ratio ** (index + 1) for index in range(number - 1)] + [high]


def step_of(value: float, bounds: Sequence[float]) -> int:
    """The class of a value: its index in ``bounds``."""
    return min(bisect_left(bounds, value), max(len(bounds) - 1, 0))


#: Each of these gives round numbers when an axis is divided in four.
_AXIS_TOPS = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0)


def nice_ceiling(value: float) -> float:
    """The next round number from the table above: the top of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for factor in _AXIS_TOPS:
        if value <= factor * power * 1.0000001:
            return factor * power
    return 10.0 * power


def _points(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Out-of-place rows with a bandwidth, or in-place ones if there are no others."""
    rows = [row for row in result["rows"] if row["busbw_gbps"] is not None and row["size_bytes"] > 0]
    return [row for row in rows if not row["in_place"]] or rows


def curves(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Bus bandwidth (10^9 bytes/s) against message size on a log axis; None if there is no row."""
    drawn = [result for result in results if _points(result)]
    if not drawn:
        return None
    width, height, left, right, top, bottom = 720, 330, 52, 20, 30, 44
    sizes = [row["size_bytes"] for result in drawn for row in _points(result)]
    thresholds = sorted({result["min_busbw_gbps"] for result in drawn if result.get("min_busbw_gbps")})
    tallest = max([row["busbw_gbps"] for result in drawn for row in _points(result)] + thresholds)
    ceiling = nice_ceiling(tallest * 1.05)
    low, high = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    high = max(high, low + 1)

    def x(size: float) -> float:
        return round(left + (math.log2(size) - low) / (high - low) * (width - left - right), 1)

    def y(value: float) -> float:
        return round(height - bottom - value / ceiling * (height - top - bottom), 1)

    stride = max(1, math.ceil((high - low) / 7))
    return {
        "width": width,
        "height": height,
        "left": left,
        "right": width - right,
        "base": height - bottom,
        "x_ticks": [{"x": x(2.0**power), "text": in_bytes(2**power)} for power in range(low, high + 1, stride)],
        "y_ticks": [{"y": y(ceiling * part / 4), "text": f"{ceiling * part / 4:g}"} for part in range(5)],
        "thresholds": [{"y": y(value), "text": f"required {value:g} GB/s"} for value in thresholds],
        "series": [
            {
                "name": result["collective"] or "collective",
                "index": index % 6,
                "path": "M" + " L".join(f"{x(row['size_bytes'])} {y(row['busbw_gbps'])}" for row in _points(result)),
                "points": [
                    {
                        "x": x(row["size_bytes"]),
                        "y": y(row["busbw_gbps"]),
                        "title": f"{result['collective']}, {in_bytes(row['size_bytes'])}: {row['busbw_gbps']:g} GB/s",
                    }
                    for row in _points(result)
                ],
            }
            for index, result in enumerate(drawn)
        ],
    }


def history_bars(history: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> Figure:
    """One column per run, oldest first, this run last: its height is the number of checks, its parts their results."""
    runs = [*history, now]
    tallest = max([sum(run["counts"].values()) for run in runs] + [1])
    width, gap, height = 18, 6, 56
    columns = []
    for index, run in enumerate(runs):
        top = float(height)
        parts = []
        for status in ("pass", "skipped", "error", "fail"):
            size = run["counts"][status] / tallest * height
            if size:
                # A single failing check among hundreds must still be visible.
                size = max(size, 2.0)
                top -= size
                parts.append({"status": status, "y": round(top, 1), "height": round(size, 1)})
        columns.append({"x": index * (width + gap), "parts": parts, "run": run})
    return {"width": len(runs) * (width + gap) - gap, "height": height, "bar": width, "columns": columns}

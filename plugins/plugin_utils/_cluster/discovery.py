# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of ``discover``: one document for programs, and a page for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.duplicate_machines import group_same_machines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import (
    InterfaceJudge,
    SubnetOptions,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnets import (
    find_shared,
    format_speed,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table, wrap_text

SCHEMA_VERSION = 1

#: The maximum number of rows in the smaller tables, so that they stay readable; programs get all of them.
_MAX_ROWS = 12

#: The minimum width of sentences, however narrow the terminal is.
_MIN_TEXT_WIDTH = 20


def build_report(results: Mapping[str, Any], options: SubnetOptions) -> dict[str, Any]:
    """Build the document: facts of the hosts that answered, the others with the reason, and the subnets.

    ``results`` are the registered results of interface_info, by host. Raises InputError.
    """
    facts_by_host: dict[str, Any] = {}
    unreachable_hosts: dict[str, str] = {}
    failed_hosts: dict[str, str] = {}
    for host, result in results.items():
        host_result = result if isinstance(result, Mapping) else {}
        if "interfaces" in host_result:
            facts_by_host[str(host)] = {"interfaces": host_result["interfaces"], "host": host_result["host"]}
        elif host_result.get("unreachable"):
            unreachable_hosts[str(host)] = _single_line(host_result.get("msg"))
        else:
            failed_hosts[str(host)] = _single_line(host_result.get("module_stderr") or host_result.get("msg"))
    shared_subnets = find_shared(facts_by_host, options) if facts_by_host else None
    return {
        "schema_version": SCHEMA_VERSION,
        "candidates": shared_subnets.candidates if shared_subnets else [],
        "rejected": shared_subnets.rejected if shared_subnets else [],
        "hosts": facts_by_host,
        "unreachable": unreachable_hosts,
        "failed": failed_hosts,
    }


def _single_line(message: Any) -> str:
    return " ".join(str(message or "no answer").removeprefix("Task failed: ").split())


def render_page(report_document: Mapping[str, Any], options: SubnetOptions, width: int = 0) -> str:
    """Render the document as tables for a terminal of ``width`` columns, 0 for no limit."""

    def table(rows: Sequence[Mapping[str, Any]], group_column: str | None = None) -> str:
        return render_table(rows, _filled_columns(rows), width=width, group=group_column)

    facts_by_host: Mapping[str, Any] = report_document["hosts"]
    sections: list[str] = []
    if facts_by_host:
        shared_interfaces = {
            (host, member["interface"])
            for candidate in report_document["candidates"]
            for host, member in candidate["members"].items()
        }
        rows, hidden_count = _interface_rows(facts_by_host, InterfaceJudge(options), shared_interfaces)
        omission_note = (
            f"\n{hidden_count} virtual interface(s) without an address are not shown." if hidden_count else ""
        )
        sections.append(
            f"Interfaces\n{table(rows, group_column='host')}{omission_note}"
            if rows
            else f"No interfaces to show.{omission_note}"
        )
        sections.append(f"Hosts\n{table(_host_rows(facts_by_host))}")
        sections.append(_format_candidates(report_document, table, width))
    rejected_rows = _rejected_rows(report_document["rejected"])
    if rejected_rows:
        omission_note = (
            f"\n{len(rejected_rows) - _MAX_ROWS} more subnets are on fewer hosts."
            if len(rejected_rows) > _MAX_ROWS
            else ""
        )
        sections.append(f"Other subnets, and why they were rejected\n{table(rejected_rows[:_MAX_ROWS])}{omission_note}")
    unreachable_rows = _unreachable_rows(report_document)
    if unreachable_rows:
        sections.append(f"Unreachable hosts, which are not included above\n{table(unreachable_rows)}")
    warnings = _list_warnings(report_document)
    if warnings:
        sections.append("Notes\n" + "\n".join(_format_bullet(warning, width) for warning in warnings))
    return "\n\n".join(sections)


def _format_bullet(text: str, width: int) -> str:
    return "- " + "\n  ".join(wrap_text(printable(text), max(width - 2, _MIN_TEXT_WIDTH) if width else len(text)))


def _filled_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns in which any row has a value: a lab has no speeds, a LAN no RDMA."""
    column_keys = dict.fromkeys(column for row in rows for column in row)
    return [column for column in column_keys if any(row.get(column) not in (None, "", 0) for row in rows)]


def _interface_rows(
    facts_by_host: Mapping[str, Any], judge: InterfaceJudge, shared_interfaces: Set[tuple[str, str]]
) -> tuple[list[dict[str, Any]], int]:
    """The rows, and the number of virtual interfaces without an address that are omitted."""
    rows: list[dict[str, Any]] = []
    hidden_count = 0
    for host, host_facts in facts_by_host.items():
        interfaces_by_name = {interface["name"]: interface for interface in host_facts["interfaces"]}
        for interface in host_facts["interfaces"]:
            interface_addresses = [
                f"{address_entry['address']}/{address_entry['prefix_length']}"
                for address_entry in interface["addresses"]
                if address_entry["scope"] == "global"
            ]
            if interface["kind"] == "loopback":
                continue
            if not interface_addresses and not interface["physical"]:
                hidden_count += 1
                continue
            rows.append(
                {
                    "host": host,
                    "interface": interface["name"],
                    "kind": _format_kind(interface),
                    "speed": format_speed(interface["speed_mbps"]) if interface["speed_mbps"] else None,
                    "MTU": interface["mtu"],
                    "address": "\n".join(interface_addresses),
                    "RDMA": _format_rdma(interface["rdma"]),
                    "note": "shared"
                    if (host, interface["name"]) in shared_interfaces
                    else _exclusion_note(interface, judge.exclusion_reason(interface, interfaces_by_name)),
                }
            )
    return rows, hidden_count


def _format_kind(interface: Mapping[str, Any]) -> str:
    kind = interface["kind"]
    return str(interface["link_kind"] or kind) if kind == "other" else str(kind)


def _format_rdma(rdma: Mapping[str, Any] | None) -> str | None:
    if rdma is None:
        return None
    rate_text = f" {rdma['rate_gbps']:g} Gbit/s" if rdma["rate_gbps"] else ""
    return f"{rdma['device']}{rate_text} {rdma['state']}"


def _exclusion_note(interface: Mapping[str, Any], exclusion_reason: str | None) -> str:
    """Explain why an interface is excluded, without its own name, which is in the row already."""
    if interface["master"]:
        return f"port of {interface['master']}"
    return (exclusion_reason or "not shared").removeprefix(f"{interface['name']} ").removeprefix("is ")


def _host_rows(facts_by_host: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for host, host_facts in facts_by_host.items():
        host_description = host_facts["host"]
        default_routes = [
            f"{route['interface']} via {route['gateway'] or 'link'}" for route in host_description["default_routes"]
        ]
        gpus = host_description["gpus"]
        fabrics = [
            name for name, key in (("EFA", "efa"), ("TCPX", "gpudirect_tcpx")) if host_description[key]["present"]
        ]
        rows.append(
            {
                "host": host,
                "default route": "\n".join(default_routes) or "none",
                "GPUs": f"{gpus['count']} × {gpus['type'] or gpus['vendor']}" if gpus["count"] else "none",
                "fabric": ", ".join(fabrics),
                "own name resolves to": ", ".join(host_description["hostname"]["addresses"]) or "nothing",
            }
        )
    return rows


def _format_candidates(report_document: Mapping[str, Any], render_rows: Any, width: int) -> str:
    host_count = len(report_document["hosts"])
    missing_count = len(report_document["unreachable"]) + len(report_document["failed"])
    hosts_described = (
        f"the {host_count} hosts that answered"
        if missing_count
        else f"all {host_count} hosts"
        if host_count > 1
        else "the host"
    )
    if not report_document["candidates"]:
        advice = f"No subnet is shared by {hosts_described}. Connect them to one network, or use tunnels with mesh_backend=wireguard."
        return "\n".join(wrap_text(advice, width or len(advice)))
    candidate_rows = [
        {
            "rank": rank,
            "subnet": candidate["subnet"],
            "members": _format_members(candidate["members"]),
            "why": "; ".join(candidate["reasons"]),
        }
        for rank, candidate in enumerate(report_document["candidates"], 1)
    ]
    return f"Subnets shared by {hosts_described}, the best first\n{render_rows(candidate_rows, group_column='rank')}"


def _format_members(members: Mapping[str, Any]) -> str:
    member_lines = [f"{host} {member['interface']} {member['address']}" for host, member in members.items()]
    return "\n".join(
        [
            *member_lines[:_MAX_ROWS],
            *([f"and {len(member_lines) - _MAX_ROWS} more"] if len(member_lines) > _MAX_ROWS else []),
        ]
    )


def _rejected_rows(rejected_subnets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rejected subnets, without loopback and link-local ones, which are of no interest."""
    return [
        {
            "subnet": rejected_subnet["subnet"],
            "hosts": rejected_subnet["hosts"],
            "why": _format_rejection(rejected_subnet),
        }
        for rejected_subnet in rejected_subnets
        if not rejected_subnet["reason"].startswith(("it is the loopback", "link-local"))
    ]


def _format_rejection(rejected_subnet: Mapping[str, Any]) -> str:
    absent_hosts = [
        host for host, absence_reason in rejected_subnet["reasons"].items() if absence_reason == "no address in it"
    ]
    return (
        f"{rejected_subnet['reason']}; not on {join_names(absent_hosts)}"
        if absent_hosts
        else str(rejected_subnet["reason"])
    )


def _unreachable_rows(report_document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"host": host, "state": state, "reason": reason}
        for state in ("unreachable", "failed")
        for host, reason in report_document[state].items()
    ]


def _list_warnings(report_document: Mapping[str, Any]) -> list[str]:
    """List everything that will cause problems later, one sentence each."""
    warnings = [
        f"{join_names(same_machine)} are the same machine: correct ansible_host."
        for same_machine in group_same_machines(report_document["hosts"])
    ]
    for host, host_facts in report_document["hosts"].items():
        host_description = host_facts["host"]
        host_name = host_description["hostname"]
        if host_name["problem"]:
            warnings.append(f"{host}: {host_name['problem']} {host_name['remedy']}")
        if host_description["gpus"]["problem"]:
            warnings.append(f"{host}: {host_description['gpus']['problem']}")
    for candidate in report_document["candidates"]:
        warnings += [f"{candidate['subnet']}: {warning}" for warning in candidate["warnings"]]
    return warnings

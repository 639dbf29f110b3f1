# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of ``discover``: one document for programs, and a page for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.same_machine import same_machines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets import find_shared, listed, speed_words
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import Judge, Options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import render, wrap

SCHEMA_VERSION = 1

#: The number of rows that is still readable in the smaller tables; programs get all of them.
_ROWS = 12

#: The minimum width of sentences, however narrow the terminal is.
_NARROWEST = 20


def report(results: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The document: facts of the hosts that answered, the others with the reason, and the subnets.

    ``results`` are the registered results of interface_info, by host. Raises InputError.
    """
    facts: dict[str, Any] = {}
    unreachable: dict[str, str] = {}
    failed: dict[str, str] = {}
    for host, result in results.items():
        answer = result if isinstance(result, Mapping) else {}
        if "interfaces" in answer:
            facts[str(host)] = {"interfaces": answer["interfaces"], "host": answer["host"]}
        elif answer.get("unreachable"):
            unreachable[str(host)] = _one_line(answer.get("msg"))
        else:
            failed[str(host)] = _one_line(answer.get("module_stderr") or answer.get("msg"))
    shared = find_shared(facts, options) if facts else None
    return {
        "schema_version": SCHEMA_VERSION,
        "candidates": shared.candidates if shared else [],
        "rejected": shared.rejected if shared else [],
        "hosts": facts,
        "unreachable": unreachable,
        "failed": failed,
    }


def _one_line(text: Any) -> str:
    return " ".join(str(text or "no answer").removeprefix("Task failed: ").split())


def page(found: Mapping[str, Any], options: Options, style: str = "unicode", width: int = 0) -> str:
    """The document as tables for a terminal of ``width`` columns, 0 for no limit."""

    def table(rows: Sequence[Mapping[str, Any]], group: str | None = None) -> str:
        return render(rows, _filled(rows), style=style, width=width, group=group)

    facts: Mapping[str, Any] = found["hosts"]
    sections: list[str] = []
    if facts:
        shared = {
            (host, member["interface"]) for item in found["candidates"] for host, member in item["members"].items()
        }
        rows, hidden = _interface_rows(facts, Judge(options), shared)
        more = f"\n{hidden} virtual interface(s) without an address are not shown." if hidden else ""
        sections.append(f"Interfaces\n{table(rows, group='host')}{more}" if rows else f"No interfaces to show.{more}")
        sections.append(f"Hosts\n{table(_host_rows(facts))}")
        sections.append(_candidates(found, table))
    rejected = _rejected_rows(found["rejected"])
    if rejected:
        more = f"\n{len(rejected) - _ROWS} more subnets are on fewer hosts." if len(rejected) > _ROWS else ""
        sections.append(f"Other subnets, and why they were rejected\n{table(rejected[:_ROWS])}{more}")
    silent = _silent_rows(found)
    if silent:
        sections.append(f"Unreachable hosts, which are not included above\n{table(silent)}")
    notes = _notes(found)
    if notes:
        sections.append("Notes\n" + "\n".join(_bullet(note, width) for note in notes))
    return "\n\n".join(sections)


def _bullet(text: str, width: int) -> str:
    return "- " + "\n  ".join(wrap(printable(text), max(width - 2, _NARROWEST) if width else len(text)))


def _filled(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which any row has a value: a lab has no speeds, a LAN no RDMA."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) not in (None, "", 0) for row in rows)]


def _interface_rows(
    facts: Mapping[str, Any], judge: Judge, shared: Set[tuple[str, str]]
) -> tuple[list[dict[str, Any]], int]:
    """The rows, and the number of virtual interfaces without an address that are omitted."""
    rows: list[dict[str, Any]] = []
    hidden = 0
    for host, host_facts in facts.items():
        by_name = {interface["name"]: interface for interface in host_facts["interfaces"]}
        for interface in host_facts["interfaces"]:
            addresses = [
                f"{entry['address']}/{entry['prefix_length']}"
                for entry in interface["addresses"]
                if entry["scope"] == "global"
            ]
            if interface["kind"] == "loopback":
                continue
            if not addresses and not interface["physical"]:
                hidden += 1
                continue
            rows.append(
                {
                    "host": host,
                    "interface": interface["name"],
                    "kind": _kind_words(interface),
                    "speed": speed_words(interface["speed_mbps"]) if interface["speed_mbps"] else None,
                    "MTU": interface["mtu"],
                    "address": "\n".join(addresses),
                    "RDMA": _rdma_words(interface["rdma"]),
                    "note": "shared"
                    if (host, interface["name"]) in shared
                    else _note(interface, judge.interface(interface, by_name)),
                }
            )
    return rows, hidden


def _kind_words(interface: Mapping[str, Any]) -> str:
    kind = interface["kind"]
    return str(interface["link_kind"] or kind) if kind == "other" else str(kind)


def _rdma_words(rdma: Mapping[str, Any] | None) -> str | None:
    if rdma is None:
        return None
    rate = f" {rdma['rate_gbps']:g} Gbit/s" if rdma["rate_gbps"] else ""
    return f"{rdma['device']}{rate} {rdma['state']}"


def _note(interface: Mapping[str, Any], trouble: str | None) -> str:
    """Why an interface is excluded, without its own name, which is in the row already."""
    if interface["master"]:
        return f"port of {interface['master']}"
    return (trouble or "not shared").removeprefix(f"{interface['name']} ").removeprefix("is ")


def _host_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for host, host_facts in facts.items():
        about = host_facts["host"]
        routes = [f"{route['interface']} via {route['gateway'] or 'link'}" for route in about["default_routes"]]
        gpus = about["gpus"]
        fabrics = [name for name, key in (("EFA", "efa"), ("TCPX", "gpudirect_tcpx")) if about[key]["present"]]
        rows.append(
            {
                "host": host,
                "default route": "\n".join(routes) or "none",
                "GPUs": f"{gpus['count']} × {gpus['type'] or gpus['vendor']}" if gpus["count"] else "none",
                "fabric": ", ".join(fabrics),
                "own name resolves to": ", ".join(about["hostname"]["addresses"]) or "nothing",
            }
        )
    return rows


def _candidates(found: Mapping[str, Any], table: Any) -> str:
    total = len(found["hosts"])
    others = len(found["unreachable"]) + len(found["failed"])
    whom = f"the {total} hosts that answered" if others else f"all {total} hosts" if total > 1 else "the host"
    if not found["candidates"]:
        return (
            f"No subnet is shared by {whom}. Connect them to one network, or use tunnels with mesh_backend=wireguard."
        )
    rows = [
        {
            "rank": rank,
            "subnet": candidate["subnet"],
            "members": _members(candidate["members"]),
            "why": "; ".join(candidate["reasons"]),
        }
        for rank, candidate in enumerate(found["candidates"], 1)
    ]
    return f"Subnets shared by {whom}, the best first\n{table(rows, group='rank')}"


def _members(members: Mapping[str, Any]) -> str:
    lines = [f"{host} {member['interface']} {member['address']}" for host, member in members.items()]
    return "\n".join([*lines[:_ROWS], *([f"and {len(lines) - _ROWS} more"] if len(lines) > _ROWS else [])])


def _rejected_rows(rejected: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rejected subnets, without loopback and link-local ones, which are of no interest."""
    return [
        {"subnet": entry["subnet"], "hosts": entry["hosts"], "why": _rejection_words(entry)}
        for entry in rejected
        if not entry["reason"].startswith(("it is the loopback", "link-local"))
    ]


def _rejection_words(entry: Mapping[str, Any]) -> str:
    absent = [host for host, why in entry["reasons"].items() if why == "no address in it"]
    return f"{entry['reason']}; not on {listed(absent)}" if absent else str(entry["reason"])


def _silent_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"host": host, "state": state, "reason": reason}
        for state in ("unreachable", "failed")
        for host, reason in found[state].items()
    ]


def _notes(found: Mapping[str, Any]) -> list[str]:
    """Everything that will cause problems later, one sentence each."""
    notes = [f"{listed(names)} are the same machine: correct ansible_host." for names in same_machines(found["hosts"])]
    for host, host_facts in found["hosts"].items():
        about = host_facts["host"]
        name = about["hostname"]
        if name["problem"]:
            notes.append(f"{host}: {name['problem']} {name['remedy']}")
        if about["gpus"]["problem"]:
            notes.append(f"{host}: {about['gpus']['problem']}")
    for candidate in found["candidates"]:
        notes += [f"{candidate['subnet']}: {warning}" for warning in candidate["warnings"]]
    return notes

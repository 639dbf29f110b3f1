# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.discovery import build_report, render_page
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import DEFAULT_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import display_width
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._host.recorded import CASE_NAMES, FIXTURES


def recorded_facts(case: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FIXTURES / case / "expected.json").read_text(encoding="utf-8"))
    return {"changed": False, "failed": False, **facts}


RESULTS = {
    "n1": recorded_facts("plain_ethernet"),
    "n2": recorded_facts("two_nics_one_subnet"),
    "n3": {"unreachable": True, "changed": False, "msg": "Task failed: ssh: connect to host 10.0.0.3:\nNo route"},
    "n4": {"changed": False, "msg": "n4: 'ip -j -d addr show' cannot be run: the program is not installed."},
    "n5": {"msg": "MODULE FAILURE", "module_stderr": "/bin/sh: 1: python3: not found\n", "rc": 127},
    "n6": {},
}


def test_unreachable_hosts_are_listed_with_the_reason() -> None:
    found = build_report(RESULTS, DEFAULT_OPTIONS)
    assert list(found["hosts"]) == ["n1", "n2"]
    assert found["unreachable"] == {"n3": "ssh: connect to host 10.0.0.3: No route"}
    assert found["failed"] == {
        "n4": "n4: 'ip -j -d addr show' cannot be run: the program is not installed.",
        "n5": "/bin/sh: 1: python3: not found",
        "n6": "no answer",
    }
    assert set(found["hosts"]["n1"]) == {"interfaces", "host"}
    text = render_page(found, DEFAULT_OPTIONS)
    for words in ("n3", "unreachable", "No route", "python3: not found", "the 2 hosts that answered"):
        assert words in text


def test_page_shows_duplicate_addresses() -> None:
    """Both recorded hosts have 192.168.1.11, the second one 192.168.1.12 as well."""
    text = render_page(build_report(RESULTS, DEFAULT_OPTIONS), DEFAULT_OPTIONS)
    assert "192.168.1.11 is on n1 and n2" in text
    assert "No subnet is shared by the 2 hosts that answered" in text


def test_page_reports_two_names_of_one_machine() -> None:
    twice = {**RESULTS["n1"], "host": {**RESULTS["n1"]["host"], "boot_id": "b-1"}}
    note = "n1 and n2 are the same machine"
    assert note in render_page(build_report({"n1": twice, "n2": twice}, DEFAULT_OPTIONS), DEFAULT_OPTIONS)
    assert note not in render_page(build_report({"n1": twice, "n2": RESULTS["n1"]}, DEFAULT_OPTIONS), DEFAULT_OPTIONS)


def test_page_is_rendered_without_any_response() -> None:
    found = build_report({"n3": RESULTS["n3"]}, DEFAULT_OPTIONS)
    assert found["candidates"] == [] and found["hosts"] == {}
    assert "n3" in render_page(found, DEFAULT_OPTIONS)


def test_page_lists_problems_with_remedies() -> None:
    text = render_page(build_report({"n1": recorded_facts("wireguard_tailscale")}, DEFAULT_OPTIONS), DEFAULT_OPTIONS)
    assert "n1: The host's own name gpu7 resolves to 127.0.1.1 (in /etc/hosts)" in text
    assert "Map gpu7 to its cluster address in /etc/hosts instead of 127.0.1.1." in text
    assert "1 GPU(s) on the PCI bus have no device file" in text
    two = render_page(build_report({"n1": recorded_facts("two_nics_one_subnet")}, DEFAULT_OPTIONS), DEFAULT_OPTIONS)
    assert "192.168.1.0/24: n1 has 2 interfaces in it (eno1, eno2)" in two


def test_page_of_a_bond() -> None:
    text = render_page(build_report({"n1": recorded_facts("bond_mellanox")}, DEFAULT_OPTIONS), DEFAULT_OPTIONS)
    assert (
        "│ host │ interface    │ kind     │ speed      │  MTU │ address       "
        "│ RDMA                          │ note          │\n"
    ) in text
    assert (
        "│      │ bond0        │ bond     │ 200 Gbit/s │ 9000 │ 10.20.0.11/24 "
        "│ mlx5_bond_0 100 Gbit/s active │ shared        │\n"
    ) in text
    assert "port of bond0" in text and "\n- " not in text
    assert "physical everywhere; RDMA everywhere (Ethernet, mlx5_bond_0); 200 Gbit/s; MTU 9000" in text


def test_page_of_every_recorded_host_fits_the_terminal() -> None:
    results = {case.replace("_", "-"): recorded_facts(case) for case in CASE_NAMES}
    lines = render_page(build_report(results, DEFAULT_OPTIONS), DEFAULT_OPTIONS, width=100).split("\n")
    frames = [line for line in lines if line[:1] in "┌├└│"]
    assert len(frames) > 50
    assert max(map(display_width, frames)) <= 100

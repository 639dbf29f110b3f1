# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.discovery import page, report
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import DEFAULTS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import display_width
from ansible_collections.gpumesh.cluster.tests.unit.module_utils.net.recorded import CASES, FIXTURES


def recorded(case: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FIXTURES / case / "expected.json").read_text(encoding="utf-8"))
    return {"changed": False, "failed": False, **facts}


RESULTS = {
    "n1": recorded("plain_ethernet"),
    "n2": recorded("two_nics_one_subnet"),
    "n3": {"unreachable": True, "changed": False, "msg": "Task failed: ssh: connect to host 10.0.0.3:\nNo route"},
    "n4": {"changed": False, "msg": "n4: 'ip -j -d addr show' cannot be run: the program is not installed."},
    "n5": {"msg": "MODULE FAILURE", "module_stderr": "/bin/sh: 1: python3: not found\n", "rc": 127},
    "n6": {},
}


def test_hosts_that_gave_no_answer_are_listed_with_the_reason() -> None:
    found = report(RESULTS, DEFAULTS)
    assert list(found["hosts"]) == ["n1", "n2"]
    assert found["unreachable"] == {"n3": "ssh: connect to host 10.0.0.3: No route"}
    assert found["failed"] == {
        "n4": "n4: 'ip -j -d addr show' cannot be run: the program is not installed.",
        "n5": "/bin/sh: 1: python3: not found",
        "n6": "no answer",
    }
    assert set(found["hosts"]["n1"]) == {"interfaces", "host"}
    text = page(found, DEFAULTS)
    for words in ("n3", "unreachable", "No route", "python3: not found", "the 2 hosts that answered"):
        assert words in text


def test_a_duplicate_address_on_two_hosts_is_seen_on_the_page() -> None:
    """Both recorded hosts have 192.168.1.11, the second one 192.168.1.12 as well."""
    text = page(report(RESULTS, DEFAULTS), DEFAULTS)
    assert "192.168.1.11 is on n1 and n2" in text
    assert "No subnet is shared by the 2 hosts that answered" in text


def test_two_names_of_one_machine_are_told() -> None:
    twice = {**RESULTS["n1"], "host": {**RESULTS["n1"]["host"], "boot_id": "b-1"}}
    note = "n1 and n2 are the same machine"
    assert note in page(report({"n1": twice, "n2": twice}, DEFAULTS), DEFAULTS)
    assert note not in page(report({"n1": twice, "n2": RESULTS["n1"]}, DEFAULTS), DEFAULTS)


def test_no_answer_at_all_still_gives_a_page() -> None:
    found = report({"n3": RESULTS["n3"]}, DEFAULTS)
    assert found["candidates"] == [] and found["hosts"] == {}
    assert "n3" in page(found, DEFAULTS)


def test_what_will_hurt_is_said_with_its_remedy() -> None:
    text = page(report({"n1": recorded("wireguard_tailscale")}, DEFAULTS), DEFAULTS)
    assert "n1: The host's own name gpu7 resolves to 127.0.1.1 (in /etc/hosts)" in text
    assert "Map gpu7 to its cluster address in /etc/hosts instead of 127.0.1.1." in text
    assert "1 GPU(s) on the PCI bus have no device file" in text
    two = page(report({"n1": recorded("two_nics_one_subnet")}, DEFAULTS), DEFAULTS)
    assert "192.168.1.0/24: n1 has 2 interfaces in it (eno1, eno2)" in two


def test_the_page_of_a_bond_looks_as_it_should() -> None:
    text = page(report({"n1": recorded("bond_mellanox")}, DEFAULTS), DEFAULTS, style="ascii")
    assert (
        "| host | interface    | kind     | speed      |  MTU | address       "
        "| RDMA                          | note          |\n"
    ) in text
    assert (
        "|      | bond0        | bond     | 200 Gbit/s | 9000 | 10.20.0.11/24 "
        "| mlx5_bond_0 100 Gbit/s active | shared        |\n"
    ) in text
    assert "port of bond0" in text and "\n- " not in text
    assert "physical everywhere; RDMA everywhere (Ethernet, mlx5_bond_0); 200 Gbit/s; MTU 9000" in text


def test_every_recorded_host_makes_a_page_that_fits_the_terminal() -> None:
    results = {case.replace("_", "-"): recorded(case) for case in CASES}
    lines = page(report(results, DEFAULTS), DEFAULTS, width=100).split("\n")
    frames = [line for line in lines if line[:1] in "┌├└│"]
    assert len(frames) > 50
    assert max(map(display_width, frames)) <= 100

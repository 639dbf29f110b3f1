# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action discover: how it combines the answers of all hosts of a play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.action.discover import ActionModule
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._cluster.test_discovery import RESULTS


def run_discover(check_mode: bool = False, **options: Any) -> dict[str, Any]:
    variables = {
        "ansible_play_hosts_all": [*RESULTS, "silent"],
        "inventory_hostname": "n1",
        **{f"discover_{name}": value for name, value in options.items()},
        "hostvars": {**{host: {"seen": result} for host, result in RESULTS.items()}, "silent": {}},
    }
    return play_action(ActionModule, {"registered": "seen"}, {}, variables, check_mode).result


def test_the_tables_keep_to_their_width() -> None:
    result = run_discover(table_width=70)
    assert max(len(line) for line in result["text"].split("\n") if line[:1] in "┌├└│") <= 70
    assert result["changed"] is False


def test_the_candidates_are_set_as_stats() -> None:
    found = json.loads(run_discover(output="json")["text"])
    handed = run_discover()["ansible_stats"]
    assert handed["per_host"] is False
    assert handed["data"]["discover_subnets"] == [candidate["subnet"] for candidate in found["candidates"]]
    assert "silent" in handed["data"]["discover_silent_hosts"]


def test_the_file_of_facts_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    assert run_discover(check_mode=True, facts_file=str(path))["changed"] is True
    assert not path.exists()
    assert [run_discover(facts_file=str(path))["changed"] for _run in range(2)] == [True, False]
    assert json.loads(path.read_text()) == json.loads(run_discover(output="json")["text"])


def test_an_invalid_subnet_is_refused_with_the_name_of_the_option() -> None:
    result = run_discover(subnet="10.0.0.300/24")
    assert result["failed"]
    assert result["msg"].startswith("discover_subnet: '10.0.0.300/24' is an invalid subnet: ")

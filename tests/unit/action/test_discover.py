# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action discover: how it combines the answers of all hosts of a play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.action.discover import ActionModule
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils.test_discovery import RESULTS


def discovered(check_mode: bool = False, **options: Any) -> dict[str, Any]:
    variables = {
        "ansible_play_hosts_all": [*RESULTS, "silent"],
        "hostvars": {**{host: {"seen": result} for host, result in RESULTS.items()}, "silent": {}},
    }
    return play(ActionModule, {"registered": "seen", **options}, {}, variables, check_mode).result


def test_the_tables_keep_to_their_width() -> None:
    result = discovered(table_style="ascii", table_width=70)
    assert max(len(line) for line in result["text"].split("\n") if line[:1] in "+|") <= 70
    assert result["changed"] is False


def test_the_choice_is_handed_to_the_next_job() -> None:
    found = json.loads(discovered(output="json")["text"])
    handed = discovered()["ansible_stats"]
    assert handed["per_host"] is False
    assert handed["data"]["discover_subnets"] == [candidate["subnet"] for candidate in found["candidates"]]
    assert "silent" in handed["data"]["discover_silent_hosts"]


def test_the_file_of_facts_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    assert discovered(check_mode=True, facts_file=str(path))["changed"] is True
    assert not path.exists()
    assert [discovered(facts_file=str(path))["changed"] for _run in range(2)] == [True, False]
    assert json.loads(path.read_text()) == json.loads(discovered(output="json")["text"])


def test_a_wrong_subnet_is_refused_in_words() -> None:
    result = discovered(subnet="10.0.0.300/24")
    assert result["failed"]
    assert result["msg"].startswith("discover_subnet: '10.0.0.300/24' is an invalid subnet: ")

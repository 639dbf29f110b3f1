# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters as seen by templates: names, defaults, and errors in Ansible's form."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpumesh.cluster.plugins.filter import (
    shared_subnets,
    table,
)
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils.test_subnets import hosts, interface

FACTS = hosts([interface("eno1", "10.0.0.1/24")], [interface("eno1", "10.0.0.2/24")])


@pytest.mark.parametrize("plugin", [shared_subnets, table])
def test_a_filter_has_the_name_of_its_file(plugin: Any) -> None:
    name = plugin.__name__.rpartition(".")[2]
    assert list(plugin.FilterModule().filters()) == [name]


def test_the_patterns_reach_the_ranking() -> None:
    assert shared_subnets.shared_subnets(FACTS)["candidates"][0]["subnet"] == "10.0.0.0/24"
    assert shared_subnets.shared_subnets(FACTS, exclude=["eno*"])["candidates"] == []


def test_an_error_of_ours_is_a_filter_error_with_the_remedy() -> None:
    with pytest.raises(AnsibleFilterError, match="10.0.0.300/24"):
        shared_subnets.shared_subnets(FACTS, "10.0.0.300/24")


def test_the_table_takes_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"host": "n1", "why": "word " * 60}]
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, table.table(rows).split("\n"))) <= 50
    assert max(map(len, table.table(rows, width=90).split("\n"))) > 50
    assert len(table.table(rows, width=-1).split("\n")) == 5

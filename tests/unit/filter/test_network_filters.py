# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters as seen by templates: names, defaults, and errors in Ansible's form."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpumesh.cluster.plugins.filter import shared_subnets, table
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._cluster.test_subnets import hosts, interface

FACTS = hosts([interface("eno1", "10.0.0.1/24")], [interface("eno1", "10.0.0.2/24")])


@pytest.mark.parametrize("plugin", [shared_subnets, table])
def test_filter_is_named_after_its_file(plugin: Any) -> None:
    name = plugin.__name__.rpartition(".")[2]
    assert list(plugin.FilterModule().filters()) == [name]


def test_exclude_patterns_are_applied() -> None:
    assert shared_subnets.shared_subnets(FACTS)["candidates"][0]["subnet"] == "10.0.0.0/24"
    assert shared_subnets.shared_subnets(FACTS, exclude=["eno*"])["candidates"] == []


def test_collection_error_becomes_a_filter_error() -> None:
    with pytest.raises(AnsibleFilterError, match="10.0.0.300/24"):
        shared_subnets.shared_subnets(FACTS, "10.0.0.300/24")


def test_table_fits_the_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"host": "n1", "why": "word " * 60}]
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, table.table(rows).split("\n"))) <= 50
    assert max(map(len, table.table(rows, width=90).split("\n"))) > 50
    assert len(table.table(rows, width=-1).split("\n")) == 5

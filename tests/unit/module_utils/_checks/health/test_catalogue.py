# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import (
    ACTIONS,
    CATALOGUE,
    DRAIN,
    LEVELS,
    PASSIVE,
    PROLOG,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.run import _IMPLEMENTATIONS, ALL_CHECKS
from ansible_collections.gpumesh.cluster.tests.support.health_table import PAGE, TABLE, format_tables


def test_each_check_has_one_entry_and_one_implementation() -> None:
    check_ids = [entry.check_id for entry in CATALOGUE]
    assert len(set(check_ids)) == len(check_ids)
    assert {entry.check_id for entry in CATALOGUE if not entry.compares_members} == set(_IMPLEMENTATIONS)
    assert [check.check_id for check in ALL_CHECKS] == [
        entry.check_id for entry in CATALOGUE if not entry.compares_members
    ]


def test_entries_are_complete() -> None:
    for entry in CATALOGUE:
        texts = [entry.purpose, entry.reads, entry.hardware, entry.threshold, entry.remedy]
        assert all(texts), entry
        assert not any("|" in text or "\n" in text for text in [*texts, entry.source]), entry
        assert entry.level in LEVELS and entry.action in ACTIONS, entry
        assert not entry.source or re.search(r"\(https://", entry.source), entry


def test_checks_that_drain_run_without_anyone() -> None:
    assert all(entry.level in (PASSIVE, PROLOG) for entry in CATALOGUE if entry.action == DRAIN)
    # Nobody would see the result of others.
    assert all(entry.action == DRAIN for entry in CATALOGUE if entry.level in (PASSIVE, PROLOG))


def test_page_has_the_tables_of_the_catalogue() -> None:
    assert TABLE.findall(PAGE.read_text(encoding="utf-8")) == list(format_tables().values())

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils.report import samples

FILTERS = "ansible_collections.gpumesh.cluster.plugins.filter"


def filter_named(name: str) -> Callable[..., Any]:
    made: Callable[..., Any] = import_module(f"{FILTERS}.{name}").FilterModule().filters()[name]
    return made


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("report_html", "<!doctype html>"),
        ("report_junit", "<?xml"),
        ("report_prometheus", "# HELP gpumesh_cluster_ok"),
        ("report_text", "Ready to train: "),
    ],
)
def test_each_report_is_made_of_the_verdict_as_it_comes_back_from_json(name: str, start: str) -> None:
    verdict = json.loads(json.dumps(samples.verdict(3)))
    assert filter_named(name)(verdict).startswith(start)


def test_verdict_takes_the_evidence_of_a_run() -> None:
    made = filter_named("verdict")(samples.record(2), {"asked": ["n1"], "answered": ["n1"]}, "2026-11-20T20:31:00Z")
    assert made["status"] == "pass"
    assert [check["status"] for check in made["checks"] if check["id"] == "members.answer"] == ["pass", "skipped"]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts from a member, or from a user on it, reach the administrator's terminal and the reports without their escapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.evidence import judge_cluster
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.overview import build_overview, render_overview
from ansible_collections.gpumesh.cluster.tests.support.decisions import find_cluster

#: A text that sets the window's title, clears the screen, also in one byte, turns the direction of writing, and has
#: half a character.
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2Jn\u202e1\ud800"
TIMESTAMP = "2026-11-20T20:31:00Z"


def is_harmless(text: str) -> bool:
    return printable(text) == text


def create_record() -> model.Record:
    entries = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
    stamp = plan.ChangeStamp(TIMESTAMP, "alice")
    return plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {}, entries, stamp), stamp)


def damaged_responses() -> dict[str, Any]:
    damaged_record = {"path": "/var/lib/gpumesh/clusters/lab.json", "reason": f"it is {EVIL}", "last_good": EVIL}
    return {
        "n1": {"clusters": [create_record()], "damaged": []},
        "n2": {"clusters": [], "damaged": [damaged_record]},
        "n3": {"unreachable": True, "msg": EVIL},
    }


def test_remarks_on_copies_are_printable() -> None:
    inventory: dict[str, Any] = {"machines": ["n1", "n2", "n3"], "variables": {name: {} for name in ("n1", "n2", "n3")}}
    selected = find_cluster(damaged_responses(), "lab", **inventory)
    assert len(selected["remarks"]) == 1 and is_harmless("".join(selected["remarks"]))
    refusal = find_cluster({"n2": damaged_responses()["n2"]}, "lab", **inventory)
    assert "owned" in refusal["refusal"] and is_harmless(refusal["refusal"])


def test_overview_is_printable() -> None:
    clusters = build_overview(damaged_responses(), TIMESTAMP)
    assert is_harmless(json.dumps(clusters, ensure_ascii=False))
    assert is_harmless(render_overview(clusters, {"n3": EVIL}, 120))


def test_verdict_is_printable() -> None:
    evidence = {
        "queried": ["n1", "n2"],
        "answered": ["n1", "n2"],
        "slurm": {"rc": 1, "stdout": EVIL, "stderr": EVIL},
        "job": {"rc": 1, "stdout": EVIL, "stderr": EVIL},
        "health": {
            "n1": {"msg": EVIL},
        },
    }
    verdict_text = json.dumps(judge_cluster(create_record(), evidence, TIMESTAMP), ensure_ascii=False)
    assert "owned" in verdict_text and is_harmless(verdict_text)


@pytest.mark.parametrize("callback", ["ansible.builtin.default", "gpumesh.cluster.progress"])
def test_playbook_output_is_printable(callback: str, tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    play.write_text(
        json.dumps(
            [
                {
                    "hosts": "localhost",
                    "gather_facts": False,
                    "tasks": [{"gpumesh.cluster.print_text": {"text": "{{ told }}"}}],
                }
            ]
        )
    )
    command = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "-i", "localhost,", "-c", "local"]
    completed = subprocess.run(
        [*command, str(play), "-e", json.dumps({"told": EVIL[:-1]})],
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": callback, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "owned" in completed.stdout
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(completed.stdout)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Misspelled names of options are told from names that belong to something else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.variable_names import find_unknown, option_names
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("mesh_backed", "mesh_backend"),
        ("mesh_prot", "mesh_port"),
        ("storage_volume", "storage_volumes"),
        ("strorage_volumes", "storage_volumes"),
        ("clster_name", "cluster_name"),
        ("cluster_host", "cluster_hosts"),
        ("check_levle", "check_level"),
        ("slurm_acounting", "slurm_accounting"),
        ("ssh_trust_user", "ssh_trust_users"),
    ],
)
def test_misspelled_option_is_reported(name: str, option: str) -> None:
    assert find_unknown([name]).misspelled == {name: option}


@pytest.mark.parametrize(
    "name",
    ["username", "user_name", "ssh_port", "cluster", "hosts", "http_port", "cluster_id", "slurm_version", "node_name"],
)
def test_unrelated_variable_is_ignored(name: str) -> None:
    assert find_unknown([name]).misspelled == {}


def test_names_with_a_role_prefix_are_listed() -> None:
    assert find_unknown(["slurm_version", "storage_dir", "http_port", "__slurm_own"]).ignored == [
        "slurm_version",
        "storage_dir",
    ]


def test_variables_of_our_inventories_are_known() -> None:
    """Those that the examples and the guides show, and those that the inventory plugin sets."""
    files = [*ROOT.glob("inventories/**/*.yml"), *ROOT.glob("examples/**/*.yml"), *ROOT.glob("docs/guides/*.md")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*files, ROOT / "README.md"] if path.is_file())
    names = set(re.findall(r"^ *([a-z]+_[a-z_]+): ", text, re.MULTILINE)) | set(re.findall(r"-e ([a-z_]+)=", text))
    plugin = (ROOT / "plugins" / "inventory" / "clusters.py").read_text(encoding="utf-8")
    names |= set(re.findall(r"C\((cluster_[a-z_]+)\)", plugin))
    # Variables of the jobs that follow in a workflow of AWX.
    names |= {"discover_subnets", "discover_silent_hosts"}
    assert "mesh_backend" in names and "cluster_rank" in names
    assert find_unknown(names).misspelled == {}
    assert {name for name in names if name.startswith("cluster_")} - option_names() == set()


TASKS: list[dict[str, Any]] = [
    {"ansible.builtin.set_fact": {"mesh_backed": "none"}},
    {"ansible.builtin.command": "true", "register": "storage_volums"},
    {"gpumesh.cluster.role_options": {"roles": ["mesh"]}, "any_errors_fatal": True},
    {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on."}},
]


def test_facts_are_ignored_and_foreign_names_are_listed_once(tmp_path: Path) -> None:
    hosts = {f"n{number}": {"slurm_version": "24.11"} for number in range(1, 4)}
    run = run_tasks(tmp_path, hosts, {}, TASKS, "-e", "storage_dir=/data")
    assert run.exit_status == 0, run.output
    assert (
        run.flat_output.count("Ignored, because gpumesh.cluster has no such options: slurm_version, storage_dir.") == 1
    ), run.output


@pytest.mark.parametrize("where", ["host", "command line"])
def test_misspelled_option_stops_the_run_on_all_hosts(tmp_path: Path, where: str) -> None:
    hosts: dict[str, dict[str, Any]] = {"n1": {}, "n2": {"mesh_prot": 51821} if where == "host" else {}}
    given = json.dumps({"mesh_prot": 51821} if where == "command line" else {})
    run = run_tasks(tmp_path, hosts, {}, TASKS, "-e", given)
    assert run.exit_status == 2
    assert "Unknown variables: mesh_prot: did you mean mesh_port?" in run.flat_output and "goes on" not in run.output


def test_foreign_names_can_be_allowed(tmp_path: Path) -> None:
    run = run_tasks(tmp_path, {"n1": {"mesh_prot": 51821, "cluster_unknown_variables": "ignore"}}, {}, TASKS)
    assert run.exit_status == 0, run.output

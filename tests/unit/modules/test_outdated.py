# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layer that was derived from a record that another run has changed since: the module finds out on the host."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from module_runs import read_result, start_module

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, generation
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_MODULES
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT

NAMES = sorted(name.rpartition(".")[2] for name in RECORD_MODULES)
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
#: What each module requires besides.
REQUIRED: dict[str, dict[str, Any]] = {
    "firewall": {"cluster": "lab"},
    "munge": {"cluster": "lab", "cluster_id": "0" * 32},
    "names": {"cluster": "lab"},
    "job_environment": {"cluster": "lab", "machine": "n2"},
    "slurm": {"cluster": "lab", "machine": "n2", "state": "absent"},
    "train": {"state": "absent"},
    "session": {"state": "absent"},
    "tracking": {"cluster": "lab", "machine": "n2", "state": "absent"},
    "wireguard": {"interface": "wg0"},
    "wireguard_rotation": {"interface": "wg0", "step": "prepare"},
    "wireguard_preshared": {"interface": "wg0", "machine": "n2"},
    "mesh_preload": {"state": "absent"},
}
#: Runs a module whose work only says that it was done.
PROGRAM = """
import importlib, sys
name = sys.argv.pop()
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
module = importlib.import_module("ansible_collections.gpumesh.cluster.plugins.modules." + name)
rooms = [getattr(module, room) for room in ("apply", "host_apply", "names_apply", "munge_apply") if hasattr(module, room)]
room = module if hasattr(module, "report") or not rooms else rooms[0]
function = "report" if hasattr(module, "report") else "work"
# Otherwise, the module would do its work on this machine.
getattr(room, function)
setattr(room, function, lambda *given: ModuleResult(True, {"worked": True}))
module.main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The records of n2, which has generation 2: another run has removed n3."""
    store = Store(str(tmp_path / "clusters"), "lab")
    apply.cluster_present(store, apply.ClusterRequest("10.0.0.0/24", "n1", {}, members=MEMBERS), "alice", False)
    apply.members_absent(store, ["n3"], None, False, False, "bob", False)
    return store.directory


def run(module: str, folder: str, record_generation: int, **options: Any) -> dict[str, Any]:
    derived_from = {"cluster": "lab", "generation": record_generation, "machine": "n2", "path": folder}
    arguments = {**REQUIRED.get(module, {}), **options, "derived_from": derived_from}
    return read_result(start_module(module, arguments, program=PROGRAM))


@pytest.mark.parametrize("module", NAMES)
def test_the_module_of_each_layer_changes_nothing_if_the_host_has_a_newer_record(module: str, folder: str) -> None:
    refused = run(module, folder, 1)
    assert refused.get("failed") and "worked" not in refused, refused
    assert (
        "n2 has generation 2 of the record of cluster 'lab' by now, and this run applies generation 1" in refused["msg"]
    )
    assert refused["msg"].endswith("Run it again.")
    assert refused["error"]["generation"] == 2


def test_the_same_an_older_or_no_record_is_accepted(folder: str, tmp_path: Path) -> None:
    assert run("names", folder, 2)["worked"]
    assert run("names", folder, 3)["worked"]
    assert run("names", str(tmp_path / "none"), 1)["worked"]
    Path(folder, "lab.json").write_text("{ damaged")
    assert run("names", folder, 1)["worked"]


def test_check_mode_is_not_refused(folder: str) -> None:
    assert run("names", folder, 1, _ansible_check_mode=True)["worked"]


def test_exactly_the_layer_modules_have_the_option() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "plugins/modules").glob("*.py")}
    assert sorted(name for name, text in texts.items() if re.search(r"\*\*DERIVED_OPTION", text)) == NAMES


def test_the_generation_is_found_within_the_beginning_of_the_longest_record() -> None:
    text = json.dumps(
        {"schema_version": 6, "id": "0" * 32, "name": "a" * 40, "generation": 10**9, "more": []}, indent=2
    )
    assert generation.parse_generation(text[: generation.HEAD_LENGTH]) == 10**9

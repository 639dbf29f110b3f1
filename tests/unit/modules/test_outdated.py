# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layer that was derived from a record that another run has changed since: the module finds out on the host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import apply, generation
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import LAYER_MODULES
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT

NAMES = sorted(name.rpartition(".")[2] for name in LAYER_MODULES)
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
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome
module = importlib.import_module("ansible_collections.gpumesh.cluster.plugins.modules." + name)
setattr(module, "report" if name == "ssh_trust" else "work", lambda *given: Outcome(True, {"worked": True}))
module.main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The records of n2, which has generation 2: another run has removed n3."""
    store = Store(str(tmp_path / "clusters"), "lab")
    apply.cluster_present(store, apply.ClusterRequest("10.0.0.0/24", "n1", {}, members=MEMBERS), "alice", False)
    apply.members_absent(store, ["n3"], None, False, False, "bob", False)
    return store.folder


def run(module: str, folder: str, used: int, **more: Any) -> dict[str, Any]:
    derived_from = {"cluster": "lab", "generation": used, "machine": "n2", "path": folder}
    given = {**REQUIRED.get(module, {}), **more, "derived_from": derived_from}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("module", NAMES)
def test_the_module_of_each_layer_changes_nothing_if_the_host_has_a_newer_record(module: str, folder: str) -> None:
    refused = run(module, folder, 1)
    assert refused.get("failed") and "worked" not in refused, refused
    assert (
        "n2 has generation 2 of the record of cluster 'lab' by now, and this run applies generation 1" in refused["msg"]
    )
    assert refused["msg"].endswith("Run it again.")
    assert refused["error"]["generation"] == 2


def test_the_same_or_an_older_record_or_none_is_no_reason(folder: str, tmp_path: Path) -> None:
    assert run("names", folder, 2)["worked"]
    assert run("names", folder, 3)["worked"]
    assert run("names", str(tmp_path / "none"), 1)["worked"]
    Path(folder, "lab.json").write_text("{ damaged")
    assert run("names", folder, 1)["worked"]


def test_what_changes_nothing_is_not_refused(folder: str) -> None:
    assert run("names", folder, 1, _ansible_check_mode=True)["worked"]


def test_these_are_the_modules_that_know_the_option() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "plugins/modules").glob("*.py")}
    assert sorted(name for name, text in texts.items() if re.search(r"\*\*DERIVED_OPTION", text)) == NAMES


def test_the_generation_is_found_however_long_the_values_before_it_are() -> None:
    text = json.dumps(
        {"schema_version": 6, "id": "0" * 32, "name": "a" * 40, "generation": 10**9, "more": []}, indent=2
    )
    assert generation.generation_in(text[: generation.BEGINNING]) == 10**9

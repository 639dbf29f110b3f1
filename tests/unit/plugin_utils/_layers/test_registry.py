# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of layers, and what must agree with it in other places."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleLookupError

from ansible_collections.gpumesh.cluster.plugins.lookup.layers import select_layers, select_planned
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster import claims
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_MODULES, role_options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.tests.changed import LAYERS_BY_SCENARIO

ROOT = Path(__file__).resolve().parents[4]
SCHEMA = ROOT / "plugins" / "plugin_utils" / "_checks" / "report" / "verdict.schema.json"
NAMES = [layer.name for layer in registry.LAYERS]


def names_of(*selections: str) -> list[str]:
    return [layer.name for selection in selections for layer in select_layers(selection)]


def test_a_run_enters_the_layers_of_its_plan_unless_one_of_them_changes_the_record() -> None:
    layer_plan = {"layers": ["mesh", "train"], "generation": 3}
    assert [layer.name for layer in select_planned(registry.LAYERS, layer_plan, 3)] == ["mesh", "train"]
    assert select_planned(registry.LAYERS, layer_plan, 4) == registry.LAYERS
    assert select_planned(registry.LAYERS, {"skipped": True}, 3) == registry.LAYERS, "site_plan=false"


def test_each_role_that_can_leave_is_a_layer() -> None:
    assert sorted(NAMES) == sorted(path.parents[1].name for path in ROOT.glob("roles/*/tasks/leave.yml"))
    assert len(set(NAMES)) == len(NAMES)


def test_all_layers_are_set_up_and_leave() -> None:
    assert names_of("network", "base", "optional", "scheduler") == NAMES
    assert sorted(names_of("leaving")) == sorted(NAMES)
    assert names_of("network")[0] == names_of("leaving")[-1] == "mesh"


def test_layers_leave_before_what_they_need() -> None:
    leaving = names_of("leaving")
    for layer, needed in (
        ("storage", "mesh"),
        ("storage", "ssh_trust"),
        ("munge", "job_environment"),
        ("session", "slurm"),
        ("slurm", "munge"),
        ("train", "slurm"),
        ("tracking", "storage"),
        ("firewall", "mesh"),
    ):
        assert leaving.index(layer) < leaving.index(needed), (layer, needed)


def test_remaining_members_lose_the_tunnel_to_a_removed_one_last() -> None:
    remaining = names_of("remaining")
    assert set(remaining) == {"mesh", "names", "firewall", "storage", "ssh_trust", "job_environment"}
    assert remaining[-1] == "mesh"


def test_an_unknown_selection_is_refused() -> None:
    with pytest.raises(AnsibleLookupError, match="no layers 'bases'"):
        names_of("bases")


def test_what_only_one_cluster_can_have_on_a_host_is_a_layer() -> None:
    assert {layer.claim for layer in registry.LAYERS if layer.claim} == set(claims.CLAIMABLE_LAYERS) <= set(NAMES)


def test_each_layer_that_compares_the_host_has_a_reader_there() -> None:
    derived_there = {layer.name for layer in registry.LAYERS if layer.given_parameters}
    assert derived_there == set(drift.DERIVERS) - {"wireguard"}
    compared = {
        layer.name for layer in registry.LAYERS if layer.desired_parameters or layer.further_parameters
    } | derived_there
    assert compared == set(drift.READERS) | {module.layer for module in drift.MODULES.values()}


def test_a_layer_that_can_be_left_out_is_compared_by_its_own_module() -> None:
    record: Any = {"storage": {"volumes": []}, "manager": "n1", "mesh": {"backend": "wireguard"}}
    left_out = {layer.name for layer in registry.LAYERS if not layer.repeats(record, ["n1"], [])}
    # What tracking runs is not compared: it is entered wherever it is in use.
    assert left_out - {"tracking"} == {module.layer for module in drift.MODULES.values()}


def test_each_module_of_a_layer_compares_the_generation_of_the_record() -> None:
    modules = {path.stem for path in (ROOT / "plugins" / "modules").glob("*.py")}
    assert {f"gpumesh.cluster.{name}" for name in modules & set(NAMES) - {"mesh"}} <= RECORD_MODULES


def test_the_schema_of_the_report_accepts_the_checks_of_each_layer() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    identifier = schema["properties"]["checks"]["items"]["properties"]["id"]["pattern"]
    titled_layers = [layer.name for layer in registry.LAYERS if layer.title]
    assert titled_layers
    assert [name for name in titled_layers if not re.fullmatch(identifier, f"{name}.login_2")] == []


def test_each_layer_is_proven_by_a_scenario() -> None:
    assert set(NAMES) <= frozenset().union(*LAYERS_BY_SCENARIO.values())


@pytest.mark.parametrize("layer", registry.LAYERS, ids=lambda layer: layer.name)
def test_the_options_of_a_layer_are_those_of_its_role(layer: registry.Layer) -> None:
    assert set(layer.options) <= set(role_options(layer.name))
    specification = yaml.safe_load(
        (ROOT / "roles" / layer.name / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    )
    assert {"main", "leave"} <= set(specification["argument_specs"])

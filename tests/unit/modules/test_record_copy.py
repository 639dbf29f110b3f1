# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that derive their parameters from the host's own copy of the record, if it is the one that is applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from module_runs import read_result, start_module

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import record_digest
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift, host_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import desired as firewall_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import desired as job_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import desired as mesh_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import desired as ssh_desired
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import desired as session_desired

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
LAYERS = {
    "names": {"machine": "n2"},
    "ssh_trust": {"machine": "n2", "users": ["root"], "port": 22},
    "job_environment": {
        "machine": "n2",
        "settings": {"port_range": [15000, 24999], "dialects": [], "tracking": {}, "variables": {"A": "1"}},
    },
}
#: What each module is given, and what derives the rest.
MODULES: dict[str, tuple[dict[str, Any], Any]] = {
    "names": ({"machine": "n2"}, host_names.derive_parameters),
    "firewall": ({"cluster": "lab"}, firewall_desired.derive_parameters),
    "ssh_trust": (LAYERS["ssh_trust"], ssh_desired.derive_parameters),
    "wireguard": (
        {"interface": "gpumesh0", "machine": "n2", "relays": [], "preshared": False, "absent_members": ["n3"]},
        mesh_desired.derive_parameters,
    ),
    "job_environment": (LAYERS["job_environment"], job_desired.derive_parameters),
    "session": ({"machine": "n2"}, session_desired.derive_parameters),
    "layer_info": ({"modules": LAYERS}, drift.derive_parameters),
}
#: Runs a module whose work returns its parameters.
PROGRAM = """
import importlib, sys
name = sys.argv.pop()
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
module = importlib.import_module("ansible_collections.gpumesh.cluster.plugins.modules." + name)
def work(given, *_more):
    return ModuleResult(False, {"worked_with": getattr(given, "params", given)})
room = next((getattr(module, room) for room in ("apply", "names_apply") if hasattr(module, room)), module)
place, function = (module, "report") if hasattr(module, "report") else (room, "work")
# Otherwise, the module would do its work on this machine.
getattr(place, function)
setattr(place, function, work)
module.main()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The copy of the record on n2."""
    store = Store(str(tmp_path / "clusters"), "lab")
    mesh = {"backend": "wireguard", "subnet": "10.99.0.0/16"}
    request = apply.ClusterRequest("10.0.0.0/24", "n1", mesh, members=MEMBERS)
    apply.cluster_present(store, request, "alice", False)
    return store


def run(module: str, record_copy: dict[str, Any]) -> dict[str, Any]:
    arguments = {**MODULES[module][0], "record_copy": record_copy}
    return read_result(start_module(module, arguments, program=PROGRAM))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_host_derives_what_the_controller_would_send(module: str, store: Store) -> None:
    record, (given, derive) = store.read(), MODULES[module]
    assert record is not None
    # The controller may have the keys in another order.
    digest = record_digest({key: record[key] for key in reversed(list(record))})
    result = run(module, {"cluster": "lab", "digest": digest, "path": store.directory})
    expected = json.loads(json.dumps(derive(record, given)))
    assert expected and {key: result["worked_with"][key] for key in expected} == expected, result


@pytest.mark.parametrize("module", sorted(MODULES))
@pytest.mark.parametrize("copy", ["another", "none", "damaged", "no object"])
def test_nothing_is_done_with_another_copy(module: str, copy: str, store: Store) -> None:
    record = store.read()
    assert record is not None
    digest, path = record_digest(record), Path(store.path)
    if copy == "another":
        digest = record_digest({**record, "generation": 7})
    elif copy == "none":
        path.unlink()
    else:
        path.write_text("{ damaged" if copy == "damaged" else "[]")
    result = run(module, {"cluster": "lab", "digest": digest, "path": store.directory})
    assert result["copy_differs"] and not result["changed"] and "worked_with" not in result

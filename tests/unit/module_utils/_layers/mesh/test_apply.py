# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a tunnel that differs from the record is described, and what a comparison says of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import apply

KEY, OTHER_KEY = "A" * 43 + "=", "B" * 43 + "="
PARAMETERS = {"interface": "gpumesh0", "public_key": KEY}
NO_PEERS: dict[str, list[str]] = {"added": [], "removed": [], "updated": []}
UNCHANGED = {"public_key": KEY, "interface_up": True, "boot": True, "peers": NO_PEERS}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, ""),
        ({"public_key": None, "interface_up": False}, drift.NOT_SET_UP),
        ({"interface_up": False}, "gpumesh0 is down"),
        ({"boot": False}, "gpumesh0 does not start at boot"),
        ({"public_key": OTHER_KEY}, "its key is not the one in the record"),
        ({"peers": {"added": ["n2"], "removed": [], "updated": ["n3"]}}, "would add n2, update n3"),
    ],
)
@pytest.mark.parametrize("changed", [False, True])
def test_a_tunnel_that_differs_is_described(
    monkeypatch: pytest.MonkeyPatch, changed: bool, state: dict[str, Any], words: str
) -> None:
    def work(_params: object, _check_mode: bool) -> ModuleResult:
        return ModuleResult(changed, {**UNCHANGED, **state}, "", "MTU = 1380\n", warnings=["x does not resolve"])

    monkeypatch.setitem(drift.MODULES, "wireguard", drift.MODULES["wireguard"]._replace(work=work))
    comparison = drift.compare_modules(run, {"wireguard": PARAMETERS})
    words = words or ("lacks 'MTU = 1380'" if changed else "")
    assert comparison.drift == ({"mesh": words} if words else {})
    assert comparison.warnings == ["x does not resolve"]


def test_parameters_that_do_not_follow_from_the_record_are_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_record: object, _params: object) -> dict[str, Any]:
        raise InputError("mesh_relays: n9 is not a member.", "Correct it.")

    monkeypatch.setitem(drift.DERIVERS, "wireguard", refuse)
    params = drift.derive_parameters({}, {"modules": {"wireguard": PARAMETERS, "storage": {"volumes": []}}})["modules"]
    assert params["storage"] == {"volumes": []}
    comparison = drift.compare_modules(run, {"wireguard": params["wireguard"]})
    assert comparison.drift == {"mesh": "mesh_relays: n9 is not a member"}


def test_a_comparison_that_waits_for_a_volume_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel that is down, perhaps on another host, is only repaired after it."""

    def work(_params: object, _check_mode: bool) -> ModuleResult:
        time.sleep(60)
        return ModuleResult(False, UNCHANGED)

    monkeypatch.setitem(drift.MODULES, "wireguard", drift.MODULES["wireguard"]._replace(work=work))
    comparison = drift.compare_in_time(run, {"wireguard": PARAMETERS, "tracking": {}}, 0.5)
    assert comparison.drift == dict.fromkeys(("mesh", "tracking"), "could not be compared: no answer within 0.5 s")


def test_a_comparison_in_time_returns_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_params: object, _check_mode: bool) -> ModuleResult:
        return ModuleResult(True, UNCHANGED, "", "MTU = 1380\n", warnings=["x does not resolve"])

    monkeypatch.setitem(drift.MODULES, "wireguard", drift.MODULES["wireguard"]._replace(work=work))
    assert drift.compare_in_time(run, {"wireguard": PARAMETERS}, 60) == drift.compare_modules(
        run, {"wireguard": PARAMETERS}
    )


def test_a_key_that_the_record_lacks_is_a_difference() -> None:
    found = apply.describe_differences({**PARAMETERS, "public_key": None}, UNCHANGED)
    assert found.messages == ["its key is not the one in the record"]

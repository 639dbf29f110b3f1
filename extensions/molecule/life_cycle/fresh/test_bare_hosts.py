# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before the first run: remember what the hosts are, for the comparison after the last one."""

from __future__ import annotations

import json

import host_state
from lab_hosts import Lab


def test_bare_hosts_are_remembered() -> None:
    lab = Lab("molecule-life_cycle")
    before = {host: host_state.read(lab, host) for host in ("l1", "l2", "l3")}
    assert not any(host_state.differences(state, state) for state in before.values())
    assert "/var/lib/gpumesh" not in before["l1"]["files"]
    (lab.inventory.parent / "before.json").write_text(json.dumps(before), encoding="utf-8")

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of handshakes, with a peer whose tunnel nobody has used and with one that is gone."""

from __future__ import annotations

import json
import sys
from typing import Any

from tunnel_pair import End, Pair

PROGRAM = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import handshakes
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.run import CheckContext, run_selected_checks
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
asked = json.load(sys.stdin)
handshakes.HANDSHAKE_TIMEOUT = asked.pop("patience", handshakes.HANDSHAKE_TIMEOUT)
json.dump(run_selected_checks(CheckContext(ExpectedState(**asked), Tree(), run), "a", ["mesh.handshake"])[0], sys.stdout)
"""


def check(end: End, **more: Any) -> Any:
    asked = {"mesh_interface": end.interface, "mesh_peers": {"b": end.peer["public_key"]}, **more}
    return json.loads(end.run(sys.executable, "-c", PROGRAM, stdin=json.dumps(asked)))


def test_a_tunnel_that_nobody_has_used_for_long_is_used_before_it_is_judged(pair: Pair) -> None:
    a, b = pair
    for end in pair:
        # WireGuard forgets the session, and its time, with the peer.
        shown = end.run("wg", "showconf", end.interface)
        end.run("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
        end.run("wg", "addconf", end.interface, "/dev/stdin", stdin=shown[shown.index("[Peer]") :])
    assert a.run("wg", "show", a.interface, "latest-handshakes").split()[1:] in (["0"], [])
    found = check(a)
    assert (found["status"], found["actual"], found["required"]) == ("pass", 1, 1), found
    b.run("ip", "link", "delete", b.interface)
    # The session of before is over at once.
    found = check(a, patience=2.0, max_handshake_age_s=0.0)
    assert found["status"] == "fail" and "no recent handshake with b (" in found["reason"], found

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of handshakes, with a peer whose tunnel nobody has used and with one that is gone."""

from __future__ import annotations

import json
import sys
from typing import Any

from tunnel_pair import TunnelEnd, TunnelPair

CHECK_PROGRAM = """
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


def run_handshake_check(end: TunnelEnd, **extra_inputs: Any) -> Any:
    inputs = {"mesh_interface": end.interface, "mesh_peers": {"b": end.peer["public_key"]}, **extra_inputs}
    return json.loads(end.run_command(sys.executable, "-c", CHECK_PROGRAM, stdin=json.dumps(inputs)))


def test_idle_tunnel_is_used_before_it_is_judged(pair: TunnelPair) -> None:
    a, b = pair
    for end in pair:
        # WireGuard forgets the session, and its time, with the peer.
        configuration = end.run_command("wg", "showconf", end.interface)
        end.run_command("wg", "set", end.interface, "peer", end.peer["public_key"], "remove")
        end.run_command(
            "wg", "addconf", end.interface, "/dev/stdin", stdin=configuration[configuration.index("[Peer]") :]
        )
    assert a.run_command("wg", "show", a.interface, "latest-handshakes").split()[1:] in (["0"], [])
    check_result = run_handshake_check(a)
    assert (check_result["status"], check_result["actual"], check_result["required"]) == ("pass", 1, 1), check_result
    b.run_command("ip", "link", "delete", b.interface)
    # The session of before is over at once.
    check_result = run_handshake_check(a, patience=2.0, max_handshake_age_s=0.0)
    assert check_result["status"] == "fail" and "no recent handshake with b (" in check_result["reason"], check_result

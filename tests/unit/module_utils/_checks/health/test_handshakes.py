# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of wg about its peers, and the judgement. tests/integration/mesh has real tunnels."""

from __future__ import annotations

import time

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import handshakes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult


def test_silent_peer_is_named() -> None:
    ages = {"keyA=": 50.0, "keyB=": None, "keyC=": 650.0}
    peers = {"n1": "keyA=", "n2": "keyB=", "n3": "keyC=", "n4": "keyD="}
    judged = handshakes.judge_handshakes(ages, peers, 180, "gpumesh0")
    assert (judged.status, judged.actual, judged.required) == ("fail", 1, 4)
    assert judged.reason == "gpumesh0 has no handshake with n2, n4 and no recent handshake with n3 (650 s ago)."
    assert handshakes.judge_handshakes(ages, {"n1": "keyA="}, 180, "gpumesh0").status == "pass"


def test_first_address_of_a_peer_is_used() -> None:
    text = "keyA=\t10.98.0.2/32 10.98.0.3/32\nkeyB=\tfd00::2/128\nkeyC=\t(none)\n"
    assert handshakes.parse_addresses(text) == {"keyA=": "10.98.0.2", "keyB=": "fd00::2"}


def test_handshake_that_expires_during_the_wait_still_counts() -> None:
    now = int(time.time())
    wg_output = [f"keyA=\t{now - 179}\nkeyB=\t{now - 400}\nkeyC=\t0\nkeyE=\tsoon\n"]

    def run(argv: list[str], **_options: object) -> CommandResult:
        if argv[-1] == "allowed-ips":
            wg_output.append(f"keyA=\t{now - 230}\nkeyB=\t{now}\nkeyC=\t{now}\n")
            return CommandResult(0, "", "")
        return CommandResult(0, wg_output[-1], "")

    ages = handshakes.read_handshake_ages(run, "gpumesh0", ["keyA=", "keyB=", "keyC="], 180.5)
    assert (
        handshakes.judge_handshakes(ages, {"n1": "keyA=", "n2": "keyB=", "n3": "keyC="}, 180.5, "gpumesh0").status
        == "pass"
    )

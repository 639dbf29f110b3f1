# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of wg about its peers, and the judgement. tests/integration/mesh has real tunnels."""

from __future__ import annotations

import time

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import handshakes


def test_who_is_silent_is_named() -> None:
    ages = {"keyA=": 50.0, "keyB=": None, "keyC=": 650.0}
    peers = {"n1": "keyA=", "n2": "keyB=", "n3": "keyC=", "n4": "keyD="}
    judged = handshakes.judge(ages, peers, 180, "gpumesh0")
    assert (judged.status, judged.actual, judged.required) == ("fail", 1, 4)
    assert judged.reason == "gpumesh0 has no handshake with n2, n4 and no recent handshake with n3 (650 s ago)."
    assert handshakes.judge(ages, {"n1": "keyA="}, 180, "gpumesh0").status == "pass"


def test_the_first_address_of_a_peer_is_dialled() -> None:
    text = "keyA=\t10.98.0.2/32 10.98.0.3/32\nkeyB=\tfd00::2/128\nkeyC=\t(none)\n"
    assert handshakes.parse_addresses(text) == {"keyA=": "10.98.0.2", "keyB=": "fd00::2"}


def test_one_that_grows_old_while_others_are_waited_for_was_young_when_it_was_read() -> None:
    now = int(time.time())
    said = [f"keyA=\t{now - 179}\nkeyB=\t{now - 400}\nkeyC=\t0\nkeyE=\tsoon\n"]

    def run(argv: list[str], **_options: object) -> Completed:
        if argv[-1] == "allowed-ips":
            said.append(f"keyA=\t{now - 230}\nkeyB=\t{now}\nkeyC=\t{now}\n")
            return Completed(0, "", "")
        return Completed(0, said[-1], "")

    ages = handshakes.read(run, "gpumesh0", ["keyA=", "keyB=", "keyC="], 180.5)
    assert handshakes.judge(ages, {"n1": "keyA=", "n2": "keyB=", "n3": "keyC="}, 180.5, "gpumesh0").status == "pass"

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What wg says of its peers, and what follows. Real tunnels are in tests/integration/mesh."""

from __future__ import annotations

import time

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import handshakes


def test_who_is_silent_is_named() -> None:
    shown = handshakes.Shown(handshakes.parse_handshakes("keyA=\t1000\nkeyB=\t0\nkeyC=\t400\nkeyE=\tsoon\n"), 1050)
    peers = {"n1": "keyA=", "n2": "keyB=", "n3": "keyC=", "n4": "keyD="}
    judged = handshakes.judge(shown, peers, 180, "gpumesh0")
    assert (judged.status, judged.actual, judged.required) == ("fail", 1, 4)
    assert judged.reason == "gpumesh0 has no handshake with n2, n4 and no recent handshake with n3 (650 s ago)."
    assert handshakes.judge(shown, {"n1": "keyA="}, 180, "gpumesh0").status == "pass"


def test_the_first_address_of_a_peer_is_dialled() -> None:
    text = "keyA=\t10.98.0.2/32 10.98.0.3/32\nkeyB=\tfd00::2/128\nkeyC=\t(none)\n"
    assert handshakes.parse_addresses(text) == {"keyA=": "10.98.0.2", "keyB=": "fd00::2"}


def test_one_that_grows_old_while_it_is_judged_was_young_when_it_was_read() -> None:
    now = time.time()

    def run(_argv: list[str], **_options: object) -> Completed:
        return Completed(0, f"keyA=\t{int(now) - 179}\n", "")

    shown = handshakes.read(run, "gpumesh0", ["keyA="], 180.5)
    time.sleep(2)
    assert handshakes.judge(shown, {"n1": "keyA="}, 180.5, "gpumesh0").status == "pass"

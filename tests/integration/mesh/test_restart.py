# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host whose tunnel starts anew, as after a reboot, while its peers have a session with it that it knows no more."""

from __future__ import annotations

from tunnel_pair import Pair


def test_a_peer_reaches_a_restarted_host_within_seconds(pair: Pair) -> None:
    """Without a greeting it would send into the old session until it gives it up, 15 seconds later."""
    a, b = pair
    conf = b.ask("present")["conf"]
    b.run("ip", "link", "delete", b.interface)
    b.run("wg-quick", "up", conf)
    # Until the first reply. Fails if there is none by then.
    a.run("ping", "-c", "1", "-w", "12", b.address)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host whose tunnel starts anew, as after a reboot, while its peers have a session with it that it knows no more."""

from __future__ import annotations

from tunnel_pair import TunnelPair


def test_peer_reaches_a_restarted_host_within_seconds(pair: TunnelPair) -> None:
    """The peer would send into the old session for 15 seconds if the host did not trigger a handshake."""
    a, b = pair
    conf = b.run_module("present")["conf"]
    b.run_command("ip", "link", "delete", b.interface)
    b.run_command("wg-quick", "up", conf)
    # The command ends with the first reply, and fails if there is none by then.
    a.run_command("ping", "-c", "1", "-w", "12", b.address)

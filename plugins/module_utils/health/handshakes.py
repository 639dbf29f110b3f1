# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether handshakes with each WireGuard peer still work.

An unused tunnel makes no handshakes, and in a large cluster minutes pass between the probes and this check. So age
alone proves nothing: peers whose session has expired are first sent a datagram, which triggers a handshake.
"""

from __future__ import annotations

import contextlib
import ipaddress
import time
from typing import Dict, Iterable, List, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import Judgement, failed, passed
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.knock import knock
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number

#: Seconds. WireGuard retries every 5 s, and a busy host may need more than one attempt.
PATIENCE = 20.0
_SPACING = 0.5
_TIMEOUT = 5.0


def parse_handshakes(text: str) -> Dict[str, int]:
    """Seconds since 1970 by public key, from ``wg show IF latest-handshakes``; 0 for never."""
    found: Dict[str, int] = {}
    for line in text.splitlines():
        fields = line.split()
        at = whole_number(fields[1]) if len(fields) == 2 else None
        if at is not None:
            found[fields[0]] = at
    return found


def parse_addresses(text: str) -> Dict[str, str]:
    """The first address of each peer by public key, from ``wg show IF allowed-ips``. Peers without one are omitted."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split()
        # "(none)" stands for no address.
        with contextlib.suppress(ValueError, IndexError):
            found[fields[0]] = str(ipaddress.ip_interface(fields[1]).ip)
    return found


def read(run: Runner, interface: str, keys: Iterable[str], max_age_s: float) -> Dict[str, Optional[float]]:
    """Seconds since the last handshake by public key, None for never, after new handshakes were triggered where needed.

    Each peer counts with its age when it was first seen to be good, since it grows older while others are waited for.
    """
    ages = _ages(run, interface, keys)
    old = _old(ages, max_age_s)
    if old:
        addresses = parse_addresses(run(["wg", "show", interface, "allowed-ips"], timeout=_TIMEOUT).stdout)
        knock(addresses[key] for key in old if key in addresses)
        ends = time.monotonic() + PATIENCE
        while old and time.monotonic() < ends:
            time.sleep(_SPACING)
            ages.update(_ages(run, interface, old))
            old = _old(ages, max_age_s)
    return ages


def _ages(run: Runner, interface: str, keys: Iterable[str]) -> Dict[str, Optional[float]]:
    latest = parse_handshakes(run(["wg", "show", interface, "latest-handshakes"], timeout=_TIMEOUT).stdout)
    now = time.time()
    return {key: now - latest[key] if latest.get(key) else None for key in keys}


def _old(ages: Mapping[str, Optional[float]], max_age_s: float) -> List[str]:
    return [key for key, age in ages.items() if age is None or age > max_age_s]


def judge(ages: Mapping[str, Optional[float]], peers: Mapping[str, str], max_age_s: float, interface: str) -> Judgement:
    """Judge whether each peer has a handshake that is recent enough for a valid session.

    ``peers``: public keys by machine.
    """
    never, old = [], []
    for machine, key in sorted(peers.items()):
        age = ages.get(key)
        if age is None:
            never.append(machine)
        elif age > max_age_s:
            old.append(f"{machine} ({age:.0f} s ago)")
    good = len(peers) - len(never) - len(old)
    if good == len(peers):
        return passed(good, len(peers), "peers")
    parts = [f"no handshake with {', '.join(never)}"] if never else []
    parts += [f"no recent handshake with {', '.join(old)}"] if old else []
    return failed(
        good,
        len(peers),
        f"{interface} has {' and '.join(parts)}.",
        "Check that the UDP port of the endpoint is open, then run the mesh playbook.",
        "peers",
    )

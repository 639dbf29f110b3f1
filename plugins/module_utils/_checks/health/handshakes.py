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

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import Judgement, failed, passed
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names, parse_whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.handshake_trigger import trigger_handshake

#: Seconds. WireGuard retries every 5 s, and a busy host may need more than one attempt.
HANDSHAKE_TIMEOUT = 20.0
_POLL_INTERVAL = 0.5
_COMMAND_TIMEOUT = 5.0


def parse_handshakes(wg_output: str) -> Dict[str, int]:
    """Seconds since 1970 by public key, from ``wg show IF latest-handshakes``; 0 for never."""
    time_by_key: Dict[str, int] = {}
    for line in wg_output.splitlines():
        fields = line.split()
        at = parse_whole_number(fields[1]) if len(fields) > 1 else None
        if at is not None:
            time_by_key[fields[0]] = at
    return time_by_key


def parse_addresses(wg_output: str) -> Dict[str, str]:
    """The first address of each peer by public key, from ``wg show IF allowed-ips``. Peers without one are omitted."""
    address_by_key: Dict[str, str] = {}
    for line in wg_output.splitlines():
        fields = line.split()
        # "(none)" stands for no address.
        with contextlib.suppress(ValueError, IndexError):
            address_by_key[fields[0]] = str(ipaddress.ip_interface(fields[1]).ip)
    return address_by_key


def read_handshake_ages(
    run_command: Runner, interface_name: str, keys: Iterable[str], max_age_s: float
) -> Dict[str, Optional[float]]:
    """Seconds since the last handshake by public key, None for never, after new handshakes were triggered where needed.

    Each peer counts with its age when it was first seen to be good, since it grows older while others are waited for.
    """
    age_by_key = _query_ages(run_command, interface_name, keys)
    expired_keys = _find_expired(age_by_key, max_age_s)
    if expired_keys:
        addresses = parse_addresses(
            run_command(["wg", "show", interface_name, "allowed-ips"], timeout=_COMMAND_TIMEOUT).stdout
        )
        trigger_handshake(addresses[key] for key in expired_keys if key in addresses)
        deadline = time.monotonic() + HANDSHAKE_TIMEOUT
        while expired_keys and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            age_by_key.update(_query_ages(run_command, interface_name, expired_keys))
            expired_keys = _find_expired(age_by_key, max_age_s)
    return age_by_key


def _query_ages(run: Runner, interface: str, keys: Iterable[str]) -> Dict[str, Optional[float]]:
    latest = parse_handshakes(run(["wg", "show", interface, "latest-handshakes"], timeout=_COMMAND_TIMEOUT).stdout)
    current_time = time.time()
    return {key: current_time - latest[key] if latest.get(key) else None for key in keys}


def _find_expired(ages: Mapping[str, Optional[float]], max_age_s: float) -> List[str]:
    return [key for key, age in ages.items() if age is None or age > max_age_s]


def judge_handshakes(
    ages: Mapping[str, Optional[float]], key_by_machine: Mapping[str, str], max_age_s: float, interface_name: str
) -> Judgement:
    """Judge whether each peer has a handshake that is recent enough for a valid session.

    ``key_by_machine``: public keys by machine.
    """
    silent_machines, expired_machines = [], []
    for machine, key in sorted(key_by_machine.items()):
        age = ages.get(key)
        if age is None:
            silent_machines.append(machine)
        elif age > max_age_s:
            expired_machines.append(f"{machine} ({age:.0f} s ago)")
    good_count = len(key_by_machine) - len(silent_machines) - len(expired_machines)
    if good_count == len(key_by_machine):
        return passed(good_count, len(key_by_machine), "peers")
    parts = [f"no handshake with {', '.join(silent_machines)}"] if silent_machines else []
    parts += [f"no recent handshake with {', '.join(expired_machines)}"] if expired_machines else []
    return failed(
        good_count,
        len(key_by_machine),
        f"{interface_name} has {join_names(parts)}.",
        "Check that the UDP port of the endpoint is open, then run the mesh playbook.",
        "peers",
    )

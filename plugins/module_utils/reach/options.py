# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that both modules have, and their ranges. Values outside of them would look like faults of the network."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.protocol import PAYLOAD_LIMIT

#: The servers of iperf3 and perftest end after 60 s, and need some of these to start.
LONGEST_MEASUREMENT = 50

#: Documented in the fragment ``gpumesh.cluster.reachability.host``.
HOST: Dict[str, Any] = {
    "members": {"type": "raw"},
    "layer": {"type": "str", "choices": ["mesh", "subnet"], "default": "mesh"},
    "run": {"type": "str"},
    "token": {"type": "str", "no_log": True},
    "machine": {"type": "str"},
    "address": {"type": "str"},
    "interface": {"type": "str"},
    "ports": {"type": "list", "elements": "int", "default": [22, 2049, 6817, 6818]},
}

_OF_PROBER = {
    "timeout": (0.1, 3600),
    "payload_bytes": (0, PAYLOAD_LIMIT),
    "throughput_seconds": (0, LONGEST_MEASUREMENT),
}
#: A lifetime of 0 would be none to the kernel, which counts it as a 32-bit number.
_OF_LISTENER = {"lifetime": (1, (1 << 31) - 1), "sample_count": (0, 65535)}


def check_prober(params: Mapping[str, Any]) -> None:
    """Raises InputError for an option of the module reachability outside of its range."""
    _check(params, _OF_PROBER)


def check_listener(params: Mapping[str, Any]) -> None:
    """The same for the module reachability_listener."""
    _check(params, _OF_LISTENER)


def _check(params: Mapping[str, Any], ranges: Mapping[str, Any]) -> None:
    for option, (least, most) in ranges.items():
        # Also false for what is not a number.
        if not least <= params[option] <= most:
            raise InputError(
                f"{option} is {params[option]}, which is not from {least} to {most}.",
                f"Set {option} to a number in this range.",
                option=option,
            )

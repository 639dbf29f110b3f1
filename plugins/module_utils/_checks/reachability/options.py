# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that both modules have, and their ranges. Values outside of these would look like network faults."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.protocol import PAYLOAD_LIMIT
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

#: The servers of iperf3 and perftest end after 60 s, and need some of these to start.
MAX_MEASUREMENT_SECONDS = 50

#: Documented in the fragment ``gpumesh.cluster.reachability.host``.
HOST_OPTIONS: Dict[str, Any] = {
    "members": {"type": "raw"},
    "layer": {"type": "str", "choices": ["mesh", "subnet"], "default": "mesh"},
    "run": {"type": "str"},
    "token": {"type": "str", "no_log": True},
    "machine": {"type": "str"},
    "address": {"type": "str"},
    "interface": {"type": "str"},
    "ports": {"type": "list", "elements": "int", "default": [22, 2049, 6817, 6818]},
}

_PROBER_RANGES = {
    "timeout": (0.1, 3600),
    "payload_bytes": (0, PAYLOAD_LIMIT),
    "throughput_seconds": (0, MAX_MEASUREMENT_SECONDS),
}
#: A lifetime of 0 would be none to the kernel, which counts it as a 32-bit number.
_LISTENER_RANGES = {"lifetime": (1, (1 << 31) - 1), "sample_count": (0, 65535)}


def check_prober_options(module_params: Mapping[str, Any]) -> None:
    """Check the ranges of the options of the module reachability. Raises InputError."""
    _check_ranges(module_params, _PROBER_RANGES)


def check_listener_options(module_params: Mapping[str, Any]) -> None:
    """Check the ranges of the options of the module reachability_listener. Raises InputError."""
    _check_ranges(module_params, _LISTENER_RANGES)


def _check_ranges(module_params: Mapping[str, Any], ranges: Mapping[str, Any]) -> None:
    for option, (minimum, maximum) in ranges.items():
        # This comparison is also false for what is not a number.
        if not minimum <= module_params[option] <= maximum:
            raise InputError(
                f"{option} is {module_params[option]}, which is not from {minimum} to {maximum}.",
                f"Set {option} to a number in this range.",
                option=option,
            )

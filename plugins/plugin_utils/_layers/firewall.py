# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports that the firewall of a member restricts: those of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer, Ports


def given_parameters(options: Mapping[str, Any], layer_ports: Sequence[Ports]) -> dict[str, Any]:
    """Return the parameters of the module firewall that the members of the record do not decide.

    ``options``: those of the task. ``layer_ports``: the ports of each layer.
    """
    return {
        **options,
        "tcp_ports": [*(options.get("tcp_ports") or []), *(port for ports in layer_ports for port in ports.tcp)],
        "udp_ports": [*(options.get("udp_ports") or []), *(port for ports in layer_ports for port in ports.udp)],
        "open_udp_ports": [
            *(options.get("open_udp_ports") or []),
            *(port for ports in layer_ports for port in ports.open_udp),
        ],
    }


LAYER = Layer("firewall", BASE, options=("firewall_enabled",), lists_members=True)

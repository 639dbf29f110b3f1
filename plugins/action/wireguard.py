# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard, whose documentation is in the module of the same name.

With a cluster record, it derives the tunnel of the host, and installs missing packages.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.options import RECORD_OPTIONS, TUNNEL_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.mesh_host import WIREGUARD, places, set_up_tunnel


class ActionModule(HostAction):
    """Runs the module, and again after installing what it needs."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({**RECORD_OPTIONS, **TUNNEL_OPTIONS})
        record = self.named(given.pop("record", None))
        if record is None:
            return self.module(WIREGUARD, {**places(self), **given})
        return set_up_tunnel(self, record, options, given)

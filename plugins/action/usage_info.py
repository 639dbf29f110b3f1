# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of usage_info, which is documented with the module."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.host_module import HostModule


class ActionModule(HostModule):
    """Runs the module."""

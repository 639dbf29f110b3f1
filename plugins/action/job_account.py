# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of job_account. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction

_MODULE = "gpumesh.cluster.job_account"


class ActionModule(HostAction):
    """Looks whether the inventory allows such accounts, and otherwise at the account on the host."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            user={"type": "str", "default": ""},
            option={"type": "str", "required": True},
        )
        if boolean(self.inventory_variable(given["option"], False), strict=False):
            return {"changed": False, "user": given["user"]}
        return self.module(_MODULE, given)

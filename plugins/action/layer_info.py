# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of layer_info. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.drift import questions


class ActionModule(HostAction):
    """Derives from the record what the layers have on the host, and has it compared there."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.arguments(record=RECORD)
        return self.module(
            "gpumesh.cluster.layer_info",
            questions(
                self.record(),
                self.machine,
                ssh_users=self.option("ssh_trust", "users"),
                ssh_port=int(self.option("ssh_trust", "port")),
                serves_volumes=self.option("storage", "backend") == "nfs",
                accounting=boolean(self.option("slurm", "accounting")),
                volume_server=self.option("storage", "server"),
            ),
        )

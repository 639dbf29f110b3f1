# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module interface_info, as Ansible would by itself; its documentation is there.

Ansible looks an action up in the process that forks its workers, and plays begin with this one: so it has the filters
loaded there.
"""

from __future__ import annotations

from ansible.plugins.action.normal import ActionModule as RunModule

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.ready import load_filters

load_filters()


class ActionModule(RunModule):
    """Runs the module."""

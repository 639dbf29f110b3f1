# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module interface_info, and reports why a host does not answer. Its documentation is in the module.

Ansible looks an action up in the process that forks its workers, and plays begin with this one, so it loads the filters
there.
"""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.plugin_preload import load_plugins
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.examined import ExaminedModule

load_plugins()


class ActionModule(ExaminedModule):
    """Runs the module."""

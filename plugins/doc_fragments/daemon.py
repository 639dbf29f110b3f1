# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that modules with daemons under supervisord share, as in module_utils/_core/service.py."""

    DOCUMENTATION = r"""
options:
  supervisor_config:
    description: The configuration file of supervisord. Can also be set by the host variable C(daemon_supervisor_config).
    type: path
    default: /etc/supervisor/supervisord.conf
  supervisor_programs:
    description:
      - The directory from which this configuration includes programs. Can also be set by the host variable
        C(daemon_supervisor_programs).
    type: path
    default: /etc/supervisor/conf.d
"""

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options that are set by actions of modules that install programs, as in module_utils/_core/push.py."""

    DOCUMENTATION = r"""
options:
  digests:
    description: The digests of the programs to install, by name. Set on the controller.
    type: dict
    default: {}
  contents:
    description: The sources that differ on the host, by name, compressed. Set on the controller.
    type: dict
    default: {}
"""

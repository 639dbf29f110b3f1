# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The note of each module that only the roles of this collection call."""

    DOCUMENTATION = r"""
options: {}
notes:
  - Internal to this collection, whose roles call it. Its name, options and results may change in any release.
"""

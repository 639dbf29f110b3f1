# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """Which interfaces count where a shared subnet is looked for."""

    DOCUMENTATION = r"""
options:
  prefer:
    description:
      - Patterns of interface names to prefer. A subnet that uses such interfaces on all hosts comes first, and a host with
        several interfaces in a subnet uses such a one.
    type: list
    elements: str
    default: []
  exclude:
    description: Patterns of interface names to ignore, in addition to those of container runtimes and hypervisors.
    type: list
    elements: str
    default: []
  include:
    description: Patterns of interface names to use even if they look like those of a container runtime or are bridges
      without a physical port.
    type: list
    elements: str
    default: []
"""

#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Install packages, and complete an interrupted installation
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Completes what C(dpkg) has left unfinished, for example after a power failure, and then installs packages with the
    package manager of the host. Services are not started.
  - In check mode, a change is reported whenever this runs.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  name:
    description: The packages.
    type: list
    elements: str
    default: []
  refresh:
    description: Whether to fetch the lists of packages even if they are recent, for example after a repository was
      added.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Complete an interrupted installation
  gpumesh.cluster.packages:
  when: cluster_info.unfinished | length > 0
"""

RETURN = r"""
packages:
  description: The packages that are installed, or would be.
  type: list
  elements: str
  returned: success
  sample: [tailscale]
"""

# The work is done by the action plugin of the same name.

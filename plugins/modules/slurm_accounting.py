#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_accounting
short_description: Manage Slurm's accounting database in MariaDB
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Creates, saves and deletes the database of slurmdbd on the manager, with the modules of C(community.mysql) and
    M(gpumesh.cluster.slurm_database).
  - Installs MariaDB if it is missing, and runs it while the database is changed.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: none
    details:
      - A diff would contain the whole database.
  idempotent:
    support: partial
    details:
      - V(saved) saves the accounting on every run. V(stopped) and V(absent) start MariaDB if it does not run, and stop
        it again.
options:
  state:
    description:
      - V(present) creates the database and its account C(slurm), which needs no password on the socket, and loads the
        accounting saved by a former manager.
      - V(saved) writes the accounting to a file next to the queue.
      - V(stopped) stops MariaDB, unless it has other databases. V(absent) deletes the database and its account first.
    type: str
    choices: [present, saved, stopped, absent]
    default: present
"""

EXAMPLES = r"""
- name: Create the database of slurmdbd
  gpumesh.cluster.slurm_accounting:

- name: Save the accounting on the former manager
  gpumesh.cluster.slurm_accounting:
    state: saved
  delegate_to: n1
"""

RETURN = r"""
socket:
  description: The socket on which MariaDB listens, unless it was stopped.
  type: str
  returned: success
"""

# The work is done by the action plugin of the same name.

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: jobs_in_words
short_description: Slurm jobs as people speak of them
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the number, user, name and nodes of each job in a few words.
positional: nodes
options:
  _input:
    description: The C(jobs) that M(gpumesh.cluster.slurm_info) returns.
    type: list
    elements: dict
    required: true
  nodes:
    description: Only jobs that have one of these nodes. Without it all.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Say who computes
  ansible.builtin.debug:
    msg: "{{ slurm.jobs | gpumesh.cluster.jobs_in_words(['n2']) | join(', ') }}"

# 17 of alice (train on n2, n3)
"""

RETURN = r"""
_value:
  description: A text for each job.
  type: list
  elements: str
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any


def jobs_in_words(jobs: Sequence[Mapping[str, Any]], nodes: Collection[str] | None = None) -> list[str]:
    """See DOCUMENTATION."""
    return [
        f"{job['id']} of {job['user']} ({job['name']} on {', '.join(job['nodes'])})"
        for job in jobs
        if nodes is None or set(job["nodes"]) & set(nodes)
    ]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"jobs_in_words": jobs_in_words}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: sent_records
short_description: The cluster records that hosts have sent whole
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives each record once, by its digest, which is worked out here. What is no record is left out.
positional: earlier
options:
  _input:
    description: Results of M(gpumesh.cluster.cluster_info).
    type: list
    elements: dict
    required: true
  earlier:
    description: The records that were sent before, as this filter has given them.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Keep the records that were sent
  ansible.builtin.set_fact:
    records: "{{ held.results | gpumesh.cluster.sent_records }}"
"""

RETURN = r"""
_value:
  description: The records by digest.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import sent


def sent_records(
    results: Sequence[Mapping[str, Any]], earlier: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    return sent(results, earlier or {})


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"sent_records": sent_records}

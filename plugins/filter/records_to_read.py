# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: records_to_read
short_description: Whom to ask for the cluster records that hosts have told of and not sent
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Each record is asked of one of those who hold it.
positional: records
options:
  _input:
    description: The result of M(gpumesh.cluster.cluster_info) of each host, by inventory hostname.
    type: dict
    required: true
  records:
    description:
      - The records that any host has sent whole, by digest, as P(gpumesh.cluster.sent_records#filter) gives them. Of the
        others a host tells the digest alone.
    type: dict
    default: {}
  names:
    description: The clusters whose records are wanted. When not given, those of all are.
    type: list
    elements: str
  machines:
    description: The machines whose copies are wanted. When not given, those of all are.
    type: list
    elements: str
  asked:
    description: What this filter has given before. What was asked and has not come is asked of two others.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read each record once
  gpumesh.cluster.cluster_info:
    whole: "{{ item.whole }}"
  loop: "{{ told | gpumesh.cluster.records_to_read }}"
  delegate_to: "{{ item.machine }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - Each host to ask as C(machine), with C(whole), the names of the clusters whose records are wanted of it, and
      C(digests), those that the records are to have.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Request, to_read


def records_to_read(
    results: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    names: Sequence[str] | None = None,
    machines: Sequence[str] | None = None,
    asked: Sequence[Mapping[str, Any]] = (),
) -> list[Request]:
    """See DOCUMENTATION."""
    return to_read(results, records or {}, names, machines, asked)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"records_to_read": records_to_read}

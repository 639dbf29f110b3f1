# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ssh_refusals
short_description: Why users could not log in to a host by key
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Compares the users with the accounts and the SSH server's settings of a host.
positional: users
options:
  _input:
    description: What M(gpumesh.cluster.ssh_trust_info) has returned for the host.
    type: dict
    required: true
  users:
    description: The accounts that are to be trusted.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse a host that would not let the users in
  ansible.builtin.assert:
    that: ssh_trust_host | gpumesh.cluster.ssh_refusals(['root']) | length == 0
"""

RETURN = r"""
_value:
  description: The reasons, each with its remedy. Empty when nothing is in the way.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import ssh_trust
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def ssh_refusals(found: Mapping[str, Any], users: Sequence[str]) -> list[str]:
    """See DOCUMENTATION."""
    return [printable(reason) for reason in ssh_trust.refusals(users, found)]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"ssh_refusals": ssh_refusals}

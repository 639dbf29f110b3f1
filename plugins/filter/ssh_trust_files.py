# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ssh_trust_files
short_description: The files of a host by which a cluster's members trust each other
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives what M(gpumesh.cluster.file_set) is to see to on a host, such that its users can log in to every member, with
    verified host keys and without a prompt, and theirs to it.
  - Who has a key on the host and is not among O(users) any more, loses it.
positional: users, found, port
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  users:
    description: The accounts that are trusted. None ends the trust.
    type: list
    elements: str
    required: true
  found:
    description: What M(gpumesh.cluster.ssh_trust_info) has returned for the host.
    type: dict
    required: true
  port:
    description: The TCP port of the members' SSH servers.
    type: int
    default: 22
"""

EXAMPLES = r"""
- name: Let the members' users in
  gpumesh.cluster.file_set:
    files: "{{ cluster_record | gpumesh.cluster.ssh_trust_files(['root'], ssh_trust_host) }}"
"""

RETURN = r"""
_value:
  description: Entries for the option O(gpumesh.cluster.file_set#module:files).
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import ssh_trust
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def ssh_trust_files(
    record: object, users: Sequence[str], found: Mapping[str, Any], port: int = ssh_trust.STANDARD_PORT
) -> list[dict[str, Any]]:
    """See DOCUMENTATION."""
    return ssh_trust.trust_files(model.parse(record), users, found, port)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"ssh_trust_files": ssh_trust_files}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: play_hosts
short_description: The hosts of a play, which must not be empty
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns a pattern of hosts as it is, for the C(hosts) of the first play of a playbook.
  - Fails with the reason if the playbook would do nothing, which Ansible counts as a success, because no host of the
    inventory matches the pattern, or because the limit or the tags on the command line leave nothing.
  - Leaves out the machines in the extra variable C(cluster_without), as a limit would. A job of AWX has no limit, because
    Ansible prints the lines of a file that is named there.
  - A playbook that imports one of this collection may be run with a limit and with tags that leave nothing of it.
options:
  _terms:
    description: The pattern.
    type: list
    elements: raw
    required: true
  tags:
    description: The tags of the playbook's tasks. Empty if it always runs as a whole.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Check the cluster
  hosts: "{{ lookup('gpumesh.cluster.play_hosts', cluster_hosts | default('cluster'), tags=['storage', 'slurm']) }}"
  tasks: []
"""

RETURN = r"""
_raw:
  description: The pattern.
  type: list
  elements: str
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleLookupError
from ansible.inventory.manager import InventoryManager
from ansible.plugins.lookup import LookupBase

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import parse_machine_names

_COLLECTION_ROOT = Path(__file__).resolve().parents[2]
_LISTING_OPTIONS = ("syntax", "listhosts", "listtasks", "listtags")


class LookupModule(LookupBase):
    """Compares the pattern with the inventory before the play starts: without a host, no task could fail."""

    def run(self, terms: Sequence[Any], variables: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
        """Return the pattern; see DOCUMENTATION."""
        self.set_options(var_options=variables, direct=options)
        host_pattern = ",".join(",".join(term) if isinstance(term, (list, tuple)) else str(term) for term in terms)
        play_variables = variables or {}
        try:
            host_pattern = ",".join(
                [host_pattern, *(f"!{machine}" for machine in self._excluded_machines(play_variables))]
            )
            if not any(context.CLIARGS.get(listing_option) for listing_option in _LISTING_OPTIONS):
                self._refuse_empty_play(host_pattern, play_variables)
        except GpumeshError as error:
            raise AnsibleLookupError(printable(str(error))) from error
        return [host_pattern]

    def _excluded_machines(self, play_variables: Mapping[str, Any]) -> list[str]:
        machines = parse_machine_names(play_variables.get("cluster_without"))
        unknown_machines = [machine for machine in machines if machine not in play_variables["groups"].get("all", [])]
        if unknown_machines:
            raise InputError(
                f"Nothing was done: cluster_without contains {', '.join(unknown_machines)}, which is not in the inventory.",
                "Correct the name.",
            )
        return machines

    def _refuse_empty_play(self, host_pattern: str, play_variables: Mapping[str, Any]) -> None:
        inventory = self._build_inventory(play_variables["groups"])
        matching_hosts = [str(host.name) for host in inventory.get_hosts(host_pattern)]
        if not matching_hosts:
            raise _no_host_error(host_pattern, play_variables["groups"], context.CLIARGS.get("inventory") or ())
        # In a playbook that imports one of ours, limit and tags may concern other plays.
        if not any(_is_ours(playbook) for playbook in context.CLIARGS.get("args") or ()):
            return
        host_limit = context.CLIARGS.get("subset")
        inventory.subset(host_limit)
        if not inventory.get_hosts(host_pattern):
            raise InputError(
                f"Nothing was done: the limit '{host_limit}' excludes all hosts of '{host_pattern}' ({', '.join(matching_hosts)}).",
                "Correct --limit.",
            )
        _refuse_tags(self.get_option("tags"))

    def _build_inventory(self, hosts_by_group: Mapping[str, Sequence[str]]) -> InventoryManager:
        """Build an inventory like the lookup inventory_hostnames does, since Ansible does not pass its own one on."""
        inventory = InventoryManager(self._loader, parse=False)
        for group, hosts in hosts_by_group.items():
            inventory.add_group(group)
            for host in hosts:
                inventory.add_host(host, group=group)
        return inventory


def _is_ours(playbook: str) -> bool:
    """Whether a playbook of the command line is one of this collection, by name or as a file."""
    has_collection_name = playbook.startswith("gpumesh.cluster.") and "/" not in playbook
    return has_collection_name or Path(playbook).resolve().is_relative_to(_COLLECTION_ROOT)


def _no_host_error(
    host_pattern: str, hosts_by_group: Mapping[str, Sequence[str]], inventory_sources: Sequence[str]
) -> InputError:
    inventory_description = f"the inventory ({', '.join(inventory_sources)})" if inventory_sources else "the inventory"
    nonempty_groups = [
        group_name for group_name, hosts in hosts_by_group.items() if hosts and group_name not in ("all", "ungrouped")
    ]
    if not hosts_by_group.get("all"):
        explanation = f"{inventory_description} has no hosts, or could not be read"
    else:
        explanation = (
            f"no host of {inventory_description} matches it; groups with hosts: {', '.join(nonempty_groups) or 'none'}"
        )
    return InputError(
        f"Nothing was done: there are no hosts '{host_pattern}', since {explanation}.",
        "Check the warnings above, -i, and the group 'cluster' of the inventory, or set cluster_hosts to another one.",
    )


def _refuse_tags(playbook_tags: Sequence[str]) -> None:
    # Tasks that are always needed have a tag, too, so such tags leave some tasks, but not those that the user wants.
    catch_all_tags = ("all", "tagged") if playbook_tags else ("all",)
    unknown_tags = [tag for tag in context.CLIARGS.get("tags") or () if tag not in (*playbook_tags, *catch_all_tags)]
    skipped_tags = [
        tag for tag in context.CLIARGS.get("skip_tags") or () if tag in ("all", "always", "tagged", "untagged")
    ]
    if unknown_tags or skipped_tags:
        tags_description = f"has the tags {', '.join(playbook_tags)}" if playbook_tags else "has no tags"
        tag_options = f"--tags {','.join(unknown_tags)}" if unknown_tags else f"--skip-tags {','.join(skipped_tags)}"
        raise InputError(
            f"Nothing was done: the playbook {tags_description}, and {tag_options} excludes what it needs.",
            "The playbooks mesh, storage, slurm and check each run a part of site.",
        )

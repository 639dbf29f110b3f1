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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.machines import machine_names

_COLLECTION = Path(__file__).resolve().parents[2]
_LISTINGS = ("syntax", "listhosts", "listtasks", "listtags")


class LookupModule(LookupBase):
    """Compares the pattern with the inventory before the play starts: without a host, no task could fail."""

    def run(self, terms: Sequence[Any], variables: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
        """See DOCUMENTATION."""
        self.set_options(var_options=variables, direct=options)
        pattern = ",".join(",".join(term) if isinstance(term, (list, tuple)) else str(term) for term in terms)
        known = variables or {}
        try:
            pattern = ",".join([pattern, *(f"!{name}" for name in self._left_out(known))])
            if not any(context.CLIARGS.get(listing) for listing in _LISTINGS):
                self._refuse_nothing(pattern, known)
        except GpumeshError as error:
            raise AnsibleLookupError(printable(str(error))) from error
        return [pattern]

    def _left_out(self, variables: Mapping[str, Any]) -> list[str]:
        names = machine_names(variables.get("cluster_without"))
        unknown = [name for name in names if name not in variables["groups"].get("all", [])]
        if unknown:
            raise InputError(
                f"Nothing was done: cluster_without has {', '.join(unknown)}, which the inventory has not.",
                "Correct the name.",
            )
        return names

    def _refuse_nothing(self, pattern: str, variables: Mapping[str, Any]) -> None:
        inventory = self._inventory(variables["groups"])
        matching = [str(host.name) for host in inventory.get_hosts(pattern)]
        if not matching:
            raise _no_host(pattern, variables["groups"], context.CLIARGS.get("inventory") or ())
        # Of a playbook that imports ours, they may concern other parts.
        if not any(_is_ours(playbook) for playbook in context.CLIARGS.get("args") or ()):
            return
        limit = context.CLIARGS.get("subset")
        inventory.subset(limit)
        if not inventory.get_hosts(pattern):
            raise InputError(
                f"Nothing was done: the limit '{limit}' excludes all hosts of '{pattern}' ({', '.join(matching)}).",
                "Correct --limit.",
            )
        _refuse_tags(self.get_option("tags"))

    def _inventory(self, groups: Mapping[str, Sequence[str]]) -> InventoryManager:
        """As in the lookup inventory_hostnames, since Ansible's own one is not passed on."""
        inventory = InventoryManager(self._loader, parse=False)
        for group, hosts in groups.items():
            inventory.add_group(group)
            for host in hosts:
                inventory.add_host(host, group=group)
        return inventory


def _is_ours(playbook: str) -> bool:
    """Whether a playbook of the command line is one of this collection, by name or as a file."""
    named = playbook.startswith("gpumesh.cluster.") and "/" not in playbook
    return named or Path(playbook).resolve().is_relative_to(_COLLECTION)


def _no_host(pattern: str, groups: Mapping[str, Sequence[str]], sources: Sequence[str]) -> InputError:
    where = f"the inventory ({', '.join(sources)})" if sources else "the inventory"
    filled = [name for name, hosts in groups.items() if hosts and name not in ("all", "ungrouped")]
    if not groups.get("all"):
        said = f"{where} has no hosts, or could not be read"
    else:
        said = f"no host of {where} matches it; groups with hosts: {', '.join(filled) or 'none'}"
    return InputError(
        f"Nothing was done: there are no hosts '{pattern}', since {said}.",
        "Check the warnings above, -i, and the group 'cluster' of the inventory, or set cluster_hosts to another one.",
    )


def _refuse_tags(known: Sequence[str]) -> None:
    # Tasks that are always needed have a tag, too, so tags leave some of them, but nothing for which they were run.
    everything = ("all", "tagged") if known else ("all",)
    unknown = [tag for tag in context.CLIARGS.get("tags") or () if tag not in (*known, *everything)]
    skipped = [tag for tag in context.CLIARGS.get("skip_tags") or () if tag in ("all", "always", "tagged", "untagged")]
    if unknown or skipped:
        has = f"has the tags {', '.join(known)}" if known else "has no tags"
        asked = f"--tags {','.join(unknown)}" if unknown else f"--skip-tags {','.join(skipped)}"
        raise InputError(
            f"Nothing was done: the playbook {has}, and {asked} excludes what it needs.",
            "The playbooks mesh, storage, slurm and check each run a part of site.",
        )

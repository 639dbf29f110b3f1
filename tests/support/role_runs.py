# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run tasks of a role on this machine, under the names of several hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun, run_ansible


def run_tasks(
    directory: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    *options: str,
) -> AnsibleRun:
    """Run one play with these tasks, from ``directory``.

    ``hosts``: their variables by name; ``variables``: those of the play; ``options``: those of ansible-playbook.
    """
    return run_plays(directory, hosts, [{"hosts": "all", "vars": variables, "tasks": tasks}], None, *options)


def run_plays(
    directory: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    plays: Sequence[Mapping[str, Any]],
    hosts_by_group: Mapping[str, Sequence[str]] | None = None,
    *options: str,
    prefix: Sequence[str] = (),
) -> AnsibleRun:
    """Run these plays, as run_tasks does with one.

    ``hosts_by_group``: the names of hosts by inventory group; ``prefix``: the arguments that start the command.
    """
    local_vars = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    inventory: dict[str, Any] = {"all": {"vars": local_vars, "hosts": hosts}}
    for group, names in (hosts_by_group or {}).items():
        inventory[group] = {"hosts": dict.fromkeys(names)}
    playbook = [{"gather_facts": False, **play} for play in plays]
    inventory_path, playbook_path = directory / "inventory.json", directory / "play.yml"
    inventory_path.write_text(json.dumps(inventory), encoding="utf-8")
    playbook_path.write_text(json.dumps(playbook), encoding="utf-8")
    return run_ansible(
        "ansible-playbook", "-i", str(inventory_path), *options, str(playbook_path), cwd=directory, prefix=prefix
    )

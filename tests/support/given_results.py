# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the task files of a role with given results instead of this collection's actions: in which order, on which hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

#: The replacement of each action. It returns the given results of an action on a host in order, the last one
#: repeatedly.
_FAKE_ACTION = """
import json
from pathlib import Path

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        host, name = task_vars["inventory_hostname"], self._task.action.rpartition(".")[2]
        log = Path(task_vars["given_log"])
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        before = sum(json.loads(line)[:2] == [name, host] for line in lines)
        record = self._task.args.get("record", "cluster_record")
        record = self._templar.template(task_vars[record]) if isinstance(record, str) else record
        line = json.dumps([name, host, self._task.args, (record or {}).get("generation")], default=str)
        with log.open("a", encoding="utf-8") as stream:
            stream.write(line + "\\n")
        results = (task_vars.get("given_results") or {}).get(name) or [{}]
        return {"changed": False, **results[min(before, len(results) - 1)]}
"""


class ActionCall(NamedTuple):
    """An action on a host, its arguments, and the generation of the record that it reads."""

    action: str
    host: str
    arguments: dict[str, Any]
    generation: int | None


class RoleRun(NamedTuple):
    """A run and its calls, in their order."""

    run: AnsibleRun
    calls: list[ActionCall]

    def count_tasks(self, host: str) -> int:
        """Return how many tasks the host has been through, skipped ones included."""
        recap = re.search(rf"^{host} +: ok=(\d+).*?skipped=(\d+)", self.run.output, re.MULTILINE)
        assert recap, self.run.output
        return int(recap[1]) + int(recap[2])

    def calls_of(self, action: str) -> list[ActionCall]:
        """Return the calls of one action."""
        return [call for call in self.calls if call.action == action]

    def actions_on(self, host: str) -> list[str]:
        """Return the actions on one host."""
        return [call.action for call in self.calls if call.host == host]


def replace_actions(directory: Path, monkeypatch: pytest.MonkeyPatch, names: Iterable[str], action_source: str) -> None:
    """Copy this collection to a directory with ``action_source`` in place of these actions, and let Ansible use it."""
    collection = directory / "ansible_collections" / "gpumesh" / "cluster"
    action_directory = collection / "plugins" / "action"
    action_directory.mkdir(parents=True)
    for path in (ROOT, ROOT / "plugins", ROOT / "plugins" / "action"):
        for entry in path.iterdir():
            link_path = collection / entry.relative_to(ROOT)
            if not link_path.exists() and not entry.name.startswith("."):
                link_path.symlink_to(entry)
    for name in names:
        (action_directory / f"{name}.py").unlink(missing_ok=True)
        (action_directory / f"{name}.py").write_text(action_source, encoding="utf-8")
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(directory))


def run_role(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: Mapping[str, Any],
    results_by_host: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    variables: Mapping[str, Any],
    *options: str,
    tasks: Sequence[Mapping[str, Any]] = (),
) -> RoleRun:
    """Run one entry point of a role as a playbook imports it.

    ``role``: the options of import_role; ``results_by_host``: the results by action, for each host; ``options``: those
    of ansible-playbook; ``tasks``: further ones, after the role.
    """
    modules = (path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
    # The modules of ansible-core that it runs have results of their own.
    module_names = [name for name in modules if name != "host_module"]
    replace_actions(directory / "collections", monkeypatch, module_names, _FAKE_ACTION)
    call_log = directory / "calls.jsonl"
    play = {
        "hosts": "all",
        "vars": {**variables, "given_log": str(call_log)},
        "tasks": [{"ansible.builtin.import_role": {**role, "rolespec_validate": False}}, *tasks],
    }
    playbook_run = run_plays(
        directory,
        {host: {"given_results": results} for host, results in results_by_host.items()},
        [play],
        None,
        *options,
    )
    lines = call_log.read_text(encoding="utf-8").splitlines() if call_log.exists() else []
    return RoleRun(playbook_run, [ActionCall(*json.loads(line)) for line in lines])

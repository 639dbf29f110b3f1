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

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, Run
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

#: The replacement of each action. It returns the given results of an action on a host in order, the last one
#: repeatedly.
_ACTION = """
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


class Call(NamedTuple):
    """An action on a host, its arguments, and the generation of the record that it reads."""

    action: str
    host: str
    arguments: dict[str, Any]
    generation: int | None


class Went(NamedTuple):
    """A run and its calls, in their order."""

    run: Run
    calls: list[Call]

    def slots(self, host: str) -> int:
        """Return how many tasks the host has been through, skipped ones included."""
        found = re.search(rf"^{host} +: ok=(\d+).*?skipped=(\d+)", self.run.output, re.MULTILINE)
        assert found, self.run.output
        return int(found[1]) + int(found[2])

    def of(self, action: str) -> list[Call]:
        """Return the calls of one action."""
        return [call for call in self.calls if call.action == action]

    def steps(self, host: str) -> list[str]:
        """Return the actions on one host."""
        return [call.action for call in self.calls if call.host == host]


def replace_actions(folder: Path, monkeypatch: pytest.MonkeyPatch, names: Iterable[str], source: str) -> None:
    """Copy this collection to a directory with ``action_source`` in place of these actions, and let Ansible use it."""
    collection = folder / "ansible_collections" / "gpumesh" / "cluster"
    actions = collection / "plugins" / "action"
    actions.mkdir(parents=True)
    for path in (ROOT, ROOT / "plugins", ROOT / "plugins" / "action"):
        for entry in path.iterdir():
            place = collection / entry.relative_to(ROOT)
            if not place.exists() and not entry.name.startswith("."):
                place.symlink_to(entry)
    for name in names:
        (actions / f"{name}.py").unlink(missing_ok=True)
        (actions / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", str(folder))


def go(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: Mapping[str, Any],
    hosts: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    variables: Mapping[str, Any],
    *options: str,
    tasks: Sequence[Mapping[str, Any]] = (),
) -> Went:
    """Run one entry point of a role as a playbook imports it.

    ``role``: the options of import_role; ``results_by_host``: the results by action, for each host; ``options``: those
    of ansible-playbook; ``tasks``: further ones, after the role.
    """
    modules = (path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
    # The modules of ansible-core that it runs have results of their own.
    names = [name for name in modules if name != "host_module"]
    replace_actions(folder / "collections", monkeypatch, names, _ACTION)
    log = folder / "calls.jsonl"
    play = {
        "hosts": "all",
        "vars": {**variables, "given_log": str(log)},
        "tasks": [{"ansible.builtin.import_role": {**role, "rolespec_validate": False}}, *tasks],
    }
    run = run_plays(
        folder, {host: {"given_results": results} for host, results in hosts.items()}, [play], None, *options
    )
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return Went(run, [Call(*json.loads(line)) for line in lines])

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm_state. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import rest
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import slurm, succession
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.accounting import Accounting
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction, ModuleFailedError

_MODULE = "gpumesh.cluster.slurm_state"
_QUEUE = {"type": "dict"}


class ActionModule(HostAction):
    """Runs the module, and with a record decides from its results which queue is the current one."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        if "record" not in self._task.args:
            return (
                self._retire() if self._task.args.get("state") == "retired" else self.module(_MODULE, self._task.args)
            )
        given = self.arguments(
            record=RECORD,
            state={"type": "str", "choices": ["inspected"], "required": True},
            manager_queue=_QUEUE,
            member_queue=_QUEUE,
            handing={"type": "str", "default": ""},
            lost={"type": "bool", "default": False},
        )
        record = self.record()
        if given["handing"] == record["manager"]:
            # An interrupted run that is repeated: the manager cannot take over from itself.
            given["handing"] = ""
        if given["member_queue"] is not None:
            return self._leftover(record, given["member_queue"])
        if given["manager_queue"] is not None:
            return self._former(record, given)
        return self._manager(record, given)

    def _retire(self) -> dict[str, Any]:
        """End a queue, with its daemons and its accounting. Running it again completes an interrupted run."""
        given = self.arguments(
            state={"type": "str", "choices": ["retired"], "required": True}, keep={"type": "bool", "default": True}
        )
        changed = False
        for name in (rest.PROXY, rest.DAEMON, "slurmctld", "slurmdbd"):
            changed = self.stop_daemon(name) or changed
        # If an interrupted run deleted the database, its account and MariaDB may remain.
        database, configured = self.exists(slurm.DATABASE_FOLDER), self.exists(slurm.DBD_FILE)
        if database or configured:
            accounting = Accounting(self)
            if database and given["keep"]:
                accounting.save()
            accounting.delete()
            changed = changed or accounting.changed
        file = {"path": slurm.DBD_FILE, "state": "absent"}
        changed = self.module("ansible.builtin.file", file)["changed"] or changed
        # Last, since an interrupted run relies on it.
        retired = self.module(_MODULE, {"state": "retired", "keep": given["keep"]})
        if retired["kept"]:
            self.print_text(
                f"{self.machine} had the queue and the accounting of an earlier tenure, from which those of the cluster "
                f"are not derived. They are kept in {printable(str(retired['kept']))}, the accounting as "
                "accounting.sql. Delete them when they are no longer needed."
            )
        return {**retired, "changed": changed or retired["changed"]}

    def _inspect(self) -> dict[str, Any]:
        return self.module(_MODULE, {"state": "inspected"})

    def _manager(self, record: model.Record, given: Mapping[str, Any]) -> dict[str, Any]:
        """The action on the manager, unless another machine has to be queried first."""
        found = self._inspect()
        own = succession.read_own(record, found)
        known = self.variables["groups"]["all"]
        return _decided(found, succession.decide_first(record, own, known, given["handing"], given["lost"]))

    def _former(self, record: model.Record, given: Mapping[str, Any]) -> dict[str, Any]:
        """The action of the manager, after querying the former manager."""
        found: dict[str, Any] = {"changed": False}
        look, silence = None, "it does not answer"
        try:
            found = self._inspect()
            look = succession.read_look(found)
        except ModuleFailedError as failure:
            silence = str(failure) or silence
        except AnsibleConnectionFailure as failure:
            silence = str(failure)
        own = succession.read_own(record, given["manager_queue"])
        said = "" if look else printable(silence)
        return _decided(found, succession.decide(record, own, look, given["handing"], given["lost"], said))

    def _leftover(self, record: model.Record, member_queue: object) -> dict[str, Any]:
        """What happens to the queue of a machine that is not the manager."""
        found = self._inspect()
        own = succession.read_look(member_queue)
        becomes = succession.leftover(record, self.machine, own, succession.read_look(found)) if own else ""
        return {**found, "leftover": becomes}


def _decided(found: Mapping[str, Any], decided: succession.Succession) -> dict[str, Any]:
    """The result of the task. Raises HostStateError if the controller must not start."""
    if decided.refusal:
        raise HostStateError(decided.refusal)
    return {**found, "succession": decided._asdict()}

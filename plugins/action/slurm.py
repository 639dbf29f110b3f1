# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import PLUGIN
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import rest
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import slurm, slurm_settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.accounting import Accounting
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.slurm_run import run_slurm

_MODULE = "gpumesh.cluster.slurm"
_STATES = ["present", "configured", "served", "absent"]


class ActionModule(HostAction):
    """Derives the settings of Slurm from the record and the options of the role, and installs the packages."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            state={"type": "str", "choices": _STATES, "default": "present"},
            restart={"type": "bool", "default": False},
            registered={"type": "list", "elements": "str", "default": []},
            forgotten={"type": "bool", "default": False},
        )
        state = given["state"]
        if state == "absent":
            return self.module(_MODULE, {"state": state})
        record = self.record()
        options = self.options("slurm", *slurm.OPTIONS)
        if self.machine == record["manager"]:
            slurm_settings.check(self.options("slurm", *slurm_settings.OPTIONS))
        sessions = self.options("session", "enabled")["enabled"]
        options["plugins"] = [PLUGIN] if sessions else []
        slurm.refuse_too_many(record, self.userspace_only, options)
        if state == "present":
            # The program of the checks is kept until the controller no longer tells the nodes to run it.
            keep = record["manager"] not in self.variables["ansible_play_batch"]
            of_manager = partial(self._of_manager, record["manager"], given["registered"])
            version, certificates = str(of_manager("slurm_version") or ""), of_manager("rest_certificates")
            parameters = slurm.node(record, self.machine, options, given["forgotten"], keep, version, certificates)
        elif state == "configured":
            parameters = slurm.configured(record, self.machine, options)
        else:
            parameters = slurm.served(record, options, given["restart"])
        if parameters.get("serve"):
            parameters.update(slurm.gres_types(record, self._gres(record)))
        if state == "served":
            return self._serve(record["name"], parameters, options["accounting"])
        result = run_slurm(self, {"state": state, **parameters})
        if state == "present" and not sessions and result.get("sessions"):
            removed = self.module("gpumesh.cluster.session", {"state": "absent"})
            result["changed"] = result["changed"] or removed["changed"]
        return result

    def _of_manager(self, manager: str, names: Sequence[str], key: str) -> Any:
        """A value of the manager, from the first registered result that has it; None if it is not known.

        A task that runs once registers its result on the hosts of the play, without the manager if that is not among them.
        """
        hosts = self.variables.get("hostvars", {})
        known = [hosts[manager]] if manager in hosts else []
        results = [(host.get(name) or {}) for name in names for host in (*known, self.variables)]
        return next((result[key] for result in results if result.get(key) is not None), None)

    def _gres(self, record: model.Record) -> dict[str, Any]:
        """The variable slurm_gres of the members, whether they are in the play or not.

        Without those that are not in this inventory, or have a template that needs facts of that host.
        """
        variables = self.variables["hostvars"]
        found = {}
        for machine in (member["machine"] for member in record["members"]):
            if machine in variables:
                with suppress(AnsibleError):
                    found[machine] = variables[machine].get("slurm_gres")
        return found

    def _serve(self, cluster: str, parameters: Mapping[str, Any], accounting: bool) -> dict[str, Any]:
        """Run the services: slurmdbd after its database, and the accounts once the controller has registered there."""
        stored = Accounting(self) if accounting else None
        if stored:
            stored.create()
        result = run_slurm(self, {"state": "served", **parameters})
        result["changed"] = result["changed"] or (stored is not None and stored.changed)
        if result.get("withdrawn"):
            self._withdraw(result["withdrawn"])
            result["changed"] = True
        given = self.options("slurm", "qos", "accounts")
        if accounting and any(given.values()) and not result["missing"]:
            done = self.module("gpumesh.cluster.slurm_accounts", {"cluster": cluster, **given})
            result["changed"] = result["changed"] or done["changed"]
            if shown := [one["diff"] for one in (result, done) if "diff" in one]:
                result["diff"] = shown
        return result

    def _withdraw(self, files: Sequence[str]) -> None:
        """Stop the services that are no longer wanted, and remove their files.

        The file that identifies a service is removed last, so that an interrupted run continues here.
        """
        if rest.FOLDER in files:
            self._stop(rest.PROXY, rest.FOLDER)
        if slurm.TOKEN_KEY in files:
            self._stop(rest.DAEMON, slurm.TOKEN_KEY, lambda: self._remove(rest.SOCKET_FOLDER))
        if slurm.DBD_FILE in files:
            # The database keeps the history of the jobs, in case accounting is enabled again.
            self._stop("slurmdbd", slurm.DBD_FILE, lambda: Accounting(self).stop())

    def _stop(self, daemon: str, file: str, then: Callable[[], None] = lambda: None) -> None:
        self.stop_daemon(daemon)
        then()
        self._remove(file)

    def _remove(self, path: str) -> None:
        self.module("ansible.builtin.file", {"path": path, "state": "absent"})

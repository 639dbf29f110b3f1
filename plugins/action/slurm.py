# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of slurm. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import rest
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm, slurm_settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.accounting import SlurmAccounting
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm_run import collect_gres, run_slurm_module

_MODULE = "gpumesh.cluster.slurm"
_STATES = ["present", "configured", "served", "absent"]


class ActionModule(HostAction):
    """Derives the settings of Slurm from the record and the options of the role, and installs the packages."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            state={"type": "str", "choices": _STATES, "default": "present"},
            restart={"type": "bool", "default": False},
            registered={"type": "list", "elements": "str", "default": []},
            reregister={"type": "bool", "default": False},
        )
        state = task_args["state"]
        if state == "absent":
            return self.run_module(_MODULE, {"state": state})
        record = self.record()
        slurm_options = self.options(*slurm.HOST_OPTIONS)
        if self.machine == record["manager"]:
            slurm_settings.check_settings(self.options(*slurm_settings.CHECKED_OPTIONS))
        manager_library = ""
        slurm.refuse_too_many_nodes(record, self.userspace_only, slurm_options)
        if state == "present":
            # The health program is kept until the controller no longer tells the nodes to run it.
            keep_checks = record["manager"] not in self.variables["ansible_play_batch"]
            manager_result = partial(self._read_manager_result, record["manager"], task_args["registered"])
            slurm_version, rest_certificates = (
                str(manager_result("slurm_version") or ""),
                manager_result("rest_certificates"),
            )
            job_plugin = manager_result("job_plugin")
            manager_library = (job_plugin or {}).get("library", "")
            module_args = slurm.node_parameters(
                record,
                self.machine,
                slurm_options,
                task_args["reregister"],
                keep_checks,
                slurm_version,
                rest_certificates,
                manager_result("plugins_included"),
                job_plugin,
            )
        elif state == "configured":
            module_args = slurm.configuration_parameters(record, self.machine, slurm_options)
        else:
            module_args = slurm.controller_parameters(record, slurm_options, task_args["restart"])
        if module_args.get("serve"):
            module_args.update(slurm.gres_types(record, collect_gres(self, record)))
        if state == "served":
            return self._serve(record["name"], module_args, slurm_options["slurm_accounting"])
        result = run_slurm_module(self, {"state": state, **module_args}, manager_library)
        if state == "present" and not slurm_options["session_enabled"] and result.get("sessions"):
            session_removal = self.run_module("gpumesh.cluster.session", {"state": "absent"})
            result["changed"] = result["changed"] or session_removal["changed"]
        return result

    def _read_manager_result(self, manager: str, variable_names: Sequence[str], result_key: str) -> Any:
        """Return a value of the manager from the first registered result that has it; None if it is not known.

        A task that runs once registers its result on the hosts of the play, without the manager if that is not among them.
        """
        variables_by_host = self.variables.get("hostvars", {})
        manager_variables = [variables_by_host[manager]] if manager in variables_by_host else []
        results = [(host.get(name) or {}) for name in variable_names for host in (*manager_variables, self.variables)]
        return next((result[result_key] for result in results if result.get(result_key) is not None), None)

    def _serve(self, cluster_name: str, module_args: Mapping[str, Any], accounting: bool) -> dict[str, Any]:
        """Run the services: slurmdbd after its database, and the accounts once the controller has registered there."""
        accounting_service = SlurmAccounting(self) if accounting else None
        if accounting_service:
            accounting_service.create()
        result = run_slurm_module(self, {"state": "served", **module_args})
        result["changed"] = result["changed"] or (accounting_service is not None and accounting_service.changed)
        if result.get("withdrawn"):
            self._withdraw(result["withdrawn"])
            result["changed"] = True
        account_options = self.options("slurm_qos", "slurm_accounts")
        if accounting and any(account_options.values()) and not result["missing"]:
            accounts_result = self.run_module(
                "gpumesh.cluster.slurm_accounts",
                {
                    "cluster": cluster_name,
                    "qos": account_options["slurm_qos"],
                    "accounts": account_options["slurm_accounts"],
                },
            )
            result["changed"] = result["changed"] or accounts_result["changed"]
            if diffs := [task_result["diff"] for task_result in (result, accounts_result) if "diff" in task_result]:
                result["diff"] = diffs
        return result

    def _withdraw(self, withdrawn_files: Sequence[str]) -> None:
        """Stop the services that are no longer wanted, and remove their files.

        The file that identifies a service is removed last, so that an interrupted run continues here.
        """
        if rest.PROXY_DIRECTORY in withdrawn_files:
            self._stop_service(rest.PROXY_SERVICE, rest.PROXY_DIRECTORY)
        if slurm.TOKEN_KEY in withdrawn_files:
            self._stop_service(rest.REST_DAEMON, slurm.TOKEN_KEY, lambda: self._remove_path(rest.SOCKET_DIRECTORY))
        if slurm.DBD_CONFIG_PATH in withdrawn_files:
            # The database keeps the history of the jobs, in case accounting is enabled again.
            self._stop_service("slurmdbd", slurm.DBD_CONFIG_PATH, lambda: SlurmAccounting(self).stop())

    def _stop_service(self, daemon: str, service_file: str, before_removal: Callable[[], None] = lambda: None) -> None:
        self.stop_daemon(daemon)
        before_removal()
        self._remove_path(service_file)

    def _remove_path(self, path: str) -> None:
        self.run_module("ansible.builtin.file", {"path": path, "state": "absent"})

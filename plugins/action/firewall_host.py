# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of firewall_host. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    STATE_OPTION,
    HostAction,
    ModuleFailedError,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.firewall import HOST_OPTIONS, host_parameters

_MODULE = "gpumesh.cluster.firewall_host"


class ActionModule(HostAction):
    """Derives the rules from the record, and adds what the module finds missing, or prints the commands."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options = self.options("cluster_name", "firewall_host")
        try:
            return self._compare_and_change(options)
        except ModuleFailedError as failure:
            # Who has left the firewall to himself has a cluster whatever the state of its programs.
            if options["firewall_host"] != "report" or not _is_program_failure(failure.result):
                raise
            self.print_text(
                f"{self.machine}: the host's own firewall was not compared with what the cluster needs: {failure}"
            )
            return {"changed": False}

    def _compare_and_change(self, options: Mapping[str, Any]) -> dict[str, Any]:
        task_args = self.arguments(record={"type": "raw"}, registration={"type": "str"}, state=STATE_OPTION)
        says_only = task_args["state"] == "present" and options["firewall_host"] == "report"
        if says_only and task_args["registration"]:
            # If the probes fail, the verdict has the command. If they pass, the layer tells the rest.
            return {"changed": False}
        network = self._read_network(task_args["registration"], options["cluster_name"])
        module_args: Mapping[str, Any] = {"cluster": network["name"], "state": task_args["state"]}
        if task_args["state"] == "present":
            parameters_by_module = host_parameters(network, self.machine, self.options(*HOST_OPTIONS))
            if not parameters_by_module:
                return {"changed": False}
            module_args = parameters_by_module["firewall_host"]
        comparison = self.run_module(_MODULE, module_args)
        if not comparison["commands"]:
            return comparison
        if says_only:
            self.print_text(self._describe_commands(network["name"], comparison))
            return {**comparison, "changed": False, "diff": {}}
        if comparison["obstacles"]:
            raise HostStateError(
                f"The firewall of {self.machine} was not changed: {'; '.join(comparison['obstacles'])}.",
                "Then run this again, or set firewall_host to report and change it yourself.",
            )
        if self.check_mode:
            return comparison
        self._change(comparison, module_args)
        return {**comparison, "changed": True}

    def _change(self, comparison: Mapping[str, Any], module_args: Mapping[str, Any]) -> None:
        for ufw_args in comparison["ufw"]:
            self.run_module("community.general.ufw", ufw_args)
        for zone_args in comparison["zones"]:
            self.run_module("ansible.posix.firewalld", zone_args)
        if comparison["applies"]:
            self.run_module(_MODULE, {**module_args, "apply": True})

    def _read_network(self, registration: str | None, cluster: str) -> Mapping[str, Any]:
        """Return the record, or the parts of one that is not written yet."""
        if not registration:
            return self.record()
        decision = self.variables[registration]
        return {
            "name": cluster,
            "subnet": decision["subnet"],
            "manager": decision["manager"],
            "mesh": decision["enrol_settings"],
            "members": decision["members"],
        }

    def _describe_commands(self, cluster: str, comparison: Mapping[str, Any]) -> str:
        firewalls = join_names(comparison["firewalls"])
        verb = "are" if len(comparison["firewalls"]) > 1 else "is"
        heading = (
            f"{self.machine}: {firewalls} {verb} active, but the rules of cluster '{cluster}' there are not up to date. Run "
            "these commands there as root, or set firewall_host=auto, and they are run for you:"
        )
        commands = [f"  {command}" for command in comparison["commands"]]
        return "\n".join([heading, *commands, *(f"  But: {obstacle}." for obstacle in comparison["obstacles"])])


def _is_program_failure(result: Mapping[str, Any]) -> bool:
    """Whether a module failed since a program of the host did."""
    return not result.get("unreachable") and (result.get("error") or {"kind": "command"})["kind"] == "command"

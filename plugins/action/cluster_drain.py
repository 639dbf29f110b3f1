# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_drain. Its documentation is in the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.daemon import Places
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.nodes import LEAVING, is_out
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.show import Node
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import succession
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction, ModuleFailedError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.usage import (
    holders_in_words,
    in_words,
    running_jobs,
    silences_in_words,
)

_NODE = "/etc/slurm/node/slurmd.env"
#: A job may have started since the query.
_LEAST_WAIT = 10
#: Slurm repeats the request to end a job after two minutes, for example to a node that was restarted meanwhile.
_COMPLETION_WAIT = 300
#: Jobs that do not end, as on a dead machine, must not block this indefinitely.
_LONGEST_END = 90


class ActionModule(HostAction):
    """Queries Slurm on the host that knows the jobs, refuses the request, or drains the machines."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            machines={"type": "list", "elements": "str"},
            forgotten={"type": "list", "elements": "str", "default": []},
            handing_over={"type": "bool", "default": False},
            inspect={"type": "bool", "default": False},
            holders={"type": "str"},
            timeout={"type": "int", "default": 0},
            force={"type": "bool", "default": False},
        )
        record = self.record()
        of_another = self._is_of_another(record)
        scheduler = not of_another and self.exists(_NODE)
        if scheduler and given["handing_over"]:
            self._refuse_half_a_succession(record)
        without = of_another or given["inspect"] or not self._has_controller()
        slurm = {} if without else self._ask(given["force"])
        nodes = [node["name"] for node in slurm.get("nodes", [])]
        if given["machines"] is not None:
            nodes = [node for node in nodes if node in given["machines"]]
        jobs = running_jobs(slurm.get("jobs", []), nodes)
        changed = False
        if given["machines"] is None:
            self._refuse_use(record, jobs, given)
            changed = bool(given["force"] and nodes) and self._end(nodes, jobs)
        elif nodes:
            self._refuse_jobs(record, jobs, given)
            forced, wait = given["force"], given["timeout"]
            changed = self._end(nodes, jobs) if forced else self._drain(slurm["nodes"], nodes, wait)
        # The others' entry point leave does this from the machine itself, which a dead one cannot.
        silent = [node for node in nodes if node in given["forgotten"]]
        if silent and given["machines"] is not None:
            changed = self._node(silent, "absent") or changed
        return {
            "changed": changed,
            "scheduler": scheduler,
            "of_another": of_another,
            "nodes": nodes,
            "jobs": [str(job["id"]) for job in jobs],
        }

    def _drain(self, known: Sequence[Node], nodes: Sequence[str], timeout: int) -> bool:
        """Drain the nodes, and return them to service if their jobs do not end in time. Raises ModuleFailedError."""
        try:
            return self._drain_and_wait(nodes, timeout)
        except ModuleFailedError as failure:
            # Those that were out of service before stay so, whoever has drained them.
            ours = [node["name"] for node in known if node["name"] in nodes and not is_out(node)]
            if ours and not self.check_mode:
                self._node(ours, "idle")
            said = str(failure.result.get("msg", "")).replace("increase the wait", "increase cluster_drain_timeout")
            back = f" {', '.join(ours)} accepts jobs again." if ours else ""
            raise ModuleFailedError({**failure.result, "msg": f"{said} Nothing has been removed.{back}"}) from failure

    def _drain_and_wait(self, nodes: Sequence[str], timeout: int) -> bool:
        try:
            return self._node(nodes, "drained", wait=max(timeout, _LEAST_WAIT))
        except ModuleFailedError as failure:
            if timeout >= _COMPLETION_WAIT or not failure.result.get("error", {}).get("completing"):
                raise
        self.print_text(
            f"{', '.join(nodes)}: the jobs have ended, and Slurm waits for their processes. It asks again after two minutes."
        )
        self._node(nodes, "drained", wait=_COMPLETION_WAIT)
        return True

    def _is_of_another(self, record: model.Record) -> bool:
        """Whether the Slurm of this host belongs to another cluster, whose nodes and jobs this one must not touch."""
        asked = {"cluster": record["name"], "cluster_id": record["id"]}
        return "slurm" in self.module("gpumesh.cluster.host_owner", asked)["others"]

    def _has_controller(self) -> bool:
        """By what it is run. These files come after its configuration and go before it ends: an interrupted run may
        leave a cluster that has a configuration, and nobody to ask about jobs."""
        places = Places()._replace(**self.supervisor())
        return self.exists(places.drop_in("slurmctld")) or self.exists(places.program("slurmctld"))

    def _refuse_half_a_succession(self, record: model.Record) -> None:
        """Refuse a hand-over that the manager itself has not completed yet. Raises HostStateError."""
        own = succession.read_own(record, self.module("gpumesh.cluster.slurm_state", {"state": "inspected"}))
        decided = succession.decide_first(record, own, known=())
        if decided.refusal:
            raise HostStateError(decided.refusal)

    def _ask(self, force: bool) -> Mapping[str, Any]:
        try:
            return self.module("gpumesh.cluster.slurm_info", {"gather": ["nodes", "jobs"]})
        except ModuleFailedError:
            if not force:
                raise
            return {}

    def _refuse_jobs(self, record: model.Record, jobs: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> None:
        running = _running(jobs)
        if running and not given["timeout"] and not given["force"]:
            raise HostStateError(
                f"{', '.join(given['machines'])} cannot leave cluster '{record['name']}' while jobs run there: "
                f"{', '.join(in_words(job) for job in running)}.",
                "Wait until they have ended (cluster_drain_timeout=SECONDS waits at most that long), or cancel them "
                "with cluster_force=true.",
            )

    def _refuse_use(self, record: model.Record, jobs: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> None:
        held = self.registered(given["holders"], self.variables["ansible_play_hosts_all"]) if given["holders"] else {}
        users = [*(f"job {in_words(job)}" for job in jobs), *holders_in_words(held)]
        silent = silences_in_words(held)
        if (users or silent) and not given["force"]:
            raise HostStateError(
                f"Cluster '{record['name']}' {'is' if users else 'may be'} in use: {'; '.join([*users, *silent])}.",
                "Wait until they have ended, or end them (scancel, kill); cluster_force=true ends them, too."
                if users
                else "Run this again when they answer; cluster_force=true deletes the cluster in any case.",
            )

    def _end(self, nodes: Sequence[str], jobs: Sequence[Mapping[str, Any]]) -> bool:
        """Cancelled first, so that they end in order; a node that is set down leaves its processes running."""
        changed = self._node(nodes, "drained")
        if not jobs:
            return changed
        running = _running(jobs)
        if running and not self.check_mode:
            self.module("ansible.builtin.command", {"argv": ["scancel", *(str(job["id"]) for job in running)]})
        try:
            self._node(nodes, "drained", wait=_LONGEST_END)
        except ModuleFailedError as failure:
            if "error" in failure.result:
                self._node(nodes, "down")
        return True

    def _node(self, nodes: Sequence[str], state: str, wait: int = 0) -> bool:
        arguments: dict[str, Any] = {"name": list(nodes), "state": state}
        if state != "absent":
            arguments["reason"] = LEAVING
        if wait:
            arguments["wait"] = wait
        return bool(self.module("gpumesh.cluster.slurm_node", arguments).get("changed"))


def _running(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that do not end by themselves. Slurm waits for the processes of a completing job, and then kills them."""
    return [job for job in jobs if job["state"] != "completing"]

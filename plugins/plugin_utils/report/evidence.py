# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the results of modules and commands to checks. Whatever is missing becomes a check that reports that."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.health.program import MARK
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.derive import member_views, pods
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import nodes as slurm_nodes
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import show
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report import rdma
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.checks import by_sender, check, unjudged
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.tracking import tracking_checks
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import (
    Check,
    Pair,
    Verdict,
    assemble,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.volumes import Limits, volume_checks

#: Without a configured minimum, a link is slow below this fraction of the median of similar links.
_SHARE_OF_MEDIAN = 0.2
#: With fewer measurements, outliers cannot be identified.
_ENOUGH_LINKS = 6
_JOB_REMEDY = "Check the nodes with sinfo -R, and the log of slurmctld."
#: Slurm's message if it enforces accounts and a user has none.
_REFUSED = ("Invalid account", "Invalid qos specification", "User's group not permitted")
#: The prefixes of reasons set by slurmctld and slurmd.
_SLURMS_REASONS = (
    *("Not responding", "Node unexpectedly rebooted", "Low ", "Prolog error", "Epilog error", "Kill task failed"),
    *("batch job complete failure", "Duplicate jobid", "Can't save job state", "gres/", "Reboot ASAP", "slurmctld"),
)


def userspace_only_check(name: str, purpose: str, machine: str) -> Check:
    """The check of a userspace-only member."""
    reason = f"{machine} is a userspace-only member: others can connect to it, but it can only connect through a proxy."
    return check(name, purpose, machine, "skipped", reason=reason)


def member_checks(
    machines: Sequence[str], asked: Sequence[str], answered: Sequence[str], userspace_only: Sequence[str] = ()
) -> list[Check]:
    """Which members answered. A member that is not in this run is reported as skipped."""
    title = ("members.answer", "The member answers over SSH")
    made = []
    for machine in machines:
        if machine in userspace_only:
            made.append(userspace_only_check(*title, machine))
        elif machine in answered:
            made.append(check(*title, machine, "pass", "answers", "answers"))
        elif machine in asked:
            reason = f"{machine} does not answer over SSH, or failed before it could be checked."
            remedy = (
                f"Start {machine} or check its network. If it is permanently lost, run the remove playbook with "
                f"cluster_machine={machine}."
            )
            made.append(check(*title, machine, "fail", "no answer", "answers", "", reason, remedy))
        else:
            reason = f"{machine} is not among the hosts of this run."
            made.append(check(*title, machine, "skipped", reason=reason))
    return made


def complete_pairs(
    machines: Sequence[str], pairs: Sequence[Pair], asked: Sequence[str], answered: Sequence[str]
) -> list[Pair]:
    """All ordered pairs of members: those that were probed, and the others with the reason why not."""
    leaving, made = by_sender(pairs), []
    known, heard = set(asked), set(answered)
    for one in machines:
        probed = {pair["to"]: pair for pair in leaving.get(one, [])}
        made += [probed.get(other) or _unprobed(one, other, known, heard) for other in machines if other != one]
    return made


def _unprobed(one: str, other: str, asked: Collection[str], answered: Collection[str]) -> Pair:
    silent = next((machine for machine in (one, other) if machine in asked and machine not in answered), None)
    pair = {"from": one, "to": other}
    if silent is not None:
        return {
            **pair,
            "status": "fail",
            "verdict": "no_answer",
            "message": f"{silent} does not answer, so the pair could not be probed.",
            "remedy": f"Start {silent} or check its network.",
        }
    left_out = next((machine for machine in (one, other) if machine not in asked), None)
    message = f"{left_out} is not among the hosts of this run." if left_out else "The pair was not probed."
    return {**pair, "status": "skipped", "verdict": "not_probed", "message": message, "remedy": ""}


def reachability_checks(machines: Sequence[str], pairs: Sequence[Pair]) -> list[Check]:
    """For each member, which others it reaches. The verdict contains the pairs individually."""
    title = ("reachability.peers", "Every other member can be reached")
    made = []
    leaving = by_sender(pairs)
    for machine in machines:
        own = leaving.get(machine, [])
        bad = [pair for pair in own if pair["status"] == "fail"]
        broken = [pair for pair in own if pair["status"] == "error"]
        good = [pair for pair in own if pair["status"] == "pass"]
        judged = len(own) - sum(1 for pair in own if pair["status"] == "skipped")
        if bad or broken:
            listed = bad or broken
            remedies = list(dict.fromkeys(pair["remedy"] for pair in listed if pair["remedy"]))
            reason = " ".join(_first(list(dict.fromkeys(_said(pair) for pair in listed))))
            status = "fail" if bad else "error"
            made.append(
                check(*title, machine, status, len(good), len(own), "peers", reason, " ".join(_first(remedies)))
            )
        elif not judged:
            reason = own[0]["message"] if own else "The cluster has no other member."
            made.append(check(*title, machine, "skipped", reason=reason))
        else:
            made.append(check(*title, machine, "pass", len(good), judged, "peers"))
    return made


#: The number of pairs of a member that are described individually.
_SENTENCES = 20


def _first(sentences: list[str]) -> list[str]:
    """The first sentences; all of them are with the pairs."""
    rest = len(sentences) - _SENTENCES
    return sentences if rest <= 0 else [*sentences[:_SENTENCES], f"The same applies to {rest} others."]


def _said(pair: Pair) -> str:
    """A pair's message, which contains the peer's name exactly once."""
    message = pair["message"].rstrip(".")
    return f"{message}." if pair["to"] in message or pair["from"] in message else f"{pair['to']}: {message}."


def clock_checks(machines: Sequence[str], pairs: Sequence[Pair], limit_s: float) -> list[Check]:
    """For each member, the largest difference from another's clock. munge rejects differences of minutes."""
    title = ("clock.offset", "The clock agrees with the other members'")
    remedy = "Run chrony or systemd-timesyncd on both; munge rejects credentials if clocks differ."
    made = []
    leaving = by_sender(pairs)
    for machine in machines:
        seen = {
            pair["to"]: float(pair["offset_s"]) for pair in leaving.get(machine, []) if pair.get("offset_s") is not None
        }
        if not seen:
            reason = "The clock could not be compared with another member's."
            made.append(check(*title, machine, "skipped", reason=reason))
            continue
        peer = max(seen, key=lambda one: abs(seen[one]))
        worst = round(abs(seen[peer]), 3)
        status = "pass" if worst <= limit_s else "fail"
        reason = f"{peer}'s clock is {worst:g} s {'ahead of' if seen[peer] > 0 else 'behind'} {machine}'s."
        made.append(check(*title, machine, status, worst, f"≤ {limit_s:g}", "s", reason, remedy))
    return made


#: The kinds of links to which the general minimum does not apply.
_OF_PODS = "of pods"


def _sites(record: Record) -> dict[str, str]:
    """The site of each member; '' for a pod, whose links all use its userspace daemon."""
    confined = pods(record)
    return {one["machine"]: "" if one["machine"] in confined else one["site"] for one in record["members"]}


def _like(sites: Mapping[str, str], pair: Pair) -> str:
    """The kind of a link, within which links are comparable: inside a site, between two sites, and those of pods."""
    if not (sites[pair["from"]] and sites[pair["to"]]):
        return _OF_PODS
    return "within a site" if sites[pair["from"]] == sites[pair["to"]] else "between two sites"


def bandwidth_gates(record: Record, pairs: Sequence[Pair], minimum_gbps: float) -> dict[str, float]:
    """The required rate for each kind of link: the configured minimum, or a fraction of the median of the kind."""
    gates = {}
    sites = _sites(record)
    for kind in ("within a site", "between two sites", _OF_PODS):
        rates = [
            float(pair["bandwidth_gbps"])
            for pair in pairs
            if pair.get("bandwidth_gbps") is not None and _like(sites, pair) == kind
        ]
        if minimum_gbps and kind != _OF_PODS:
            gates[kind] = minimum_gbps
        elif len(rates) >= _ENOUGH_LINKS:
            gates[kind] = median(rates) * _SHARE_OF_MEDIAN
    return gates


def mark_slow(record: Record, pairs: Sequence[Pair], gates: Mapping[str, float]) -> list[Pair]:
    """Add ``slow`` to the pairs whose throughput was measured."""
    sites = _sites(record)
    return [
        pair
        if pair.get("bandwidth_gbps") is None
        else {**pair, "slow": pair["bandwidth_gbps"] < gates.get(_like(sites, pair), 0.0)}
        for pair in pairs
    ]


def bandwidth_checks(
    record: Record,
    pairs: Sequence[Pair],
    gates: Mapping[str, float],
    minimum_gbps: float,
    asked: Sequence[str],
    level: str,
) -> list[Check]:
    """For each member, its slowest outgoing link, from pairs processed by ``mark_slow``."""
    title = ("reachability.bandwidth", "The link to every other member is fast enough")
    if not any("slow" in pair for pair in pairs):
        reason = (
            "Throughput is only measured at levels full and burn."
            if level == "quick"
            else "No throughput was measured."
        )
        return [check(*title, None, "skipped", reason=reason)]
    made = []
    sites, leaving = _sites(record), by_sender(pairs)
    for machine in asked:
        sent = leaving.get(machine, [])
        own = [pair for pair in sent if "slow" in pair]
        lost = [pair["to"] for pair in sent if pair["status"] == "pass" and "slow" not in pair]
        if not own:
            made.append(check(*title, machine, "skipped", reason=f"No throughput from {machine} was measured."))
            continue
        slow = [pair for pair in own if pair["slow"]]
        judged = [pair for pair in own if _like(sites, pair) in gates]
        alone = [pair for pair in own if _like(sites, pair) not in gates]
        least = _slowest(slow or judged or alone)
        gate = gates.get(_like(sites, least))
        words = [_slow_words(pair, gates[_like(sites, pair)], minimum_gbps, _like(sites, pair)) for pair in slow]
        remedy = (
            "Check both ends: the link rate and errors (ethtool, ip -s link), shaping (tc qdisc), and the switch port."
        )
        if lost and not slow:
            words = [f"The throughput from {machine} to {', '.join(lost)} could not be measured."]
            remedy = "Check whether the members are busy, and run it again."
        too_few = _too_few({_like(sites, pair) for pair in alone})
        status = "fail" if slow else "error" if lost else "pass" if judged else "skipped"
        actual, required = round(float(least["bandwidth_gbps"]), 3), None if gate is None else f"≥ {gate:.3g}"
        reason = too_few if status == "skipped" else " ".join(words)
        made.append(check(*title, machine, status, actual, required, "Gbit/s", reason, remedy if words else ""))
        if alone and status != "skipped":
            made.append(unjudged(made[-1], too_few, round(float(_slowest(alone)["bandwidth_gbps"]), 3), "Gbit/s"))
    return made


def _slowest(pairs: Sequence[Pair]) -> Pair:
    return min(pairs, key=lambda pair: float(pair["bandwidth_gbps"]))


def _too_few(kinds: Collection[str]) -> str:
    """Why links of these kinds are not judged."""
    words = f"Measured, but not judged: there are too few links {' and '.join(sorted(kinds))} to compare."
    return words if kinds == {_OF_PODS} else f"{words} Set check_min_bandwidth_gbps to require a minimum."


def _slow_words(pair: Pair, gate: float, minimum_gbps: float, kind: str) -> str:
    ends = f"The link from {pair['from']} to {pair['to']} carries {pair['bandwidth_gbps']:.3g} Gbit/s"
    if minimum_gbps and kind != _OF_PODS:
        return f"{ends}, but {minimum_gbps:g} are required."
    return f"{ends}; the median {kind} is {gate / _SHARE_OF_MEDIAN:.3g}."


def health_checks(
    machines: Sequence[str],
    answered: Sequence[str],
    health: Mapping[str, Any] | None,
    userspace_only: Sequence[str] = (),
) -> list[Check]:
    """node_health's own results; an error for a member that answered without a result."""
    title = ("health.node", "The node is healthy")
    if health is None:
        return [check(*title, None, "skipped", reason="Node health was not checked in this run.")]
    made: list[Check] = []
    for machine in machines:
        results = (health.get(machine) or {}).get("checks")
        if machine in userspace_only:
            made.append(userspace_only_check(*title, machine))
        elif results:
            made += [{**result, "host": machine} for result in results]
        elif machine in answered:
            said = str((health.get(machine) or {}).get("msg") or "node_health returned no result").rstrip(".")
            remedy = f"Run ansible -m gpumesh.cluster.node_health {machine} to see why."
            made.append(check(*title, machine, "error", reason=f"{said}.", remedy=remedy))
        else:
            reason = f"{machine} was not examined, so its health is not known."
            made.append(check(*title, machine, "skipped", reason=reason))
    return made


def parse_sinfo(text: str) -> dict[str, tuple[str, str, str]]:
    """State, address and reason by node, from ``sinfo -h -N -o "%N|%T|%o|%E"``, a line per node and partition."""
    nodes = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        if len(fields) == 4 and fields[0]:
            nodes[fields[0]] = (fields[1], fields[2], "" if fields[3] == "none" else fields[3])
    return nodes


def slurm_checks(record: Record, slurm: Mapping[str, Any] | None, userspace_only: Sequence[str] = ()) -> list[Check]:
    """Whether each member is a node that accepts jobs, at its cluster address."""
    title = ("slurm.node", "The Slurm node accepts jobs at the member's cluster address")
    manager = record["manager"]
    trouble, status = _command_trouble(slurm, "sinfo", manager)
    if trouble or slurm is None:
        remedy = "Check slurmctld on the manager: systemctl status slurmctld." if status != "skipped" else ""
        return [check(*title, None, status, reason=trouble, remedy=remedy)]
    nodes = parse_sinfo(str(slurm.get("stdout", "")))
    made = []
    for machine, view in member_views(record).items():
        required, remedy = f"idle at {view['address']}", "Run the slurm playbook."
        if machine in userspace_only:
            made.append(userspace_only_check(*title, machine))
            continue
        if machine not in nodes:
            reason = f"slurmctld on {manager} has no node {machine}."
            made.append(check(*title, machine, "fail", "no such node", required, "", reason, remedy))
            continue
        state, address, reason = nodes[machine]
        known, flags = show.node_state([state])
        if show.held(flags) and known != "down" and reason and not _of_programs(reason):
            # Whoever drained it knows why, and it is not a fault of the cluster.
            words = f"The node is {state}: {reason}."
            made.append(check(*title, machine, "skipped", state, required, reason=words))
            continue
        problem = ""
        if not show.ready(known, flags):
            problem = f"The node is {state}{f': {reason}' if reason else ''}."
            remedy = _node_remedy(machine, reason)
        elif address != view["address"]:
            problem = f"slurmctld connects to {machine} at {address} instead of {view['address']}."
        status = "fail" if problem else "pass"
        made.append(check(*title, machine, status, f"{state} at {address}", required, "", problem, remedy))
    return made


def _of_programs(reason: str) -> bool:
    """Whether this collection or Slurm drained the node, by the reasons that the controller and its daemons write."""
    return reason.startswith(("gpumesh", *_SLURMS_REASONS)) or "reported lower than configured" in reason


def _node_remedy(machine: str, reason: str) -> str:
    if reason.startswith(MARK):
        return f"Fix this on {machine}: the node's own check returns it to service the next time it runs."
    if reason.startswith(slurm_nodes.MARK + slurm_nodes.LEAVING):
        return (
            f"A removal of {machine} was not completed. Run the playbook remove again, or to keep the machine: "
            f"scontrol update nodename={machine} state=resume."
        )
    return (
        f"Find out what is wrong with slurmd on {machine}, then run: scontrol update nodename={machine} state=resume."
    )


def _command_trouble(result: Mapping[str, Any] | None, program: str, manager: str) -> tuple[str, str]:
    """Why a command on the manager returned nothing, and the resulting status; two empty texts if it did."""
    if result is None or result.get("skipped"):
        return f"{program} was not run in this run.", "skipped"
    if result.get("unreachable"):
        return f"The manager {manager} does not answer, so {program} could not be run.", "error"
    if "rc" not in result or (result.get("rc") == 2 and "No such file" in str(result.get("msg"))):
        said = str(result.get("msg") or "")
        if "No such file" in said:
            return f"Slurm is not installed on the manager {manager}.", "skipped"
        return f"{program} on {manager} returned no result: {said or 'no message'}.", "error"
    # coreutils' timeout, with which it is run, exits 127 for a missing program.
    if result["rc"] == 127:
        return f"Slurm is not installed on the manager {manager}.", "skipped"
    if result["rc"] != 0:
        output = (str(result.get("stderr") or "").strip() or str(result.get("stdout") or "").strip()).splitlines()
        return f"{program} on {manager} exited {result['rc']}: {output[-1] if output else 'no message'}.", "error"
    return "", ""


def _held_words(held: Mapping[str, Sequence[str]]) -> str:
    """Which jobs occupy which nodes; each job once, with its nodes."""
    by_job: dict[str, list[str]] = {}
    for node, jobs in held.items():
        for job in jobs:
            by_job.setdefault(job, []).append(node)
    return "; ".join(f"job {job} occupies {', '.join(nodes)}" for job, nodes in by_job.items())


def _not_launched(job: Mapping[str, Any]) -> str:
    """Where no task was launched, and why; empty if there are no such nodes."""
    held, barred = job.get("held") or {}, job.get("barred") or {}
    words = [_held_words(held)] if held else []
    words += [f"{node} is {state}" for node, state in barred.items()]
    nodes = [*held, *barred]
    return f"Not checked on {', '.join(nodes)}: {'; '.join(words)}." if nodes else ""


def job_checks(
    record: Record, job: Mapping[str, Any] | None, userspace_only: Sequence[str] = ()
) -> tuple[list[Check], list[dict[str, Any]]]:
    """Whether a task of one job ran on every member with room. Returns the checks, and the job for the report."""
    purpose = "A job runs on every member"
    trouble, status = _command_trouble(job, "srun", record["manager"])
    if job is None or status == "skipped":
        return [check("slurm.job", purpose, None, "skipped", reason=trouble)], []
    members = [member["machine"] for member in record["members"] if member["machine"] not in userspace_only]
    machines = list(job.get("launched", members))
    elsewhere = _not_launched(job)
    if not machines and elsewhere:
        return [check("slurm.job", purpose, None, "skipped", reason=elsewhere)], []
    made = _job_check(purpose, machines, job, trouble)
    beside: list[Check] = []
    if job.get("away"):
        made, beside = _with_away(made, job)
    made_elsewhere = [
        check("slurm.room", "Every member has free resources for a job", None, "skipped", reason=elsewhere)
    ]
    output = "\n".join(
        part for part in (str(job.get("stdout") or "").strip(), str(job.get("stderr") or "").strip()) if part
    )
    shown = {
        "title": "One task on every member, started by Slurm",
        "command": " ".join(str(part) for part in job.get("cmd") or ["srun"]),
        "status": made["status"],
        "output": output,
    }
    return [made, *beside, *(made_elsewhere if elsewhere else [])], [shown]


def _with_away(made: Check, job: Mapping[str, Any]) -> tuple[Check, list[Check]]:
    """The check of a job of which Slurm lost the first attempt, and what it does not judge."""
    away = f"{', '.join(job['away'])} had been away when Slurm placed"
    if job["attempts"] < 2:
        words = f"{away} the job, which was not run again because the nodes did not become available in time."
    elif made["status"] == "pass":
        words = f"Slurm lost a job: {away} it, or slurmd ended there. A second one was run, and is judged."
        return made, [unjudged(made, f"{words} See the log of slurmd if nobody restarted the node.")]
    else:
        words = f"This was the second attempt: {away} the first job."
    return {**made, "reason": f"{made['reason']} {words}"}, []


def _job_check(purpose: str, machines: Sequence[str], job: Mapping[str, Any], trouble: str) -> Check:
    required = f"{len(machines)} nodes"
    if trouble:
        refused = next((words for words in _REFUSED if words in str(job.get("stderr"))), "")
        if refused:
            # This is not a fault of the cluster, whose users have accounts.
            reason = f"{trouble} Add the account for the check to slurm_accounts, or set check_job_user."
            return check("slurm.job", purpose, None, "skipped", reason=reason)
        return check("slurm.job", purpose, None, "fail", "no job", required, reason=trouble, remedy=_JOB_REMEDY)
    ran = {line.strip() for line in str(job["stdout"]).splitlines()}
    missing = [machine for machine in machines if machine not in ran]
    return check(
        "slurm.job",
        purpose,
        None,
        "fail" if missing else "pass",
        f"{len(machines) - len(missing)} nodes",
        required,
        reason=f"No task ran on {', '.join(missing)}.",
        remedy=_JOB_REMEDY,
    )


def collective_checks(results: Sequence[Mapping[str, Any]] | None, level: str) -> list[Check]:
    """Each collective that ran, by its own result."""
    purpose = "Collectives are correct and fast enough"
    ran = [result for result in results or [] if not result.get("skipped")]
    if not ran:
        reason = (
            "Collectives are only run at levels full and burn."
            if level == "quick"
            else "No collective was run: see check_collectives."
        )
        return [check("collective.run", purpose, None, "skipped", reason=reason)]
    made = []
    for result in ran:
        name = str(result.get("collective") or result.get("item") or "unknown")
        title = (f"collective.{name}", f"{name} is correct and fast enough")
        if "collective" not in result:
            # The module itself failed, or its host does not respond: that is not a pass, and must be reported.
            said = str(result.get("msg") or "collective_test returned no result").rstrip(".")
            made.append(check(*title, None, "error", reason=f"{said}.", remedy="Fix the error, and run it again."))
            continue
        failure = result.get("error") or {}
        status = str(result.get("status") or "error")
        measured, required = result.get("busbw_gbps"), result.get("min_busbw_gbps")
        reason = str(failure.get("message") or "The collective returned no result.")
        remedy = "" if status == "skipped" else str(failure.get("remedy") or "Run it manually.")
        made.append(check(*title, None, status, measured, required, "GB/s", reason, remedy))
        if result.get("left_out"):
            words = str(result["left_out"])
            made.append(check(f"collective.{name}_members", f"{name} uses all nodes", None, "skipped", reason=words))
        if result.get("not_judged"):
            words = str(result["not_judged"])
            made.append(check(f"collective.{name}_speed", f"{name} is fast enough", None, "skipped", reason=words))
    return made


def earlier(previous: Any) -> Mapping[str, Any] | None:
    """Parse the previous verdict; None if it cannot be used, which starts a new history."""
    if isinstance(previous, str):
        try:
            previous = json.loads(previous)
        except ValueError:
            return None
    return previous if isinstance(previous, Mapping) and previous else None


def judge(
    record: Record,
    evidence: Mapping[str, Any],
    generated_at: str,
    level: str = "quick",
    max_clock_offset: float = 5.0,
    min_bandwidth_gbps: float = 0.0,
    volume_limits: Mapping[str, float] | None = None,
    rdma_limits: rdma.Limits = rdma.BY_THEIR_KIND,
    previous: Any = None,
    partial: bool = False,
) -> Verdict:
    """The verdict on a cluster from all results of a run; ``partial`` if tags or a limit have excluded something."""
    machines = [member["machine"] for member in record["members"]]
    userspace_only = evidence.get("userspace_only", [])
    judged = [machine for machine in machines if machine not in userspace_only]
    asked = [machine for machine in evidence.get("asked", machines) if machine in judged]
    answered = [machine for machine in evidence.get("answered", []) if machine in machines]
    reachability = evidence.get("reachability")
    probed = list(reachability.get("pairs", [])) if reachability and not reachability.get("skipped") else []
    pairs = complete_pairs(machines, probed, asked, answered)
    gates = bandwidth_gates(record, pairs, min_bandwidth_gbps)
    pairs = mark_slow(record, pairs, gates)
    ends = (reachability or {}).get("rdma") or {}
    pairs = rdma.mark_slow(pairs, ends, rdma_limits)
    job_results, jobs = job_checks(record, evidence.get("job"), userspace_only)
    volume_results, volumes = volume_checks(record, evidence.get("volumes"), Limits(**(volume_limits or {})), level)
    checks = [
        *member_checks(machines, asked, answered, userspace_only),
        *reachability_checks(machines, pairs),
        *(dict(one) for one in (reachability or {}).get("checks", []) if one["host"] in machines),
        *bandwidth_checks(record, pairs, gates, min_bandwidth_gbps, asked, level),
        *rdma.checks(pairs, ends, rdma_limits, asked, level),
        *clock_checks(machines, pairs, max_clock_offset),
        *health_checks(machines, answered, evidence.get("health"), userspace_only),
        *volume_results,
        *tracking_checks(record, answered, evidence.get("tracking"), userspace_only),
        *slurm_checks(record, evidence.get("slurm"), userspace_only),
        *job_results,
        *collective_checks(evidence.get("collectives"), level),
    ]
    return assemble(
        record=record,
        checks=checks,
        generated_at=generated_at,
        level=level,
        answered=answered,
        pairs=pairs,
        collectives=[_shown(result) for result in evidence.get("collectives") or [] if "collective" in result],
        jobs=jobs,
        volumes=volumes,
        previous=earlier(previous),
        partial=partial,
    )


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a collective's result that belongs in the verdict: neither the program's output, nor its environment."""
    keys = (
        "collective",
        "ranks",
        "nodes",
        "rows",
        "busbw_gbps",
        "ring_busbw_gbps",
        "min_busbw_gbps",
        "threshold_source",
        "status",
    )
    return {"rows": [], **{key: result.get(key) for key in keys if key in result or key != "rows"}}

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the results of modules and commands to checks. A missing result becomes a check that reports this."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.program import REASON_PREFIX
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.derive import find_pods, member_views
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import nodes as slurm_nodes
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import show
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import rdma
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.checks import (
    ONLY_AT_FULL_LEVELS,
    group_by_sender,
    make_check,
    make_unjudged_check,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.tracking import tracking_checks
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import (
    Check,
    Pair,
    Verdict,
    assemble_verdict,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.versions import version_checks
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.volumes import VolumeLimits, volume_checks

#: Without a configured minimum, a link is slow below this fraction of the median of similar links.
_MIN_MEDIAN_SHARE = 0.2
#: With fewer measurements, outliers cannot be identified.
_MIN_LINK_COUNT = 6
_JOB_REMEDY = "Check the nodes with sinfo -R, and the log of slurmctld."
#: Parts of Slurm's messages if it enforces accounts and a user has none.
_ACCOUNT_ERRORS = ("Invalid account", "Invalid qos specification", "User's group not permitted")
#: The prefixes of reasons set by slurmctld and slurmd.
_SLURM_REASONS = (
    *("Not responding", "Node unexpectedly rebooted", "Low ", "Prolog error", "Epilog error", "Kill task failed"),
    *("batch job complete failure", "Duplicate jobid", "Can't save job state", "gres/", "Reboot ASAP", "slurmctld"),
)


def userspace_only_check(check_id: str, purpose: str, machine: str) -> Check:
    """Return the skipped check of a userspace-only member."""
    reason = f"{machine} is a userspace-only member: others can connect to it, but it can only connect through a proxy."
    return make_check(check_id, purpose, machine, "skipped", reason=reason)


def member_checks(
    machines: Sequence[str],
    machines_in_run: Sequence[str],
    answering_machines: Sequence[str],
    userspace_only: Sequence[str] = (),
) -> list[Check]:
    """Check which members answered. A member that is not in this run is reported as skipped."""
    check_title = ("members.answer", "The member answers over SSH")
    answer_checks = []
    for machine in machines:
        if machine in userspace_only:
            answer_checks.append(userspace_only_check(*check_title, machine))
        elif machine in answering_machines:
            answer_checks.append(make_check(*check_title, machine, "pass", "answers", "answers"))
        elif machine in machines_in_run:
            reason = f"{machine} does not answer over SSH, or failed before it could be checked."
            remedy = (
                f"Start {machine} or check its network. If it is permanently lost, run the remove playbook with "
                f"cluster_machine={machine}."
            )
            answer_checks.append(make_check(*check_title, machine, "fail", "no answer", "answers", "", reason, remedy))
        else:
            reason = f"{machine} is not among the hosts of this run."
            answer_checks.append(make_check(*check_title, machine, "skipped", reason=reason))
    return answer_checks


def complete_pairs(
    machines: Sequence[str], pairs: Sequence[Pair], machines_in_run: Sequence[str], answering_machines: Sequence[str]
) -> list[Pair]:
    """Return all ordered pairs of members: the probed ones, and the others with the reason why they were not probed."""
    pairs_by_sender, all_pairs = group_by_sender(pairs), []
    run_machines, answering_set = set(machines_in_run), set(answering_machines)
    for sender in machines:
        probed_pairs = {pair["to"]: pair for pair in pairs_by_sender.get(sender, [])}
        all_pairs += [
            probed_pairs.get(receiver) or _make_unprobed_pair(sender, receiver, run_machines, answering_set)
            for receiver in machines
            if receiver != sender
        ]
    return all_pairs


def _make_unprobed_pair(
    sender: str, receiver: str, machines_in_run: Collection[str], answering_machines: Collection[str]
) -> Pair:
    silent_machine = next(
        (machine for machine in (sender, receiver) if machine in machines_in_run and machine not in answering_machines),
        None,
    )
    pair = {"from": sender, "to": receiver}
    if silent_machine is not None:
        return {
            **pair,
            "status": "fail",
            "verdict": "no_answer",
            "message": f"{silent_machine} does not answer, so the pair could not be probed.",
            "remedy": f"Start {silent_machine} or check its network.",
        }
    excluded_machine = next((machine for machine in (sender, receiver) if machine not in machines_in_run), None)
    message = (
        f"{excluded_machine} is not among the hosts of this run." if excluded_machine else "The pair was not probed."
    )
    return {**pair, "status": "skipped", "verdict": "not_probed", "message": message, "remedy": ""}


def reachability_checks(machines: Sequence[str], pairs: Sequence[Pair]) -> list[Check]:
    """Check which others each member reaches. The verdict contains the pairs individually."""
    check_title = ("reachability.peers", "Every other member can be reached")
    peer_checks = []
    pairs_by_sender = group_by_sender(pairs)
    for machine in machines:
        sent_pairs = pairs_by_sender.get(machine, [])
        failed_pairs = [pair for pair in sent_pairs if pair["status"] == "fail"]
        unchecked_pairs = [pair for pair in sent_pairs if pair["status"] == "error"]
        passed_pairs = [pair for pair in sent_pairs if pair["status"] == "pass"]
        judged_count = len(sent_pairs) - sum(1 for pair in sent_pairs if pair["status"] == "skipped")
        if failed_pairs or unchecked_pairs:
            listed_pairs = failed_pairs or unchecked_pairs
            remedies = list(dict.fromkeys(pair["remedy"] for pair in listed_pairs if pair["remedy"]))
            reason = " ".join(
                _limit_sentences(list(dict.fromkeys(_format_pair_message(pair) for pair in listed_pairs)))
            )
            status = "fail" if failed_pairs else "error"
            peer_checks.append(
                make_check(
                    *check_title,
                    machine,
                    status,
                    len(passed_pairs),
                    len(sent_pairs),
                    "peers",
                    reason,
                    " ".join(_limit_sentences(remedies)),
                )
            )
        elif not judged_count:
            reason = sent_pairs[0]["message"] if sent_pairs else "The cluster has no other member."
            peer_checks.append(make_check(*check_title, machine, "skipped", reason=reason))
        else:
            peer_checks.append(make_check(*check_title, machine, "pass", len(passed_pairs), judged_count, "peers"))
    return peer_checks


#: The number of pairs of a member that are described individually.
_MAX_SENTENCES = 20


def _limit_sentences(sentences: list[str]) -> list[str]:
    """Return only the first sentences, since the verdict has all of them with the pairs."""
    omitted_count = len(sentences) - _MAX_SENTENCES
    return (
        sentences
        if omitted_count <= 0
        else [*sentences[:_MAX_SENTENCES], f"The same applies to {omitted_count} others."]
    )


def _format_pair_message(pair: Pair) -> str:
    """Return the message of a pair, with the name of the peer exactly once."""
    message = pair["message"].rstrip(".")
    return f"{message}." if pair["to"] in message or pair["from"] in message else f"{pair['to']}: {message}."


def clock_checks(machines: Sequence[str], pairs: Sequence[Pair], limit_s: float) -> list[Check]:
    """Check the largest clock offset of each member from the others. munge rejects differences of minutes."""
    check_title = ("clock.offset", "The clock agrees with the other members'")
    remedy = "Run chrony or systemd-timesyncd on both; munge rejects credentials if clocks differ."
    offset_checks = []
    pairs_by_sender = group_by_sender(pairs)
    for machine in machines:
        offsets_by_peer = {
            pair["to"]: float(pair["offset_s"])
            for pair in pairs_by_sender.get(machine, [])
            if pair.get("offset_s") is not None
        }
        if not offsets_by_peer:
            reason = "The clock could not be compared with another member's."
            offset_checks.append(make_check(*check_title, machine, "skipped", reason=reason))
            continue
        peer = max(offsets_by_peer, key=lambda candidate: abs(offsets_by_peer[candidate]))
        worst_offset = round(abs(offsets_by_peer[peer]), 3)
        status = "pass" if worst_offset <= limit_s else "fail"
        reason = (
            f"{peer}'s clock is {worst_offset:g} s {'ahead of' if offsets_by_peer[peer] > 0 else 'behind'} {machine}'s."
        )
        offset_checks.append(
            make_check(*check_title, machine, status, worst_offset, f"≤ {limit_s:g}", "s", reason, remedy)
        )
    return offset_checks


#: The kind of links to which the configured minimum does not apply.
_POD_LINKS = "of pods"


def _map_sites(record: Record) -> dict[str, str]:
    """Return the site of each member; '' for a pod, whose links all use its userspace daemon."""
    pod_machines = find_pods(record)
    return {
        member["machine"]: "" if member["machine"] in pod_machines else member["site"] for member in record["members"]
    }


def _classify_link(sites_by_machine: Mapping[str, str], pair: Pair) -> str:
    """Return the kind of a link: within a site, between two sites, or of pods. Links of one kind are comparable."""
    if not (sites_by_machine[pair["from"]] and sites_by_machine[pair["to"]]):
        return _POD_LINKS
    return "within a site" if sites_by_machine[pair["from"]] == sites_by_machine[pair["to"]] else "between two sites"


def bandwidth_thresholds(record: Record, pairs: Sequence[Pair], minimum_gbps: float) -> dict[str, float]:
    """Return the required rate of each kind of link: the configured minimum, or a fraction of the kind's median."""
    thresholds_by_kind = {}
    sites_by_machine = _map_sites(record)
    for link_kind in ("within a site", "between two sites", _POD_LINKS):
        measured_rates = [
            float(pair["bandwidth_gbps"])
            for pair in pairs
            if pair.get("bandwidth_gbps") is not None and _classify_link(sites_by_machine, pair) == link_kind
        ]
        if minimum_gbps and link_kind != _POD_LINKS:
            thresholds_by_kind[link_kind] = minimum_gbps
        elif len(measured_rates) >= _MIN_LINK_COUNT:
            thresholds_by_kind[link_kind] = median(measured_rates) * _MIN_MEDIAN_SHARE
    return thresholds_by_kind


def mark_slow_links(record: Record, pairs: Sequence[Pair], thresholds_by_kind: Mapping[str, float]) -> list[Pair]:
    """Add ``slow`` to the pairs whose throughput was measured."""
    sites_by_machine = _map_sites(record)
    return [
        pair
        if pair.get("bandwidth_gbps") is None
        else {
            **pair,
            "slow": pair["bandwidth_gbps"] < thresholds_by_kind.get(_classify_link(sites_by_machine, pair), 0.0),
        }
        for pair in pairs
    ]


def bandwidth_checks(
    record: Record,
    pairs: Sequence[Pair],
    thresholds_by_kind: Mapping[str, float],
    minimum_gbps: float,
    machines_in_run: Sequence[str],
    level: str,
) -> list[Check]:
    """Check the slowest outgoing link of each member, from pairs processed by ``mark_slow_links``."""
    check_title = ("reachability.bandwidth", "The link to every other member is fast enough")
    if not any("slow" in pair for pair in pairs):
        reason = ONLY_AT_FULL_LEVELS if level == "quick" else "No throughput was measured."
        return [make_check(*check_title, None, "skipped", reason=reason)]
    link_checks = []
    sites_by_machine, pairs_by_sender = _map_sites(record), group_by_sender(pairs)
    for machine in machines_in_run:
        sent_pairs = pairs_by_sender.get(machine, [])
        measured_pairs = [pair for pair in sent_pairs if "slow" in pair]
        unmeasured_peers = [pair["to"] for pair in sent_pairs if pair["status"] == "pass" and "slow" not in pair]
        if not measured_pairs:
            link_checks.append(
                make_check(*check_title, machine, "skipped", reason=f"No throughput from {machine} was measured.")
            )
            continue
        slow_pairs = [pair for pair in measured_pairs if pair["slow"]]
        judged_pairs = [pair for pair in measured_pairs if _classify_link(sites_by_machine, pair) in thresholds_by_kind]
        incomparable_pairs = [
            pair for pair in measured_pairs if _classify_link(sites_by_machine, pair) not in thresholds_by_kind
        ]
        slowest_pair = _find_slowest_pair(slow_pairs or judged_pairs or incomparable_pairs)
        threshold = thresholds_by_kind.get(_classify_link(sites_by_machine, slowest_pair))
        sentences = [
            _format_slow_link(
                pair,
                thresholds_by_kind[_classify_link(sites_by_machine, pair)],
                minimum_gbps,
                _classify_link(sites_by_machine, pair),
            )
            for pair in slow_pairs
        ]
        remedy = (
            "Check both ends: the link rate and errors (ethtool, ip -s link), shaping (tc qdisc), and the switch port."
        )
        if unmeasured_peers and not slow_pairs:
            sentences = [f"The throughput from {machine} to {', '.join(unmeasured_peers)} could not be measured."]
            remedy = "Check whether the members are busy, and run it again."
        too_few_reason = _explain_too_few({_classify_link(sites_by_machine, pair) for pair in incomparable_pairs})
        status = "fail" if slow_pairs else "error" if unmeasured_peers else "pass" if judged_pairs else "skipped"
        actual, required = (
            round(float(slowest_pair["bandwidth_gbps"]), 3),
            None if threshold is None else f"≥ {threshold:.3g}",
        )
        reason = too_few_reason if status == "skipped" else " ".join(sentences)
        link_checks.append(
            make_check(*check_title, machine, status, actual, required, "Gbit/s", reason, remedy if sentences else "")
        )
        if incomparable_pairs and status != "skipped":
            link_checks.append(
                make_unjudged_check(
                    link_checks[-1],
                    too_few_reason,
                    round(float(_find_slowest_pair(incomparable_pairs)["bandwidth_gbps"]), 3),
                    "Gbit/s",
                )
            )
    return link_checks


def _find_slowest_pair(pairs: Sequence[Pair]) -> Pair:
    return min(pairs, key=lambda pair: float(pair["bandwidth_gbps"]))


def _explain_too_few(link_kinds: Collection[str]) -> str:
    """Explain why links of these kinds are not judged."""
    sentence = f"Not judged: there are too few links {join_names(sorted(link_kinds))} to compare."
    return sentence if link_kinds == {_POD_LINKS} else f"{sentence} Set check_min_bandwidth_gbps to require a minimum."


def _format_slow_link(pair: Pair, threshold: float, minimum_gbps: float, link_kind: str) -> str:
    statement = f"The link from {pair['from']} to {pair['to']} carries {pair['bandwidth_gbps']:.3g} Gbit/s"
    if minimum_gbps and link_kind != _POD_LINKS:
        return f"{statement}, but {minimum_gbps:g} are required."
    return f"{statement}; the median {link_kind} is {threshold / _MIN_MEDIAN_SHARE:.3g}."


def health_checks(
    machines: Sequence[str],
    answering_machines: Sequence[str],
    health_results: Mapping[str, Any] | None,
    userspace_only: Sequence[str] = (),
) -> list[Check]:
    """Return the results of node_health, and an error for each member that answered without a result."""
    check_title = ("health.node", "The node is healthy")
    if health_results is None:
        return [make_check(*check_title, None, "skipped", reason="Node health was not checked in this run.")]
    node_checks: list[Check] = []
    for machine in machines:
        machine_checks = (health_results.get(machine) or {}).get("checks")
        if machine in userspace_only:
            node_checks.append(userspace_only_check(*check_title, machine))
        elif machine_checks:
            node_checks += [{**result, "host": machine} for result in machine_checks]
        elif machine in answering_machines:
            error_message = str(
                (health_results.get(machine) or {}).get("msg") or "node_health returned no result"
            ).rstrip(".")
            remedy = f"Run ansible -m gpumesh.cluster.node_health {machine} to see why."
            node_checks.append(make_check(*check_title, machine, "error", reason=f"{error_message}.", remedy=remedy))
        else:
            reason = f"{machine} was not examined, so its health is unknown."
            node_checks.append(make_check(*check_title, machine, "skipped", reason=reason))
    return node_checks


def split_job_result(
    job_result: Mapping[str, Any],
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return the result of sinfo, and that of the job that ran after it, from a result of job_test. None: did not run."""
    error = job_result.get("error")
    sinfo_result = job_result.get("sinfo") or (error.get("sinfo") if isinstance(error, Mapping) else None)
    if isinstance(sinfo_result, Mapping) and isinstance(sinfo_result.get("rc"), int):
        return sinfo_result, None if sinfo_result["rc"] else job_result
    # The module was skipped, or did not end by itself. Without a manager, there was nothing to run.
    return job_result or None, None if job_result.get("unreachable") else job_result or None


def parse_sinfo(sinfo_output: str) -> dict[str, tuple[str, str, str]]:
    """Parse state, address and reason by node from the output of ``launch.SINFO_COMMAND``."""
    nodes_by_name = {}
    for line in sinfo_output.splitlines():
        fields = line.split("|", 3)
        if len(fields) == 4 and fields[0]:
            nodes_by_name[fields[0]] = (fields[1], fields[2], "" if fields[3] == "none" else fields[3])
    return nodes_by_name


def slurm_checks(
    record: Record, sinfo_result: Mapping[str, Any] | None, userspace_only: Sequence[str] = ()
) -> list[Check]:
    """Check whether each member that runs jobs is a node that accepts them, at its cluster address."""
    check_title = ("slurm.node", "The Slurm node accepts jobs at the member's cluster address")
    manager = record["manager"]
    command_problem, status = _find_command_problem(sinfo_result, "sinfo", manager)
    if command_problem or sinfo_result is None:
        remedy = "Check slurmctld on the manager: systemctl status slurmctld." if status != "skipped" else ""
        return [make_check(*check_title, None, status, reason=command_problem, remedy=remedy)]
    nodes_by_name = parse_sinfo(str(sinfo_result.get("stdout", "")))
    node_checks = []
    for machine, member_view in member_views(record).items():
        if not member_view["slurm_node"]:
            if machine in nodes_by_name:
                reason = f"{machine} is to run no jobs, but is still a node."
                node_checks.append(
                    make_check(*check_title, machine, "fail", reason=reason, remedy="Run the site playbook.")
                )
            continue
        required, remedy = f"idle at {member_view['address']}", "Run the slurm playbook."
        if machine in userspace_only:
            node_checks.append(userspace_only_check(*check_title, machine))
            continue
        if machine not in nodes_by_name:
            reason = f"slurmctld on {manager} has no node {machine}."
            node_checks.append(make_check(*check_title, machine, "fail", "no such node", required, "", reason, remedy))
            continue
        state, address, reason = nodes_by_name[machine]
        base_state, flags = show.parse_node_state([state])
        if show.is_drained(flags) and base_state != "down" and reason and not _is_automatic_reason(reason):
            # An administrator drained the node for a known reason, so this is not a fault of the cluster.
            sentence = f"The node is {state}: {reason}."
            node_checks.append(make_check(*check_title, machine, "skipped", state, required, reason=sentence))
            continue
        problem = ""
        if not show.accepts_jobs(base_state, flags):
            problem = f"The node is {state}{f': {reason}' if reason else ''}."
            remedy = _node_remedy(machine, reason)
        elif address != member_view["address"]:
            problem = f"slurmctld connects to {machine} at {address} instead of {member_view['address']}."
        status = "fail" if problem else "pass"
        node_checks.append(
            make_check(*check_title, machine, status, f"{state} at {address}", required, "", problem, remedy)
        )
    return node_checks


def _is_automatic_reason(drain_reason: str) -> bool:
    """Whether this collection or Slurm drained the node, by the reasons that the controller and its daemons write."""
    return drain_reason.startswith(("gpumesh", *_SLURM_REASONS)) or "reported lower than configured" in drain_reason


def _node_remedy(machine: str, drain_reason: str) -> str:
    if drain_reason.startswith(REASON_PREFIX):
        return f"Fix this on {machine}: the node's own check returns it to service the next time it runs."
    if drain_reason.startswith(slurm_nodes.REASON_PREFIX + slurm_nodes.LEAVING_REASON):
        return (
            f"A removal of {machine} was not completed. Run the playbook remove again, or to keep the machine: "
            f"scontrol update nodename={machine} state=resume."
        )
    if drain_reason.startswith(slurm_nodes.REASON_PREFIX + slurm_nodes.REBOOT_REASON):
        return (
            f"A reboot of {machine} was not completed, or is not yet. Once the machine works: "
            f"scontrol update nodename={machine} state=resume."
        )
    if drain_reason.startswith(slurm_nodes.REASON_PREFIX + slurm_nodes.WITHDRAWAL_REASON):
        return (
            f"The run of site that takes {machine} out of Slurm was not completed. Run it again, or if the machine is to "
            f"run jobs: scontrol update nodename={machine} state=resume."
        )
    return (
        f"Find out what is wrong with slurmd on {machine}, then run: scontrol update nodename={machine} state=resume."
    )


def _find_command_problem(command_result: Mapping[str, Any] | None, program: str, manager: str) -> tuple[str, str]:
    """Return why a command on the manager returned nothing, and the resulting status; two empty texts if it worked."""
    if command_result is None or command_result.get("skipped"):
        return f"{program} was not run in this run.", "skipped"
    if command_result.get("unreachable"):
        return f"The manager {manager} does not answer, so {program} could not be run.", "error"
    if "rc" not in command_result:
        error_message = str(command_result.get("msg") or "no message").rstrip(".")
        return f"{program} on {manager} returned no result: {error_message}.", "error"
    # The command runs under timeout from coreutils, which exits 127 for a missing program.
    if command_result["rc"] == 127:
        return f"Slurm is not installed on the manager {manager}.", "skipped"
    if command_result["rc"] != 0:
        output_lines = (
            str(command_result.get("stderr") or "").strip() or str(command_result.get("stdout") or "").strip()
        ).splitlines()
        return (
            f"{program} on {manager} exited {command_result['rc']}: {output_lines[-1] if output_lines else 'no message'}.",
            "error",
        )
    return "", ""


def _format_occupied_nodes(jobs_by_node: Mapping[str, Sequence[str]]) -> str:
    """Format which jobs occupy which nodes: each job once, with its nodes."""
    nodes_by_job: dict[str, list[str]] = {}
    for node, job_ids in jobs_by_node.items():
        for job_id in job_ids:
            nodes_by_job.setdefault(job_id, []).append(node)
    return "; ".join(f"job {job_id} occupies {', '.join(node_names)}" for job_id, node_names in nodes_by_job.items())


def _explain_not_launched(job: Mapping[str, Any]) -> str:
    """Explain on which nodes no task was launched, and why; empty if there are none."""
    jobs_by_node, states_by_node = job.get("occupied") or {}, job.get("unavailable") or {}
    phrases = [_format_occupied_nodes(jobs_by_node)] if jobs_by_node else []
    phrases += [f"{node} is {state}" for node, state in states_by_node.items()]
    excluded_nodes = [*jobs_by_node, *states_by_node]
    return f"Not checked on {', '.join(excluded_nodes)}: {'; '.join(phrases)}." if excluded_nodes else ""


def job_checks(
    record: Record, job: Mapping[str, Any] | None, userspace_only: Sequence[str] = ()
) -> tuple[list[Check], list[dict[str, Any]]]:
    """Check whether a job ran on every member with free resources. Returns the checks, and the job for the report."""
    purpose = "A job runs on every member"
    command_problem, status = _find_command_problem(job, "srun", record["manager"])
    if job is None or status == "skipped":
        return [make_check("slurm.job", purpose, None, "skipped", reason=command_problem)], []
    eligible_members = [machine for machine in membership.slurm_nodes(record) if machine not in userspace_only]
    launched_machines = list(job.get("launched", eligible_members))
    excluded_reason = _explain_not_launched(job)
    if not launched_machines and excluded_reason:
        return [make_check("slurm.job", purpose, None, "skipped", reason=excluded_reason)], []
    launch_check = _job_check(purpose, launched_machines, job, command_problem)
    unjudged_checks: list[Check] = []
    if job.get("away"):
        launch_check, unjudged_checks = _add_lost_attempt(launch_check, job)
    room_checks = [
        make_check("slurm.room", "Every member has free resources for a job", None, "skipped", reason=excluded_reason)
    ]
    output = "\n".join(
        part for part in (str(job.get("stdout") or "").strip(), str(job.get("stderr") or "").strip()) if part
    )
    job_report = {
        "title": "One task on every member, started by Slurm",
        "command": " ".join(str(part) for part in job.get("cmd") or ["srun"]),
        "status": launch_check["status"],
        "output": output,
    }
    return [launch_check, *unjudged_checks, *(room_checks if excluded_reason else [])], [job_report]


def _add_lost_attempt(launch_check: Check, job: Mapping[str, Any]) -> tuple[Check, list[Check]]:
    """Add the lost first attempt of a job to its check. Returns the check, and one for what it does not judge."""
    away_clause = f"{', '.join(job['away'])} had been down before Slurm placed"
    if job["attempts"] < 2:
        sentence = f"{away_clause} the job, which was not run again because the nodes did not become available in time."
    elif launch_check["status"] == "pass":
        sentence = (
            f"Slurm lost a job: {away_clause} it, or slurmd ended there. A second job was run, and its result counts."
        )
        return launch_check, [
            make_unjudged_check(launch_check, f"{sentence} See the log of slurmd if nobody restarted the node.")
        ]
    else:
        sentence = f"This was the second attempt: {away_clause} the first job."
    return {**launch_check, "reason": f"{launch_check['reason']} {sentence}"}, []


def _job_check(purpose: str, machines: Sequence[str], job: Mapping[str, Any], command_problem: str) -> Check:
    required = f"{len(machines)} nodes"
    if command_problem:
        account_error = next((error_text for error_text in _ACCOUNT_ERRORS if error_text in str(job.get("stderr"))), "")
        if account_error:
            # The users of the cluster have accounts, so this is not a fault of the cluster.
            reason = f"{command_problem} Add the account for the check to slurm_accounts, or set check_job_user."
            return make_check("slurm.job", purpose, None, "skipped", reason=reason)
        return make_check(
            "slurm.job", purpose, None, "fail", "no job", required, reason=command_problem, remedy=_JOB_REMEDY
        )
    reporting_machines = {line.strip() for line in str(job["stdout"]).splitlines()}
    missing_machines = [machine for machine in machines if machine not in reporting_machines]
    return make_check(
        "slurm.job",
        purpose,
        None,
        "fail" if missing_machines else "pass",
        f"{len(machines) - len(missing_machines)} nodes",
        required,
        reason=f"No task ran on {', '.join(missing_machines)}.",
        remedy=_JOB_REMEDY,
    )


def collective_checks(results: Sequence[Mapping[str, Any]] | None, level: str) -> list[Check]:
    """Return the check of each collective that ran, with its own status."""
    purpose = "Collectives are correct and fast enough"
    performed_results = [result for result in results or [] if not result.get("skipped")]
    if not performed_results:
        reason = ONLY_AT_FULL_LEVELS if level == "quick" else "No collective was run: see check_collectives."
        return [make_check("collective.run", purpose, None, "skipped", reason=reason)]
    run_checks = []
    for result in performed_results:
        collective_name = str(result.get("collective") or result.get("item") or "unknown")
        check_title = (f"collective.{collective_name}", f"{collective_name} is correct and fast enough")
        if "collective" not in result:
            # The module itself failed, or its host does not respond, which is not a pass and must be reported.
            error_message = str(result.get("msg") or "collective_test returned no result").rstrip(".")
            run_checks.append(
                make_check(
                    *check_title, None, "error", reason=f"{error_message}.", remedy="Fix the error, and run it again."
                )
            )
            continue
        failure = result.get("error") or {}
        status = str(result.get("status") or "error")
        bus_bandwidth, required_bandwidth = result.get("busbw_gbps"), result.get("min_busbw_gbps")
        reason = str(failure.get("message") or "The collective returned no result.")
        remedy = "" if status == "skipped" else str(failure.get("remedy") or "Run it manually.")
        run_checks.append(
            make_check(*check_title, None, status, bus_bandwidth, required_bandwidth, "GB/s", reason, remedy)
        )
        if result.get("left_out"):
            remark = str(result["left_out"])
            run_checks.append(
                make_check(
                    f"collective.{collective_name}_members",
                    f"{collective_name} uses all nodes",
                    None,
                    "skipped",
                    reason=remark,
                )
            )
        if result.get("not_judged"):
            remark = str(result["not_judged"])
            run_checks.append(
                make_check(
                    f"collective.{collective_name}_speed",
                    f"{collective_name} is fast enough",
                    None,
                    "skipped",
                    reason=remark,
                )
            )
    return run_checks


def parse_previous_verdict(previous_verdict: Any) -> Mapping[str, Any] | None:
    """Parse the previous verdict; None if it cannot be used, which starts a new history."""
    if isinstance(previous_verdict, str):
        try:
            previous_verdict = json.loads(previous_verdict)
        except ValueError:
            return None
    return previous_verdict if isinstance(previous_verdict, Mapping) and previous_verdict else None


def judge_cluster(
    record: Record,
    evidence: Mapping[str, Any],
    generated_at: str,
    level: str = "quick",
    max_clock_offset: float = 5.0,
    min_bandwidth_gbps: float = 0.0,
    volume_limits: Mapping[str, float] | None = None,
    rdma_limits: rdma.RdmaLimits = rdma.DERIVED_LIMITS,
    previous: Any = None,
    partial: bool = False,
) -> Verdict:
    """Judge a cluster by all results of a run. ``partial``: tags or a limit have excluded something."""
    machines = [member["machine"] for member in record["members"]]
    userspace_only = evidence.get("userspace_only", [])
    judged_machines = [machine for machine in machines if machine not in userspace_only]
    machines_in_run = [machine for machine in evidence.get("queried", machines) if machine in judged_machines]
    answering_machines = [machine for machine in evidence.get("answered", []) if machine in machines]
    reachability = evidence.get("reachability")
    probed_pairs = list(reachability.get("pairs", [])) if reachability and not reachability.get("skipped") else []
    pairs = complete_pairs(machines, probed_pairs, machines_in_run, answering_machines)
    thresholds_by_kind = bandwidth_thresholds(record, pairs, min_bandwidth_gbps)
    pairs = mark_slow_links(record, pairs, thresholds_by_kind)
    rdma_ports = (reachability or {}).get("rdma") or {}
    pairs = rdma.mark_slow_pairs(pairs, rdma_ports, rdma_limits)
    job_results, job_reports = job_checks(record, evidence.get("job"), userspace_only)
    volume_results, volume_reports = volume_checks(
        record, evidence.get("volumes"), VolumeLimits(**(volume_limits or {})), level
    )
    checks = [
        *member_checks(machines, machines_in_run, answering_machines, userspace_only),
        *version_checks(record, evidence.get("health")),
        *reachability_checks(machines, pairs),
        *(
            dict(prober_check)
            for prober_check in (reachability or {}).get("checks", [])
            if prober_check["host"] in machines
        ),
        *bandwidth_checks(record, pairs, thresholds_by_kind, min_bandwidth_gbps, machines_in_run, level),
        *rdma.rdma_checks(pairs, rdma_ports, rdma_limits, machines_in_run, level),
        *clock_checks(machines, pairs, max_clock_offset),
        *health_checks(machines, answering_machines, evidence.get("health"), userspace_only),
        *volume_results,
        *tracking_checks(record, answering_machines, evidence.get("tracking"), userspace_only),
        *slurm_checks(record, evidence.get("slurm"), userspace_only),
        *job_results,
        *collective_checks(evidence.get("collectives"), level),
    ]
    return assemble_verdict(
        record=record,
        checks=checks,
        generated_at=generated_at,
        level=level,
        answering_machines=answering_machines,
        pairs=pairs,
        collectives=[
            _select_reported_keys(result) for result in evidence.get("collectives") or [] if "collective" in result
        ],
        jobs=job_reports,
        volumes=volume_reports,
        previous_verdict=parse_previous_verdict(previous),
        partial=partial,
    )


def _select_reported_keys(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a collective's result for the verdict, without the program's output and environment."""
    reported_keys = (
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
    return {"rows": [], **{key: result.get(key) for key in reported_keys if key in result or key != "rows"}}

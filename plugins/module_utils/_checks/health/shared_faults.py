# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which faults of a node so many others have that no further node is drained for them.

Each node reports its faults in its own comment in Slurm. How many nodes have each fault is in the extra text of one
node, so that a node with a fault asks about two nodes and not about all of them. The first node that finds no recent
count there counts the reports of all nodes, and writes it down for the others.

Source: scontrol(1), Comment and Extra of nodes (Extra since 21.08).
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import SlurmNode, parse_nodes_text

#: The prefix of the comment of a node that has a fault, whether it is drained or not.
COMMENT_PREFIX = "gpumesh-unfit:"
#: The prefix of the text with the counts.
COUNTS_PREFIX = "gpumesh-faults:"
#: Seconds for which a count is used.
COUNTS_LIFETIME = 20
_NODE_NAME = re.compile(r"^NodeName=(\S+)", re.IGNORECASE)
#: Slurm shows other fields after it. Our own comments contain no blanks.
_NODE_COMMENT = re.compile(rf"\sComment=({COMMENT_PREFIX}\S*|.*$)", re.IGNORECASE)
#: Slurm shows it after the comment. Only a comment may contain the same text.
_NODE_EXTRA = re.compile(r".*\sExtra=(.*)$", re.DOTALL | re.IGNORECASE)
_COUNTS = re.compile(rf"^{COUNTS_PREFIX}(\d{{1,15}}):(\d{{1,9}}):([a-z0-9_.=,]*)(?:\s|$)")
_CHECK_COUNT = re.compile(r"^([a-z0-9_.]+)=(\d{1,9})$")

#: A node with one of these neither runs jobs nor reports what it has: its comment is from an earlier time.
_SILENT_FLAGS = {"not_responding", "powered_down", "powering_down"}


class FaultCounts(NamedTuple):
    """How many nodes have each fault, of ``node_count`` that report theirs. ``counted_at``: seconds since 1970."""

    counted_at: int
    node_count: int
    affected_nodes: Mapping[str, int]

    def is_recent(self, now: float) -> bool:
        """Whether this is from the last seconds."""
        return abs(now - self.counted_at) <= COUNTS_LIFETIME

    def find_shared_faults(self, failing: Sequence[str], max_percent: float) -> List[str]:
        """Return the faults among these that more nodes have than may be drained for one fault."""
        max_affected_nodes = max(1.0, self.node_count * max_percent / 100)
        return [check for check in failing if self.affected_nodes.get(check, 0) > max_affected_nodes]


def choose_counting_node(record: Mapping[str, Any]) -> str:
    """Return the node with the counts: the manager's, or, if that runs no jobs, the first one."""
    node_names = membership.slurm_nodes(record)
    return str(record["manager"]) if record["manager"] in node_names else node_names[0]


def format_report(checks: Sequence[str]) -> str:
    """Return the comment of a node with these faults. Without any, it has none."""
    return COMMENT_PREFIX + ",".join(checks) if checks else ""


def parse_report(comment: str) -> List[str]:
    """Return the checks that a node reports as failed."""
    return comment[len(COMMENT_PREFIX) :].split(",") if comment.startswith(COMMENT_PREFIX) else []


def parse_comments(nodes_text: str) -> Dict[str, str]:
    """Return the comment of each node that has one, from ``scontrol --oneliner show node``.

    Comments of others may be followed by more fields.
    """
    comment_by_node = {}
    for line in nodes_text.splitlines():
        name, comment = _NODE_NAME.match(line), _NODE_COMMENT.search(line)
        if name and comment:
            comment_by_node[name.group(1)] = comment.group(1).strip()
    return comment_by_node


def format_counts(counts: FaultCounts) -> str:
    """Return the extra text with these counts."""
    pairs = ",".join(f"{check}={count}" for check, count in sorted(counts.affected_nodes.items()))
    return f"{COUNTS_PREFIX}{counts.counted_at}:{counts.node_count}:{pairs}"


def parse_counts(node_text: str) -> Optional[FaultCounts]:
    """Return the counts in the extra text of a node, from ``scontrol --oneliner show node NAME``; None without any."""
    extra = read_extra(node_text)
    match = _COUNTS.match(extra)
    if not match:
        return None
    pairs = [_CHECK_COUNT.match(pair) for pair in match.group(3).split(",") if pair]
    if None in pairs:
        return None
    return FaultCounts(
        int(match.group(1)), int(match.group(2)), {pair.group(1): int(pair.group(2)) for pair in pairs if pair}
    )


def read_extra(node_text: str) -> str:
    """Return the extra text of a node, which fields may follow; empty without one."""
    match = _NODE_EXTRA.match(node_text.strip())
    return match.group(1) if match else ""


def find_reporting_nodes(nodes: Sequence[SlurmNode], name: str) -> Set[str]:
    """Return the nodes that report their faults: this one, and all that are up."""
    return {
        node["name"]
        for node in nodes
        if node["name"] == name or (node["state"] != "down" and not _SILENT_FLAGS.intersection(node["flags"]))
    }


def count_faults(nodes_text: str, name: str, failing: Sequence[str], now: float) -> FaultCounts:
    """Count the faults that all nodes report, in ``scontrol --oneliner show node``.

    The node ``name`` has those that are given here: its comment may have a text of somebody else's.
    """
    reporting_nodes = find_reporting_nodes(parse_nodes_text(nodes_text), name)
    reports = {
        node_name: parse_report(comment)
        for node_name, comment in parse_comments(nodes_text).items()
        if node_name in reporting_nodes
    }
    reports[name] = list(failing)
    affected_nodes: Dict[str, int] = {}
    for check in (check for checks in reports.values() for check in set(checks)):
        affected_nodes[check] = affected_nodes.get(check, 0) + 1
    return FaultCounts(int(now), len(reporting_nodes), affected_nodes)

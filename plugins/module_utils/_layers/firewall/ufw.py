# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of clusters in ufw. Their comment names the clusters; rules without it belong to the administrator. Pure.

Source: ufw(8) 0.36. ``ufw show added`` prints each rule as the command that adds it.
"""

from __future__ import annotations

import re
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule, is_part_of

#: The words before the names of the clusters in a comment.
_MARK = "gpumesh.cluster "
#: The same in the files of ufw.
ENCODED_MARK = _MARK.encode().hex()
_ADDED_RULE = re.compile(r"^ufw (?P<rule>.+?)(?: comment '(?P<comment>[^']*)')?$", re.MULTILINE)
#: The forms in which ``format_rule`` writes rules.
_OWN_FORM = re.compile(
    r"(?P<forward>route )?allow"
    r"(?: (?P<port>\d+)/(?P<protocol>tcp|udp)"
    r"|(?: in on (?P<interface>\S+))?(?: out on (?P<out_interface>\S+))?(?: from (?P<source>\S+))?)"
)


class UfwChange(NamedTuple):
    """A rule to add with a comment, which replaces that of an equal rule; to delete if the comment is empty."""

    rule: HostRule
    comment: str

    def command(self) -> str:
        """Return the command, as an administrator would type it."""
        rule_text = format_rule(self.rule)
        if self.comment:
            return f"ufw {rule_text} comment '{self.comment}'"
        return f"ufw route delete {rule_text[len('route ') :]}" if self.rule.forward else f"ufw delete {rule_text}"

    def module_arguments(self) -> Dict[str, Any]:
        """Return the arguments for community.general.ufw."""
        rule = self.rule
        arguments: Dict[str, Any] = {"rule": "allow", "route": rule.forward}
        if rule.port:
            arguments.update(to_port=str(rule.port), proto=rule.protocol)
        if rule.interface:
            arguments["interface_in"] = rule.interface
        if rule.out_interface:
            arguments["interface_out"] = rule.out_interface
        if rule.source:
            arguments["from_ip"] = rule.source
        return {**arguments, "comment": self.comment} if self.comment else {**arguments, "delete": True}


def format_rule(rule: HostRule) -> str:
    """Return a rule as ``ufw show added`` prints it."""
    if rule.port:
        return f"allow {rule.port}/{rule.protocol}"
    parts = ["route allow" if rule.forward else "allow"]
    for keyword, value in (("in on", rule.interface), ("out on", rule.out_interface), ("from", rule.source)):
        parts += [f"{keyword} {value}"] if value else []
    return " ".join(parts)


def parse_rules(added_output: str) -> Dict[str, str]:
    """Parse ``ufw show added`` into the comment of each rule."""
    return {match["rule"]: match["comment"] or "" for match in _ADDED_RULE.finditer(added_output)}


def plan_changes(added_output: str, cluster: str, desired_rules: Sequence[HostRule]) -> List[UfwChange]:
    """Return what is to be changed so that ufw has the rules of the cluster, and no others of it.

    A rule that the administrator has added stays as it is, and one that it makes superfluous is not added. One that
    several clusters need has the names of all.
    """
    comment_by_rule = parse_rules(added_output)
    rules_of_others = [text for text, comment in comment_by_rule.items() if not _marked_clusters(comment)]
    changes = []
    for rule in desired_rules:
        comment = comment_by_rule.get(format_rule(rule))
        clusters = _marked_clusters(comment or "")
        is_superfluous = comment is None and any(_covers(text, rule) for text in rules_of_others)
        if not is_superfluous and (comment is None or (clusters and cluster not in clusters)):
            changes.append(UfwChange(rule, _format_mark(clusters | {cluster})))
    desired_texts = {format_rule(rule) for rule in desired_rules}
    for rule_text, comment in comment_by_rule.items():
        clusters, stale_rule = _marked_clusters(comment), _parse_own_form(rule_text)
        if cluster in clusters and rule_text not in desired_texts and stale_rule is not None:
            changes.append(UfwChange(stale_rule, _format_mark(clusters - {cluster})))
    return changes


def _marked_clusters(comment: str) -> FrozenSet[str]:
    return frozenset(comment[len(_MARK) :].split(",")) if comment.startswith(_MARK) else frozenset()


def _format_mark(clusters: Iterable[str]) -> str:
    names = ",".join(sorted(clusters))
    return f"{_MARK}{names}" if names else ""


def _covers(rule_text: str, rule: HostRule) -> bool:
    """Whether a rule of the administrator accepts all that another one does."""
    if rule.port and rule_text == f"allow {rule.port}":
        return True
    wide = _parse_own_form(rule_text)
    return (
        wide is not None
        and wide.forward == rule.forward
        and (wide.port, wide.protocol) in ((0, ""), (rule.port, rule.protocol))
        and wide.interface in ("", rule.interface)
        and wide.out_interface in ("", rule.out_interface)
        and (wide.source in ("", "any", rule.source) or is_part_of(rule.source, wide.source))
    )


def _parse_own_form(rule_text: str) -> Optional[HostRule]:
    match = _OWN_FORM.fullmatch(rule_text)
    if match is None:
        return None
    return HostRule(
        interface=match["interface"] or "",
        source=match["source"] or "",
        port=int(match["port"] or 0),
        protocol=match["protocol"] or "",
        forward=bool(match["forward"]),
        out_interface=match["out_interface"] or "",
    )

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manage the claims of clusters to what exists only once on a host: munge key, job environment and Slurm.

A host may be in several clusters, but a second one would replace the key, the files and the queue of the first. So the
cluster that sets these layers up claims them in a file next to its records. Other clusters refuse to set them up, and
skip them when they leave.
"""

from __future__ import annotations

import json
import os
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import store
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

CLAIMABLE_LAYERS = ("munge", "job_environment", "slurm")
_CLAIMS_FILE = "owners.json"
_JOB_ENVIRONMENT_FILE = "/etc/gpumesh/job_environment.json"


class Owner(NamedTuple):
    """The cluster that has a claim."""

    name: str
    id: str


Claims = Mapping[str, Owner]


class ClaimsPlan(NamedTuple):
    """The claims file of this host, current and desired. Without claims, there is no file.

    ``is_member``: whether the host has a copy of the record of the cluster, or a claim of it. ``foreign_claims``: what
    other clusters have claimed. ``own_claims``: what the cluster had claimed before.
    """

    path: str
    before: Optional[str]
    after: Optional[str]
    is_member: bool
    foreign_claims: List[str]
    own_claims: Sequence[str] = ()

    @property
    def changed(self) -> bool:
        """Whether the file has to be written or removed."""
        return self.before != self.after


def claims_path(records_directory: str) -> str:
    """Return the path of the claims file for a directory of records."""
    return os.path.join(os.path.dirname(records_directory.rstrip("/")), _CLAIMS_FILE)


def parse_claims(text: Optional[str], path: str = _CLAIMS_FILE) -> Dict[str, Owner]:
    """Parse the owner of each claim; none without a text. Raises HostStateError."""
    if text is None:
        return {}
    try:
        document = parse_json(text)
        return {str(claim): Owner(str(owner["name"]), str(owner["id"])) for claim, owner in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as failure:
        raise HostStateError(
            f"{path} does not show which cluster owns what on this host: {failure}.",
            "Delete it; the next run of the owning cluster writes it again.",
            path=path,
        ) from failure


def render_claims(claims: Claims) -> str:
    """Return the text of the claims file."""
    return json.dumps({claim: owner._asdict() for claim, owner in sorted(claims.items())}, indent=2) + "\n"


def select_valid_claims(
    claims: Claims, records: Sequence[Record], job_environment_text: Optional[str], damaged_names: Sequence[str] = ()
) -> Dict[str, Owner]:
    """Return the claims of the clusters whose record this host still has.

    ``damaged_names``: the names of clusters whose record is unreadable, and which may be the owners.
    ``job_environment_text`` names the cluster if an earlier version did not record a claim.
    """
    owners_by_name = {record["name"]: Owner(record["name"], record["id"]) for record in records}
    valid_claims = {
        claim: owner
        for claim, owner in claims.items()
        if owner in owners_by_name.values() or owner.name in damaged_names
    }
    if not claims and job_environment_text is not None:
        recorded_owner = owners_by_name.get(_parse_cluster_name(job_environment_text))
        if recorded_owner is not None:
            valid_claims = dict.fromkeys(CLAIMABLE_LAYERS, recorded_owner)
    return valid_claims


def add_claims(claims: Claims, new_claims: Iterable[str], owner: Owner) -> Dict[str, Owner]:
    """Add claims of ``owner``. Raises HostStateError if another cluster has one of them."""
    foreign_claims = list_foreign_claims(claims, owner)
    conflicting_claims = [layer for layer in new_claims if layer in foreign_claims]
    if conflicting_claims:
        other_cluster = claims[conflicting_claims[0]].name
        raise HostStateError(
            f"A host can have only one of each of these, and here they belong to cluster '{other_cluster}': "
            f"{', '.join(conflicting_claims)}. Cluster '{owner.name}' would replace its key, its files and its queue, so nothing "
            "was changed.",
            f"Remove the machine from cluster '{other_cluster}' first (playbook remove), or from '{owner.name}'.",
            cluster=other_cluster,
            things=conflicting_claims,
        )
    return {**claims, **dict.fromkeys(new_claims, owner)}


def remove_claims(claims: Claims, owner: Owner) -> Dict[str, Owner]:
    """Remove the claims of ``owner``."""
    return {claim: claim_owner for claim, claim_owner in claims.items() if claim_owner != owner}


def list_foreign_claims(claims: Claims, owner: Owner) -> List[str]:
    """Return what other clusters have claimed."""
    return sorted(claim for claim, claim_owner in claims.items() if claim_owner != owner)


def _parse_cluster_name(job_environment_text: str) -> str:
    try:
        document = parse_json(job_environment_text)
    except ValueError:
        return ""
    return str(document.get("cluster", "")) if isinstance(document, dict) else ""


# --- This host


def plan_claims(records_directory: str, cluster: Owner, new_claims: Optional[Sequence[str]]) -> ClaimsPlan:
    """Plan the claims file with the new claims of the cluster; without its claims if ``new_claims`` is None.

    With an empty list, the file stays as it is, even with claims of removed clusters, so that foreign claims can be
    queried. Raises HostStateError if another cluster has one of the new claims.
    """
    file_path = claims_path(records_directory)
    scan_result = store.scan_directory(records_directory)
    readable_records = [entry.record for entry in scan_result.records]
    damaged_names = scan_result.unreadable
    current_text = files.read_text(file_path)
    recorded_claims = parse_claims(current_text, file_path)
    valid_claims = select_valid_claims(
        recorded_claims, readable_records, files.read_text(_JOB_ENVIRONMENT_FILE), damaged_names
    )
    desired_claims = (
        remove_claims(valid_claims, cluster) if new_claims is None else add_claims(valid_claims, new_claims, cluster)
    )
    # A damaged copy of the record shows that there was a valid one.
    record_ids = [record["id"] for record in readable_records] + [
        cluster.id for name in damaged_names if name == cluster.name
    ]
    is_member = cluster in recorded_claims.values() or cluster.id in record_ids
    # The claims of the cluster count even if its record has been lost.
    own_claims = [claim for claim, entry in {**recorded_claims, **valid_claims}.items() if entry == cluster]
    desired_text = current_text if new_claims == [] else render_claims(desired_claims) if desired_claims else None
    return ClaimsPlan(
        file_path, current_text, desired_text, is_member, list_foreign_claims(valid_claims, cluster), own_claims
    )


def write_claims(claims_plan: ClaimsPlan) -> None:
    """Write or remove the claims file."""
    if claims_plan.changed and claims_plan.after is None:
        files.remove_file(claims_plan.path)
    elif claims_plan.changed and claims_plan.after is not None:
        os.makedirs(os.path.dirname(claims_plan.path), mode=0o755, exist_ok=True)
        files.write_atomic(claims_plan.path, claims_plan.after, 0o644)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a cluster, from the jobs in Slurm and the results of each host about its volumes and network. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.show import HOLDING


def running_jobs(jobs: Sequence[Mapping[str, Any]], nodes: Collection[str]) -> list[Mapping[str, Any]]:
    """The jobs that run on any of these nodes."""
    return [job for job in jobs if job["state"] in HOLDING and set(job["nodes"]) & set(nodes)]


def in_words(job: Mapping[str, Any]) -> str:
    """A job with its user, its name and its nodes."""
    return f"{job['id']} of {job['user']} ({job['name']} on {', '.join(job['nodes'])})"


def holders_in_words(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each machine on which the cluster is in use, with its users, from the results of holder_info."""
    return [
        f"{machine}: {', '.join(result['holders'])}" for machine, result in results.items() if result.get("holders")
    ]


def silences_in_words(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each machine that was queried for that, and has not answered, with the reason."""
    return [
        f"{machine}: unknown ({' '.join(str(result.get('msg') or 'no message').split())})"
        for machine, result in results.items()
        if result and not result.get("skipped") and "holders" not in result
    ]

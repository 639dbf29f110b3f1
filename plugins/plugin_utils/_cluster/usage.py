# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The users of a cluster, from the jobs in Slurm and the results of each host about its volumes and network. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import ACTIVE_JOB_STATES


def running_jobs(jobs: Sequence[Mapping[str, Any]], node_names: Collection[str]) -> list[Mapping[str, Any]]:
    """The jobs that run on any of these nodes."""
    return [job for job in jobs if job["state"] in ACTIVE_JOB_STATES and set(job["nodes"]) & set(node_names)]


def format_job(job: Mapping[str, Any]) -> str:
    """Format a job with its user, its name and its nodes."""
    return f"{job['id']} of {job['user']} ({job['name']} on {', '.join(job['nodes'])})"


def format_volume_users(results_by_machine: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the machines on which the cluster is in use, with the users, from the results of usage_info."""
    return [
        f"{machine}: {', '.join(result['descriptions'])}"
        for machine, result in results_by_machine.items()
        if result.get("descriptions")
    ]


def format_unreachable(results_by_machine: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the machines that were queried for users and have not answered, with the reason."""
    return [
        f"{machine}: unknown ({' '.join(str(result.get('msg') or 'no message').split())})"
        for machine, result in results_by_machine.items()
        if result and not result.get("skipped") and "descriptions" not in result
    ]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a cluster and its hosts, as data, and what an upgrade has lost or left behind.

This module runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class SlurmJobState(NamedTuple):
    """A job of Slurm. ``process_id`` is that of its batch script; empty if it has none."""

    state: str
    restarts: str
    started_at: str
    process_id: str


class UserWork(NamedTuple):
    """The work of users on the cluster at one moment.

    ``attempt_jobs`` are the jobs of the attempts of the training run, ``tracked_steps`` those of its steps that the
    tracking server has, ``process_by_container`` identifies the first process of each container of the session,
    ``identity_by_run`` is what identifies each tracked run, and ``shell_by_host`` has the shell of the user on each
    host.
    """

    run_state: str
    attempt_jobs: tuple[int, ...]
    training_step: int
    tracked_steps: tuple[int, ...]
    process_by_container: Mapping[str, str]
    state_by_job: Mapping[str, SlurmJobState]
    identity_by_run: Mapping[str, Mapping[str, Any]]
    shell_by_host: Mapping[str, str]


#: Files whose text is compared without what each cluster has of its own in it: keys, and the generation of its record.
COMPARED_FILES = ("/etc/gpumesh/job_environment.json", "/etc/gpumesh/ssh/lan/known_hosts", "/root/.ssh/authorized_keys")
_MASK_PATTERN = re.compile(r'AAAA[\w+/=]+|(?<="GPUMESH_GENERATION": )"\d+"')

#: The differences between two clusters of the same version and options: what users, jobs and databases have written,
#: and the contents of keys, certificates and passwords that each host or cluster creates.
_EXPECTED_DIFFERENCE = re.compile(
    r"/home/|/var/(log|spool/slurm|lib/(slurm|docker-registry|postgresql/\d+/main/(base|pg_wal)))"
    r"|shared memory: . (PostgreSQL\.\d+|libpod_(rootless_)?lock\w*)$"
    r"|(/etc/machine-id|/etc/ssh/ssh_host_\w+_key(\.pub)?|/etc/ssl/private/ssl-cert-snakeoil\.key|/etc/munge/munge\.key"
    r"|/etc/gpumesh/(ssh/lan/(SIGNING|root)(-cert)?(\.pub)?|tracking-ca-lan\.crt)"
    r"|/etc/gpumesh/tracking/(own\.(key|crt)|secret|passphrase|checker|auth\.ini)"
    r"|/root/\.config/mlflow/telemetry\.json"
    rf"|{'|'.join(map(re.escape, COMPARED_FILES))})"
    r": (?P<mode>0o100\d+ \d+ \d+) [0-9a-f]{64} -> (?P=mode) [0-9a-f]{64}$"
)


def find_losses(before: UserWork, after: UserWork) -> list[str]:
    """Return each loss between two moments, such as a run that began again or a container that is another one."""
    losses = []
    if (after.run_state, after.attempt_jobs) != (before.run_state, before.attempt_jobs):
        losses.append(
            f"the training run is {after.run_state} in the jobs {after.attempt_jobs}, and was {before.run_state} in {before.attempt_jobs}"
        )
    if after.training_step < before.training_step:
        losses.append(f"the training run went back from step {before.training_step} to {after.training_step}")
    if missing := sorted(set(before.tracked_steps) - set(after.tracked_steps)):
        losses.append(f"the tracking server no longer has {len(missing)} points of the run: {missing[:9]}")
    for kind, former, current in (
        ("container", before.process_by_container, after.process_by_container),
        ("job", before.state_by_job, after.state_by_job),
        ("tracked run", before.identity_by_run, after.identity_by_run),
        ("login on", before.shell_by_host, after.shell_by_host),
    ):
        losses += [
            f"{kind} {name} was {former[name]} and is {current.get(name)}"
            for name in former
            if current.get(name) != former[name]
        ]
    return losses


def find_standstill(before: UserWork, after: UserWork) -> list[str]:
    """Return what did not go on between two moments."""
    problems = (
        []
        if after.training_step > before.training_step
        else [f"the training run is still at step {before.training_step}"]
    )
    if len(after.tracked_steps) <= len(before.tracked_steps):
        problems.append(f"the tracking server still has {len(before.tracked_steps)} points of the run")
    return problems


def find_restarts(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the daemons that are another process than before, by host."""
    return [
        f"{name} on {host}"
        for host, daemons in before.items()
        for name, process in daemons.items()
        if after[host].get(name) != process
    ]


def find_leftovers(differences: Iterable[str]) -> list[str]:
    """Return the differences between a host of a new cluster and the upgraded one that the upgrade is to blame for."""
    return [line for line in differences if not _EXPECTED_DIFFERENCE.match(line)]


def mask_lines(text: str) -> list[str]:
    """Return the lines of a text without what each cluster has of its own."""
    return _MASK_PATTERN.sub("(own)", text).splitlines()

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


class Job(NamedTuple):
    """A job of Slurm. ``process_id`` is that of its batch script; empty if it has none."""

    state: str
    restarts: str
    started: str
    process: str


class Work(NamedTuple):
    """The work of users on the cluster at one moment.

    ``attempt_jobs`` are the jobs of the attempts of the training run, ``tracked_steps`` those of its steps that the
    tracking server has, ``process_by_container`` identifies the first process of each container of the session,
    ``identity_by_run`` is what identifies each tracked run, and ``shell_by_host`` has the shell of the user on each
    host.
    """

    run: str
    attempts: tuple[int, ...]
    step: int
    points: tuple[int, ...]
    containers: Mapping[str, str]
    jobs: Mapping[str, Job]
    experiments: Mapping[str, Mapping[str, Any]]
    logins: Mapping[str, str]


#: Files whose text is compared without what each cluster has of its own in it: keys, and the generation of its record.
TEXTS = ("/etc/gpumesh/job_environment.json", "/etc/gpumesh/ssh/lan/known_hosts", "/root/.ssh/authorized_keys")
_MASKED = re.compile(r'AAAA[\w+/=]+|(?<="GPUMESH_GENERATION": )"\d+"')

#: The differences between two clusters of the same version and options: what users, jobs and databases have written,
#: and the contents of keys, certificates and passwords that each host or cluster creates.
_OWN = re.compile(
    r"/home/|/var/(log|spool/slurm|lib/(slurm|docker-registry|postgresql/\d+/main/(base|pg_wal)))"
    r"|shared memory: . (PostgreSQL\.\d+|libpod_(rootless_)?lock\w*)$"
    r"|(/etc/machine-id|/etc/ssh/ssh_host_\w+_key(\.pub)?|/etc/ssl/private/ssl-cert-snakeoil\.key|/etc/munge/munge\.key"
    r"|/etc/gpumesh/(ssh/lan/(SIGNING|root)(-cert)?(\.pub)?|tracking-ca-lan\.crt)"
    r"|/etc/gpumesh/tracking/(own\.(key|crt)|secret|passphrase|checker|auth\.ini)"
    r"|/root/\.config/mlflow/telemetry\.json"
    rf"|{'|'.join(map(re.escape, TEXTS))})"
    r": (?P<mode>0o100\d+ \d+ \d+) [0-9a-f]{64} -> (?P=mode) [0-9a-f]{64}$"
)


def find_losses(before: Work, after: Work) -> list[str]:
    """Return each loss between two moments, such as a run that began again or a container that is another one."""
    found = []
    if (after.run, after.attempts) != (before.run, before.attempts):
        found.append(
            f"the training run is {after.run} in the jobs {after.attempts}, and was {before.run} in {before.attempts}"
        )
    if after.step < before.step:
        found.append(f"the training run went back from step {before.step} to {after.step}")
    if missing := sorted(set(before.points) - set(after.points)):
        found.append(f"the tracking server no longer has {len(missing)} points of the run: {missing[:9]}")
    for what, old, new in (
        ("container", before.containers, after.containers),
        ("job", before.jobs, after.jobs),
        ("tracked run", before.experiments, after.experiments),
        ("login on", before.logins, after.logins),
    ):
        found += [f"{what} {name} was {old[name]} and is {new.get(name)}" for name in old if new.get(name) != old[name]]
    return found


def find_standstill(before: Work, after: Work) -> list[str]:
    """Return what did not go on between two moments."""
    found = [] if after.step > before.step else [f"the training run is still at step {before.step}"]
    if len(after.points) <= len(before.points):
        found.append(f"the tracking server still has {len(before.points)} points of the run")
    return found


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
    return [line for line in differences if not _OWN.match(line)]


def mask(text: str) -> list[str]:
    """Return the lines of a text without what each cluster has of its own."""
    return _MASKED.sub("(own)", text).splitlines()

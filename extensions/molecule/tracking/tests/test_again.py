# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A second run on the hosts as converge.yml leaves them, which is to add the tracking server as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tracking_lab import BARE_HOST, MACHINES, MANAGER, TrackingLab

NO_INDEX = r"[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\n"


@contextlib.contextmanager
def without_index(lab: TrackingLab) -> Iterator[None]:
    """While the manager does not reach the package index of pip."""
    lab.run(
        MANAGER,
        "sh",
        "-c",
        'test ! -e /etc/pip.conf || mv /etc/pip.conf /root; printf "$1" > /etc/pip.conf',
        "-",
        NO_INDEX,
    )
    try:
        yield
    finally:
        lab.run(MANAGER, "sh", "-c", "rm /etc/pip.conf; test ! -e /root/pip.conf || mv /root/pip.conf /etc")


def test_it_changes_nothing_and_goes_on_without_a_server_that_cannot_be_installed(lab: TrackingLab) -> None:
    with without_index(lab):
        again = lab.run_playbook(
            *("gpumesh.cluster.join", "-e", f"cluster_machines={BARE_HOST}", "-e", "cluster_prove_subnet=false"),
            *("-e", f"tracking_server={MANAGER}"),
        )
    assert again.exit_status and f"but experiments are not tracked: {MANAGER}: pip cannot install" in again.flat_output
    # The server's certificate is made before the packages that cannot be installed.
    assert all(change.startswith("gpumesh.cluster.tracking : ") for change in again.changes), again.changes
    # Jobs look for no server, and everything else is done on all members, although the change is refused on all.
    assert lab.read_record()["tracking"] is None and "MLFLOW" not in lab.run_job("env")
    rest = again.output.partition("gpumesh.cluster.slurm : ")[2]
    assert all(f"ok: [{machine}]" in rest for machine in MACHINES), again.output

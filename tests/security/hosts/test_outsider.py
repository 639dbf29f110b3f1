# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of the group that is not in the cluster is left as it is, byte for byte, by every playbook."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_hosts import Lab, Run

OUTSIDER = "e3"
SERVICES = ("munge", "slurmd", "slurmctld", "wg-quick@gpumesh0", "nfs-server", "supervisor")


def untouched(lab: Lab) -> bool:
    """No file was made or changed since the scenario marked the bare host; no service runs, nothing is in memory."""
    assert lab.changes(OUTSIDER) == []
    assert set(lab.run(OUTSIDER, "systemctl", "is-active", *SERVICES, check=False).split()) == {"inactive"}
    assert lab.run(OUTSIDER, "sh", "-c", "ls -d /run/gpumesh* /run/munge /tmp/gpumesh*; ip -o link", check=False).split(
        "\n"
    )[0] == ("/run/gpumesh-lab-mark")
    return "gpumesh0" not in lab.run(OUTSIDER, "ip", "-oneline", "link")


def played(lab: Lab, playbook: str, tmp_path: Path, *arguments: str) -> Run:
    run = lab.play(f"gpumesh.cluster.{playbook}", "-e", f"check_report_dir={tmp_path}", *arguments)
    assert run.code == 0, run.output[-4000:]
    assert "WARNING" not in run.output, run.output[-4000:]
    return run


def test_the_first_site_has_left_it_alone(lab: Lab) -> None:
    assert untouched(lab)


@pytest.mark.parametrize("playbook", ["mesh", "storage", "slurm", "check", "site"])
def test_no_playbook_reaches_it(lab: Lab, playbook: str, tmp_path: Path) -> None:
    run = played(lab, playbook, tmp_path)
    assert f"{OUTSIDER}: not in cluster 'security'" in run.words
    assert untouched(lab)


def test_a_run_on_it_alone_does_nothing(lab: Lab, tmp_path: Path) -> None:
    played(lab, "slurm", tmp_path, "--limit", OUTSIDER)
    assert untouched(lab)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of the group that is not in the cluster is left as it is, byte for byte, by every playbook.

It was marked before the first run. Each test continues from the state that the previous one left.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_hosts import Lab, Run
from told_secrets import Rotation

OUTSIDER = "outsider"
#: A group with a host that is not to be in the cluster.
EVERYONE = ("-e", "cluster_hosts=everyone", "-e", "cluster_machines=n1,n2,n3")
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
    run = lab.play(f"gpumesh.cluster.{playbook}", *EVERYONE, "-e", f"check_report_dir={tmp_path}", *arguments)
    assert run.code == 0, run.output[-4000:]
    assert "Could not match supplied host pattern" not in run.words, run.output[-4000:]
    return run


def test_the_first_site_has_left_it_alone(lab: Lab) -> None:
    assert untouched(lab)


@pytest.mark.parametrize("playbook", ["mesh", "storage", "slurm", "check"])
def test_no_playbook_reaches_it(lab: Lab, playbook: str, tmp_path: Path) -> None:
    run = played(lab, playbook, tmp_path)
    assert f"{OUTSIDER}: not among the members of cluster 'default'" in run.words
    assert untouched(lab)


def test_neither_does_site(lab: Lab, rotation: Rotation) -> None:
    assert rotation.site.code == 0, rotation.site.output[-4000:]
    assert f"{OUTSIDER}: not among the members of cluster 'default'" in rotation.site.words
    assert untouched(lab)


def test_a_run_on_it_alone_does_nothing(lab: Lab, tmp_path: Path) -> None:
    played(lab, "slurm", tmp_path, "--limit", OUTSIDER)
    assert untouched(lab)


def test_it_is_not_cleaned_up_as_if_it_had_been_a_member(lab: Lab) -> None:
    key = "/etc/munge/munge.key"
    lab.run(OUTSIDER, "sh", "-c", f"mkdir -p /etc/munge && echo its own > {key}")
    try:
        run = lab.play("gpumesh.cluster.remove", *EVERYONE, "-e", f"cluster_machine={OUTSIDER}")
        assert run.code != 0
        assert f"{OUTSIDER} is not among the members of cluster 'default', and was not removed from it" in run.words
        assert lab.read(OUTSIDER, key) == b"its own\n"
    finally:
        lab.run(OUTSIDER, "rm", key)
    assert untouched(lab)


def test_a_member_that_leaves_and_comes_back_changes_nothing_on_it(lab: Lab, tmp_path: Path) -> None:
    run = played(lab, "remove", tmp_path, "-e", "cluster_machine=n2")
    assert "n2: removed from the cluster" in run.words and "cluster_untrusted=true" in run.words
    # The inventory goes on to name it.
    assert "n2: removed from cluster 'default', and therefore skipped" in played(lab, "create", tmp_path).words
    assert lab.run("n2", "ls", "/etc/munge", check=False).split() == []
    played(lab, "join", tmp_path, "-e", "cluster_machines=n2")
    assert lab.read("n2", "/etc/munge/munge.key") == lab.read("n1", "/etc/munge/munge.key")
    assert untouched(lab)

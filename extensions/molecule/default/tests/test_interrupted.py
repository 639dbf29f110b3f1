# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Members that are down and excluded from a run, and an installation of packages that was cut off.

Each test leaves the cluster as it found it. The group of most runs has the host that is no member: test_outsider.py proves
that none of them has changed it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_hosts import RECOVERY_TIMEOUT, Lab

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.packages import BEGIN_SCRIPT

MACHINES = ("n1", "n2", "n3")
#: Seconds for what waits for a member that is down.
SHORT = ("-e", "ansible_ssh_timeout=30", "-e", "check_job_timeout=10")
#: A group with a host that is not to be in the cluster.
EVERYONE = ("-e", "cluster_hosts=everyone")
PROGRESS = "gpumesh.cluster.progress"
MESH = "gpumesh0"
RECORD = "/var/lib/gpumesh/clusters/default.json"
POLICY = "/usr/sbin/policy-rc.d"
#: Makes a package of which the first installation kills dpkg, as a power failure does.
PACKAGE = r"""
set -e
mkdir -p /tmp/cut-off/DEBIAN
printf 'Package: cut-off\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n' \
  > /tmp/cut-off/DEBIAN/control
printf '#!/bin/sh\ntest ! -e /run/cut-off || { rm /run/cut-off; kill -KILL $PPID; }\n' > /tmp/cut-off/DEBIAN/postinst
chmod 755 /tmp/cut-off/DEBIAN/postinst
dpkg-deb --build /tmp/cut-off /tmp/cut-off.deb
touch /run/cut-off
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return Lab("molecule-default")


def layers(lab: Lab) -> dict[str, Any]:
    """What the layers on one member report about the other members."""
    return {
        machine: {
            "peers": sorted(lab.run(machine, "wg", "show", MESH, "allowed-ips").splitlines()),
            "names": lab.read(machine, "/etc/hosts"),
            "record": json.loads(lab.read(machine, RECORD)),
            "nodes": sorted(lab.run(machine, "sinfo", "-hN", "-o", "%N %T").splitlines()),
        }
        for machine in MACHINES
    }


@pytest.fixture(name="down")
def _down(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    machine: str = request.param
    lab.stop(machine)
    yield machine
    lab.start(machine)
    lab.await_idle("n1")


@pytest.fixture(name="before")
def _before(lab: Lab) -> dict[str, Any]:
    """What the layers reported before a member was stopped."""
    return layers(lab)


@pytest.mark.parametrize("down", ["n2"], indirect=True)
def test_a_member_that_is_down_and_excluded_does_not_end_the_run_and_all_others_stay_as_they_were(
    lab: Lab, before: dict[str, Any], down: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n3 is up, and excluded as well."""
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", PROGRESS)
    # All plays of site run, and its check is the one that cannot pass.
    report = ("-e", f"check_report_dir={tmp_path}")
    run = lab.run_playbook("gpumesh.cluster.site", "--limit", "n1", *SHORT, *report)
    assert run.exit_status == 2, run.output
    assert f"{down} is not in this run and keeps what it has. It does not answer: " in run.flat_output
    assert "✓ Run the scheduler" in run.output and "✕ Check the cluster" in run.output
    assert "Failed on n1 after" in run.output and "Done" not in run.output
    assert not re.findall("^ *changed  .*", run.output, re.MULTILINE)
    # Its removal is prepared without it, and nothing is removed in check mode.
    removal = ("-e", f"cluster_machine={down}", "--limit", f"!{down}", *SHORT)
    run = lab.run_playbook("gpumesh.cluster.remove", *removal, "--check")
    assert run.exit_status == 0, run.output
    assert "Done in" in run.output
    lab.start(down)
    lab.await_idle("n1")
    # A node is idle for the controller before it is known that it was away, and sinfo works there once slurmd does.
    look = ("sinfo", "-hN", "-o", "%N %T")
    lab.wait_until(
        "it answers", lambda: lab.run(down, *look, check=False).count(" idle\n") == len(MACHINES), RECOVERY_TIMEOUT
    )
    assert layers(lab) == before


@pytest.mark.parametrize("down", ["n1"], indirect=True)
def test_a_manager_that_is_down_is_named_and_only_needed_for_the_scheduler(lab: Lab, down: str) -> None:
    limit = ("--limit", f"!{down}", *SHORT, *EVERYONE)
    run = lab.run_playbook("gpumesh.cluster.storage", *limit)
    assert run.exit_status == 0, run.output
    assert "The manager n1 does not answer (" in run.flat_output
    run = lab.run_playbook("gpumesh.cluster.slurm", *limit)
    assert run.exit_status == 2, run.output
    assert "The manager n1 does not answer (" in run.flat_output
    assert {line.split()[0] for line in run.output.splitlines() if "failed=1" in line} == {"n2", "n3"}


def test_an_installation_that_was_cut_off_is_named_and_completed(lab: Lab, tmp_path: Path) -> None:
    # The host loses its power while dpkg configures a package: nobody restores the policy.
    lab.run("n2", "sh", "-c", "printf '#!/bin/sh\\nexit 0\\n' > $0; chmod 755 $0", POLICY)
    lab.run("n2", "sh", "-c", PACKAGE)
    lab.run("n2", "sh", "-c", BEGIN_SCRIPT)
    lab.run("n2", "dpkg", "--install", "/tmp/cut-off.deb", check=False)
    assert "dpkg was interrupted" in lab.run("n2", "sh", "-c", "apt-get --yes autoremove 2>&1", check=False)

    run = lab.run_playbook("gpumesh.cluster.check", *EVERYONE, "--tags", "health", "-e", f"check_report_dir={tmp_path}")
    assert run.exit_status == 2, run.output
    (path,) = tmp_path.glob("**/verdict.json")
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
    found = {(one["host"], one["status"]) for one in checks if one["id"] == "health.packages"}
    assert found == {("n1", "pass"), ("n2", "fail"), ("n3", "pass")}
    assert (
        "dpkg was interrupted" in run.flat_output
        and f"{POLICY} is that of an interrupted installation" in run.flat_output
    )

    run = lab.run_playbook("gpumesh.cluster.storage", *EVERYONE)
    assert run.exit_status == 0, run.output
    assert [task.partition(" : ")[2].split(":")[0] for task in run.changes] == [
        "Complete an installation of packages that was cut off"
    ]
    assert lab.run("n2", "dpkg", "--audit") == ""
    assert lab.run("n2", "cat", POLICY) == "#!/bin/sh\nexit 0\n"
    assert "outsider: not among the members of cluster 'default'" in run.flat_output
    lab.run("n2", "sh", "-c", f"rm -r {POLICY} /tmp/cut-off /tmp/cut-off.deb; apt-get purge --quiet --yes cut-off")

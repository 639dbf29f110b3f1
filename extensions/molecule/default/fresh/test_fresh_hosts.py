# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bare hosts, before the first run: what is refused, and what check mode does. Nothing may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_hosts import Lab

MACHINES = ("n1", "n2", "n3")
SITE = "gpumesh.cluster.site"


@pytest.fixture(name="lab", scope="module")
def _lab() -> Iterator[Lab]:
    """The lab, on whose hosts nothing may have changed after all of the tests. Later tests compare `outsider` with it."""
    lab, hosts = Lab("molecule-default"), (*MACHINES, "outsider")
    lab.mark_time(hosts)
    before = {host: lab.run(host, "ip", "-brief", "link") for host in MACHINES}
    yield lab
    assert {host: lab.find_changed_files(host) for host in hosts} == {host: [] for host in hosts}
    assert {host: lab.run(host, "ip", "-brief", "link") for host in MACHINES} == before


def test_host_that_cannot_be_reached(lab: Lab, tmp_path: Path) -> None:
    absent = tmp_path / "absent.yml"
    absent.write_text("cluster: {hosts: {n9: {ansible_host: 10.78.0.99, ansible_ssh_timeout: 3}}}\n", encoding="utf-8")
    run = lab.run_playbook(SITE, inventories=[absent])
    assert run.exit_status != 0
    assert "n9" in run.flat_output
    assert "10.78.0.99" in run.flat_output
    assert "Nothing has been changed." in run.flat_output
    assert "exclude it with --limit" in run.flat_output


def test_check_mode_ends_well_and_changes_nothing(lab: Lab) -> None:
    run = lab.run_playbook(SITE, "--check", "--diff")
    assert run.exit_status == 0, run.failure_report
    # It says what it would do.
    assert all(run.changed[machine] > 0 for machine in MACHINES), run.changed

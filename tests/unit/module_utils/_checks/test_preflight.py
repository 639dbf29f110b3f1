# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requirements for a host before the record is written. The output of apt-cache is from Debian 12."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.preflight import (
    HostRequirements,
    parse_candidates,
    refuse_unmet,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

POLICY = """podman:
  Installed: (none)
  Candidate: 4.3.1+ds1-8+deb12u1
  Version table:
     4.3.1+ds1-8+deb12u1 500
        500 http://mirror.example bookworm/main amd64 Packages
slurmrestd:
  Installed: (none)
  Candidate: (none)
  Version table:
     22.05.8-4+deb12u3 -1
        100 /var/lib/dpkg/status
"""
NO_REQUIREMENTS = HostRequirements("lab", [], [], [], {})


def fake_apt(_argv: list[str], **_options: Any) -> CommandResult:
    return CommandResult(0, POLICY, "")


def fail_on_command(argv: list[str], **_options: Any) -> CommandResult:
    raise AssertionError(f"nothing had to be asked, and {argv} was run")


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    """Return the root directory of a host on which apt has read its sources."""
    for folder in ("etc/apt/sources.list.d", "var/lib/apt/lists"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text("Types: deb\n", encoding="utf-8")
    (tmp_path / "var/lib/apt/lists/mirror.example_Packages").touch()
    set_read_time(tmp_path, 2_000_000_000)
    return tmp_path


def set_read_time(root: Path, time: int) -> None:
    os.utime(root / "var/lib/apt/lists", (time, time))


def list_refusals(root: Path, needs: HostRequirements) -> list[str]:
    with pytest.raises(HostStateError) as caught:
        refuse_unmet(fake_apt, Tree(str(root)), needs)
    assert str(caught.value).startswith("Nothing has been changed. ")
    found: list[str] = caught.value.details["refusals"]
    assert all(reason in str(caught.value) for reason in found)
    return found


def test_complete_host_runs_no_command(root: Path) -> None:
    needs = NO_REQUIREMENTS._replace(users=["root"], packages_by_program={"sh": ["dash"], "/bin/sh": ["dash"]})
    refuse_unmet(fail_on_command, Tree(str(root)), needs)


def test_candidates_are_the_versions_that_apt_would_install() -> None:
    assert parse_candidates(POLICY) == {"podman": "4.3.1+ds1-8+deb12u1"}
    assert parse_candidates("") == {}


def test_all_refusals_are_reported_together(root: Path) -> None:
    needs = HostRequirements(
        "lab",
        ["root", "alcie", "bbo"],
        [{"volume": "data", "mount_point": "/no/such/volume", "filesystem": None, "read_only": False}],
        [{"name": "own", "path": "/proc/self", "quota": "1G"}],
        {"no-such-podman": ["podman"], "no-such-restd": ["slurmrestd", "slurm-wlm-jwt-plugin"], "sh": ["absent"]},
    )
    users, external, quotas, packages = list_refusals(root, needs)
    assert users.startswith("ssh_trust_users: there is no user alcie, bbo. Create the account on every member")
    assert "volume data at /no/such/volume: " in external and "Mount it on this host" in external
    assert quotas.startswith("Volume 'own' at /proc/self cannot have a quota") and "storage_volumes" in quotas
    assert packages.startswith("No package source of this host has slurm-wlm-jwt-plugin, slurmrestd. Add a source")


@pytest.mark.parametrize("why", ["no lists", "lists are older than a source", "lists are older than a removal"])
def test_availability_is_unknown_before_apt_has_read_its_sources(root: Path, why: str) -> None:
    """A fresh image has no lists. The layers have apt read its sources before they install anything."""
    needs = NO_REQUIREMENTS._replace(packages_by_program={"no-such-restd": ["slurmrestd"]})
    assert list_refusals(root, needs)
    if why == "no lists":
        (root / "var/lib/apt/lists/mirror.example_Packages").unlink()
        set_read_time(root, 2_000_000_000)
    else:
        changed = "etc/apt/sources.list.d" + ("/debian.sources" if "source" in why.rsplit(maxsplit=1)[-1] else "")
        os.utime(root / changed, (2_000_000_001, 2_000_000_001))
    refuse_unmet(fail_on_command, Tree(str(root)), needs)

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
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release

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
NO_REQUIREMENTS = HostRequirements("lab", [], [], [], {}, False, False)


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
    (tmp_path / "etc/os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n", encoding="utf-8")
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
        False,
        False,
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


def test_an_unsupported_release_is_refused_unless_it_is_tried(root: Path) -> None:
    (root / "etc/os-release").write_text('ID=debian\nPRETTY_NAME="Debian GNU/Linux 11 (bullseye)"\n', encoding="utf-8")
    (refusal,) = list_refusals(root, NO_REQUIREMENTS)
    assert refusal.startswith("Debian GNU/Linux 11 (bullseye) is not supported. Use Debian 12, 13 or 14")
    refuse_unmet(fail_on_command, Tree(str(root)), NO_REQUIREMENTS._replace(unsupported_release=True))


@pytest.mark.parametrize(
    ("installed", "candidate", "reason"),
    [
        (
            "",
            "21.08.5-2ubuntu1",
            "Slurm 21.08.5 is what apt would install, but nodes can join a running cluster only from",
        ),
        ("", "22.05.8-4+deb12u3", ""),
        ("", "(none)", ""),
        ("slurm-wlm 20.11.7", "22.05.8-4+deb12u3", "Slurm 20.11.7 is installed, but"),
        ("slurm 25.05.3", "21.08.5-2ubuntu1", ""),
    ],
)
def test_a_slurm_without_dynamic_nodes_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, installed: str, candidate: str, reason: str
) -> None:
    programs = {"slurmd": "/usr/sbin/slurmd" if installed else None, "apt-cache": "/usr/bin/apt-cache"}
    monkeypatch.setattr(release, "find_program", programs.get)

    def run(argv: list[str], **_options: Any) -> CommandResult:
        return CommandResult(0, installed if argv[0] == "slurmd" else f"slurmd:\n  Candidate: {candidate}\n", "")

    needs = NO_REQUIREMENTS._replace(runs_slurm=True)
    if not reason:
        refuse_unmet(run, Tree(str(root)), needs)
        return
    with pytest.raises(HostStateError, match="Nothing has been changed") as caught:
        refuse_unmet(run, Tree(str(root)), needs)
    (refusal,) = caught.value.details["refusals"]
    assert refusal.startswith(reason) and "Add a package source" in refusal

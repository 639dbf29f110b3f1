# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leftovers of an interrupted installation of packages."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.dpkg import POLICY_MARK, find_leftovers
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

STATUS = """Package: done
Status: install ok installed
Priority: optional

Package: removed
Status: deinstall ok config-files

Package: pending
Essential: yes
Status: install ok half-configured
Version: 1

Package: kept
Status: hold ok installed

Package: begun
Status: install reinstreq half-installed
"""


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    (tmp_path / "var/lib/dpkg/updates").mkdir(parents=True)
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/lock-frontend").touch()
    (tmp_path / "var/lib/dpkg/status").write_text("Package: done\nStatus: install ok installed\n", encoding="utf-8")
    return tmp_path


def leftovers(root: Path) -> list[str]:
    return find_leftovers(Tree(str(root)))


def test_complete_host_and_host_without_dpkg_have_no_leftovers(root: Path, tmp_path: Path) -> None:
    assert leftovers(root) == []
    assert leftovers(tmp_path / "nowhere") == []


def test_incomplete_packages_are_named(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text(STATUS, encoding="utf-8")
    assert leftovers(root) == ["not completely installed: pending, begun"]


def test_unmerged_updates_show_an_interrupted_dpkg(root: Path) -> None:
    (root / "var/lib/dpkg/updates/tmp.i").touch()
    assert leftovers(root) == []
    (root / "var/lib/dpkg/updates/0001").touch()
    assert leftovers(root) == ["dpkg was interrupted"]


def test_only_our_own_policy_file_counts(root: Path) -> None:
    policy = root / "usr/sbin/policy-rc.d"
    # Many images have this file, and the module apt writes it.
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    assert leftovers(root) == []
    policy.write_text(f"#!/bin/sh\n# {POLICY_MARK}\nexit 101\n", encoding="utf-8")
    assert leftovers(root) == [
        "/usr/sbin/policy-rc.d is that of an interrupted installation, and services do not start"
    ]
    policy.rename(f"{policy}.before-gpumesh")
    assert leftovers(root) != []


def test_running_installation_has_no_leftovers(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text(STATUS, encoding="utf-8")
    lock = str(root / "var/lib/dpkg/lock-frontend")
    lock_program = f"import fcntl; f = open({lock!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", lock_program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        assert leftovers(root) == []
        process.stdin.close()
    assert leftovers(root) != []
    # The check has not taken the lock itself.
    with open(lock, "w", encoding="utf-8") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an installation that was cut off has left behind."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.dpkg import MARK, unfinished
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

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


def left(root: Path) -> list[str]:
    return unfinished(Tree(str(root)))


def test_a_host_with_complete_packages_and_one_without_dpkg(root: Path, tmp_path: Path) -> None:
    assert left(root) == []
    assert left(tmp_path / "nowhere") == []


def test_packages_that_are_not_completely_installed_are_named(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text(STATUS, encoding="utf-8")
    assert left(root) == ["not completely installed: pending, begun"]


def test_a_dpkg_that_was_killed_has_not_merged_its_updates(root: Path) -> None:
    (root / "var/lib/dpkg/updates/tmp.i").touch()
    assert left(root) == []
    (root / "var/lib/dpkg/updates/0001").touch()
    assert left(root) == ["dpkg was interrupted"]


def test_only_our_own_policy_is_left_behind(root: Path) -> None:
    policy = root / "usr/sbin/policy-rc.d"
    # As in many images, and as the module apt writes it.
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    assert left(root) == []
    policy.write_text(f"#!/bin/sh\n# {MARK}\nexit 101\n", encoding="utf-8")
    assert left(root) == ["/usr/sbin/policy-rc.d is that of an interrupted installation, and services do not start"]
    policy.rename(f"{policy}.before-gpumesh")
    assert left(root) != []


def test_an_installation_that_is_running_is_not_interrupted(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text(STATUS, encoding="utf-8")
    lock = str(root / "var/lib/dpkg/lock-frontend")
    held = f"import fcntl; f = open({lock!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        assert left(root) == []
        process.stdin.close()
    assert left(root) != []
    # It has not taken the lock itself.
    with open(lock, "w", encoding="utf-8") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy-rc.d during an installation, also one that is cut off at any moment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.dpkg import find_leftovers
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.packages import (
    BEGIN_SCRIPT,
    COMPLETE_SCRIPT,
    END_SCRIPT,
)

ADMINISTRATORS = "#!/bin/sh\nexit 104\n"


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/updates").mkdir(parents=True)
    return tmp_path


def run_script(root: Path, script: str, *, commands: int | None = None) -> None:
    """Run a script; only its first lines with ``commands``, as if the host lost its power then."""
    # As Ansible appends it to every command.
    lines = f"{script} && sleep 0".splitlines(keepends=True)
    subprocess.run(
        ["sh", "-c", "".join(lines[:commands])], env={"ROOT": str(root), "PATH": "/usr/bin:/bin"}, check=True
    )


def policy_path(root: Path) -> Path:
    return root / "usr/sbin/policy-rc.d"


def policy_exit_status(root: Path) -> int:
    """What invoke-rc.d is told; 0 where there is no policy."""
    return (
        subprocess.run([policy_path(root), "x", "start"], check=False).returncode if policy_path(root).exists() else 0
    )


def write_own_policy(root: Path) -> None:
    policy_path(root).write_text(ADMINISTRATORS, encoding="utf-8")
    policy_path(root).chmod(0o755)


@pytest.mark.parametrize("own", [False, True])
def test_services_do_not_start_during_the_installation(root: Path, own: bool) -> None:
    if own:
        write_own_policy(root)
    before = sorted(path.name for path in (root / "usr/sbin").iterdir())
    run_script(root, BEGIN_SCRIPT)
    assert policy_exit_status(root) == 101
    run_script(root, END_SCRIPT)
    assert policy_exit_status(root) == (104 if own else 0)
    assert sorted(path.name for path in (root / "usr/sbin").iterdir()) == before


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("commands", [2, 7, None])
def test_next_installation_restores_the_former_policy(root: Path, own: bool, commands: int | None) -> None:
    if own:
        write_own_policy(root)
    run_script(root, BEGIN_SCRIPT, commands=commands)
    if own or commands is None:
        assert find_leftovers(Tree(str(root)))
    run_script(root, BEGIN_SCRIPT)
    assert policy_exit_status(root) == 101
    run_script(root, END_SCRIPT)
    assert policy_exit_status(root) == (104 if own else 0)
    assert find_leftovers(Tree(str(root))) == []


@pytest.mark.parametrize("own", [False, True])
def test_leftover_policy_expires_after_an_hour(root: Path, own: bool) -> None:
    if own:
        write_own_policy(root)
    run_script(root, BEGIN_SCRIPT)
    text = policy_path(root).read_text(encoding="utf-8")
    (until,) = re.findall(r"-ge (\d+)", text)
    policy_path(root).write_text(text.replace(until, str(int(until) - 3601)), encoding="utf-8")
    assert policy_exit_status(root) == (104 if own else 0)


def test_complete_packages_are_not_changed(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text("Package: done\nStatus: install ok installed\n", encoding="utf-8")
    # With a PATH that has neither dpkg nor apt-get, and a shell that stops at the first failure.
    tools = root / "bin"
    tools.mkdir()
    for name in ("ls", "grep"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{COMPLETE_SCRIPT} && :"],
        env={"ROOT": str(root), "PATH": str(tools)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

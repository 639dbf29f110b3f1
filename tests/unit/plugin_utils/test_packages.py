# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy-rc.d during an installation, also one that is cut off at any moment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.dpkg import unfinished
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.packages import BEGIN, COMPLETE, END

ADMINISTRATORS = "#!/bin/sh\nexit 104\n"


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/updates").mkdir(parents=True)
    return tmp_path


def run(root: Path, script: str, *, commands: int | None = None) -> None:
    """Run a script; only its first lines with ``commands``, as if the host lost its power then."""
    # As Ansible appends it to every command.
    lines = f"{script} && sleep 0".splitlines(keepends=True)
    subprocess.run(
        ["sh", "-c", "".join(lines[:commands])], env={"ROOT": str(root), "PATH": "/usr/bin:/bin"}, check=True
    )


def policy(root: Path) -> Path:
    return root / "usr/sbin/policy-rc.d"


def answer(root: Path) -> int:
    """What invoke-rc.d is told; 0 where there is no policy."""
    return subprocess.run([policy(root), "x", "start"], check=False).returncode if policy(root).exists() else 0


def give_own(root: Path) -> None:
    policy(root).write_text(ADMINISTRATORS, encoding="utf-8")
    policy(root).chmod(0o755)


@pytest.mark.parametrize("own", [False, True])
def test_services_do_not_start_during_the_installation_alone(root: Path, own: bool) -> None:
    if own:
        give_own(root)
    before = sorted(path.name for path in (root / "usr/sbin").iterdir())
    run(root, BEGIN)
    assert answer(root) == 101
    run(root, END)
    assert answer(root) == (104 if own else 0)
    assert sorted(path.name for path in (root / "usr/sbin").iterdir()) == before


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("commands", [2, 7, None])
def test_the_next_installation_restores_what_was_there(root: Path, own: bool, commands: int | None) -> None:
    if own:
        give_own(root)
    run(root, BEGIN, commands=commands)
    if own or commands is None:
        assert unfinished(Tree(str(root)))
    run(root, BEGIN)
    assert answer(root) == 101
    run(root, END)
    assert answer(root) == (104 if own else 0)
    assert unfinished(Tree(str(root))) == []


@pytest.mark.parametrize("own", [False, True])
def test_what_is_left_behind_has_no_effect_after_an_hour(root: Path, own: bool) -> None:
    if own:
        give_own(root)
    run(root, BEGIN)
    text = policy(root).read_text(encoding="utf-8")
    (until,) = re.findall(r"-ge (\d+)", text)
    policy(root).write_text(text.replace(until, str(int(until) - 3601)), encoding="utf-8")
    assert answer(root) == (104 if own else 0)


def test_complete_packages_are_left_alone(root: Path) -> None:
    (root / "var/lib/dpkg/status").write_text("Package: done\nStatus: install ok installed\n", encoding="utf-8")
    # With a PATH that has neither dpkg nor apt-get, and a shell that stops at the first failure.
    tools = root / "bin"
    tools.mkdir()
    for name in ("ls", "grep"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{COMPLETE} && :"],
        env={"ROOT": str(root), "PATH": str(tools)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

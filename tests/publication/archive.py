# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as people get it: its archive, installed into an empty folder, with nothing of the checkout in sight."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DEPENDENCIES = ("ansible", "community", "awx")


class Installed(NamedTuple):
    """``folder`` is empty but for collections/; ``environment`` finds no other copy of this collection."""

    folder: Path
    archive: Path
    environment: dict[str, str]

    @property
    def collection(self) -> Path:
        return self.folder / "collections" / "ansible_collections" / "gpumesh" / "cluster"

    def run(self, program: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a program of Ansible in the folder."""
        return subprocess.run(
            [str(BIN / program), *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )


def check_syntax(installed: Installed, *words: str) -> list[str]:
    """The paths of the playbooks that Ansible has read, of all that these words of a command name, in their order.

    One process reads them all: it takes longer to start than to read one.
    """
    done = installed.run("ansible-playbook", "--syntax-check", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Unable to parse" not in done.stderr
    return re.findall(r"^playbook: (.*)$", done.stdout, re.MULTILINE)


def checkout(folder: Path) -> Path:
    """A copy of what git has and would take: what a clone of the next commit is."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def install(folder: Path) -> Installed:
    """Build the archive in ``folder`` and install it there."""
    source = checkout(folder / "source")
    dependencies = folder / "dependencies" / "ansible_collections"
    dependencies.mkdir(parents=True)
    for name in DEPENDENCIES:
        (dependencies / name).symlink_to(Path(sysconfig.get_path("purelib")) / "ansible_collections" / name)
    empty = folder / "empty"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_COLLECTIONS_PATH": f"{empty / 'collections'}:{folder / 'dependencies'}",
        # The environment of the tests has a link to the checkout.
        "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_LOCALHOST_WARNING": "false",
    }
    galaxy = [str(BIN / "ansible-galaxy"), "collection"]
    build = [*galaxy, "build", "--output-path", str(folder / "archive")]
    subprocess.run(build, cwd=source, env=environment, check=True, capture_output=True, timeout=300)
    (archive,) = (folder / "archive").glob("gpumesh-cluster-*.tar.gz")
    # The dependencies are beside it: there need be no Galaxy to ask.
    subprocess.run(
        [*galaxy, "install", str(archive), "--collections-path", str(empty / "collections"), "--no-deps", "--offline"],
        cwd=empty,
        env=environment,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return Installed(empty, archive, environment)

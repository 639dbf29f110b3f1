# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded hosts: the output of ``ip`` and the kernel's files, as described in fixtures/README.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.facts import gather_facts
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.hostname import parse_hosts_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import HostFacts

FIXTURES = Path(__file__).parent / "fixtures"
CASE_NAMES = sorted(folder.name for folder in FIXTURES.iterdir() if folder.is_dir())
#: The same on every recorded host.
BOOT_ID = "3f0c8f5e-6b0a-4c8e-9d1b-0d6f2a1c7e55"


class RecordedIp:
    """A stand-in for command.run that answers ``ip`` from a directory and counts the calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], check: bool = True) -> CommandResult:
        self.calls.append(tuple(argv))
        name = "addr" if "addr" in argv else "route6" if "-6" in argv else "route4"
        return CommandResult(0, (self.folder / f"{name}.json").read_text(encoding="utf-8"), "")


def create_tree(case: str, root: Path) -> Tree:
    """Create the recorded files and links below ``root``."""
    files = json.loads((FIXTURES / case / "tree.json").read_text(encoding="utf-8"))
    files["proc/sys/kernel/random/boot_id"] = f"{BOOT_ID}\n"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            path.symlink_to(content["link"])
        else:
            path.write_text(content, encoding="utf-8")
    return Tree(str(root))


def gather_case(case: str, root: Path) -> HostFacts:
    """The facts of a recorded host called gpu7, whose resolver uses only /etc/hosts."""
    tree = create_tree(case, root)

    def resolve(name: str) -> list[str]:
        return parse_hosts_file(tree.read("etc/hosts") or "", name)

    return gather_facts(RecordedIp(FIXTURES / case), tree, "gpu7", resolve, can_lock_memory=lambda: False)

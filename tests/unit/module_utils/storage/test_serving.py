# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs with which a host serves its volumes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import serving

ANEW = "exportfs -ra"
RELOAD = "systemctl reload nfs-ganesha.service"
RESTART = "systemctl restart nfs-ganesha.service"


def start(unit: str) -> str:
    return f"systemctl enable --now {unit}.service"


class Commands:
    """Records commands that change something; ``running`` are the units that run, now and at boot."""

    def __init__(self, *running: str) -> None:
        self.running = running
        self.told: list[str] = []

    def __call__(self, argv: Sequence[str], **_options: Any) -> Completed:
        if argv[1] in {"is-active", "is-enabled"}:
            return Completed(0 if argv[-1] in self.running else 3, "", "")
        self.told.append(" ".join(argv))
        return Completed(0, "", "")


def serve(commands: Commands, folder: Path, server: str | None, text: str = "") -> bool:
    """Set up the files of both programs. Returns whether anything differed."""
    exports = {program: str(folder / program) for program in ("kernel", "ganesha")}
    entries = [
        {"path": path, "content": text} if program == server else {"path": path, "state": "absent"}
        for program, path in exports.items()
    ]
    plan = serving.look(commands, entries, exports, server)
    serving.apply(commands, plan)
    return plan.changed


def test_who_serves_nothing_asks_and_starts_nothing(tmp_path: Path) -> None:
    commands = Commands()
    assert not serve(commands, tmp_path, None)
    assert commands.told == []


def test_the_kernel_exports_anew_each_time_and_starts_once(tmp_path: Path) -> None:
    commands = Commands()
    assert serve(commands, tmp_path, "kernel", "/srv *\n")
    assert commands.told == [ANEW, start("nfs-server")]
    commands = Commands("nfs-server.service")
    assert not serve(commands, tmp_path, "kernel", "/srv *\n")
    # An earlier run may have been interrupted before this.
    assert commands.told == [ANEW]
    assert serve(commands, tmp_path, None)
    assert commands.told == [ANEW, ANEW]


@pytest.mark.parametrize("running", [(), ("nfs-ganesha.service",)])
def test_ganesha_reads_its_exports_anew_unless_it_starts(tmp_path: Path, running: tuple[str, ...]) -> None:
    commands = Commands(*running)
    assert serve(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.told == ([RELOAD] if running else [start("nfs-ganesha")])
    commands = Commands("nfs-ganesha.service")
    assert not serve(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.told == []


def test_ganesha_forgets_the_last_export_by_a_start(tmp_path: Path) -> None:
    serve(Commands(), tmp_path, "ganesha", "EXPORT {}\n")
    commands = Commands("nfs-ganesha.service")
    assert serve(commands, tmp_path, None)
    assert commands.told == [RESTART]


def test_a_server_that_is_exchanged_leaves_nothing_exported(tmp_path: Path) -> None:
    serve(Commands(), tmp_path, "kernel", "/srv *\n")
    commands = Commands()
    assert serve(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.told == [ANEW, start("nfs-ganesha")]


def test_a_service_that_is_stopped_differs(tmp_path: Path) -> None:
    serve(Commands(), tmp_path, "kernel", "/srv *\n")
    exports = {"kernel": str(tmp_path / "kernel")}
    entry = {"path": exports["kernel"], "content": "/srv *\n"}
    plan = serving.look(Commands(), [entry], exports, "kernel")
    assert plan.changed
    assert serving.as_diff(plan) == ("nfs-server.service: stopped\n", "nfs-server.service: running at boot\n")

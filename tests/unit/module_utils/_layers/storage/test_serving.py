# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs with which a host serves its volumes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import serving

REEXPORT = "exportfs -ra"
RELOAD = "systemctl reload nfs-ganesha.service"
RESTART = "systemctl restart nfs-ganesha.service"


def start_command(unit: str) -> str:
    return f"systemctl enable --now {unit}.service"


class Commands:
    """Records commands that change something; ``running`` are the units that run, now and at boot."""

    def __init__(self, *running: str) -> None:
        self.running = running
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        if argv[1] in {"is-active", "is-enabled"}:
            return CommandResult(0 if argv[-1] in self.running else 3, "", "")
        self.commands.append(" ".join(argv))
        return CommandResult(0, "", "")


def apply_server(commands: Commands, folder: Path, server: str | None, text: str = "") -> bool:
    """Set up the files of both programs. Returns whether anything differed."""
    exports = {"kernel": str(folder / "kernel"), "ganesha": str(folder / "lab.conf")}
    entries = [
        {"path": path, "content": text} if program == server else {"path": path, "state": "absent"}
        for program, path in exports.items()
    ]
    plan = serving.plan_server(commands, entries, exports, server, str(folder))
    serving.apply_server_plan(commands, plan)
    return plan.changed


def test_host_without_exports_runs_no_commands(tmp_path: Path) -> None:
    commands = Commands()
    assert not apply_server(commands, tmp_path, None)
    assert commands.commands == []


def test_kernel_server_reexports_and_starts_once(tmp_path: Path) -> None:
    commands = Commands()
    assert apply_server(commands, tmp_path, "kernel", "/srv *\n")
    assert commands.commands == [REEXPORT, start_command("nfs-server")]
    commands = Commands("nfs-server.service")
    assert not apply_server(commands, tmp_path, "kernel", "/srv *\n")
    # An earlier run may have been interrupted before this.
    assert commands.commands == [REEXPORT]
    assert apply_server(commands, tmp_path, None)
    assert commands.commands == [REEXPORT, REEXPORT]


@pytest.mark.parametrize("running", [(), ("nfs-ganesha.service",)])
def test_running_ganesha_reloads_changed_exports(tmp_path: Path, running: tuple[str, ...]) -> None:
    commands = Commands(*running)
    assert apply_server(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.commands == ([RELOAD] if running else [start_command("nfs-ganesha")])
    commands = Commands("nfs-ganesha.service")
    assert not apply_server(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.commands == []


def test_ganesha_restarts_after_its_last_export(tmp_path: Path) -> None:
    apply_server(Commands(), tmp_path, "ganesha", "EXPORT {}\n")
    commands = Commands("nfs-ganesha.service")
    assert apply_server(commands, tmp_path, None)
    assert commands.commands == [RESTART]


def test_replaced_server_exports_nothing(tmp_path: Path) -> None:
    apply_server(Commands(), tmp_path, "kernel", "/srv *\n")
    commands = Commands()
    assert apply_server(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.commands == [REEXPORT, start_command("nfs-ganesha")]


@pytest.mark.parametrize(("old", "new"), [("kernel", "ganesha"), ("ganesha", "kernel")])
def test_former_server_is_stopped(tmp_path: Path, old: str, new: str) -> None:
    units = {"kernel": "nfs-server.service", "ganesha": "nfs-ganesha.service"}
    stop, begin = f"systemctl disable --now {units[old]}", f"systemctl enable --now {units[new]}"
    apply_server(Commands(), tmp_path, old, "/srv *\n")
    commands = Commands(units[old])
    assert apply_server(commands, tmp_path, new, "/srv *\n")
    # Once before the start, where the kernel's exports are dropped or made.
    assert commands.commands == [REEXPORT, stop, begin]
    # A run that was interrupted before it is stopped goes on there.
    commands = Commands(units[old])
    assert apply_server(commands, tmp_path, new, "/srv *\n")
    assert commands.commands[-2:] == [stop, begin]
    commands = Commands(units[new])
    assert not apply_server(commands, tmp_path, new, "/srv *\n")
    assert commands.commands in ([], [REEXPORT])


def test_server_with_other_exports_keeps_running(tmp_path: Path) -> None:
    (tmp_path / "lab.conf").write_text("EXPORT {}\n")
    (tmp_path / "exports").write_text("# none\n\n/home *(ro)\n")
    (tmp_path / "kernel").write_text("/srv *\n")
    commands = Commands("nfs-server.service")
    apply_server(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.commands == [REEXPORT, start_command("nfs-ganesha")]
    (tmp_path / "exports").write_text("# none\n")
    (tmp_path / "gpumesh-other.exports").write_text("/srv/other *(ro)\n")
    commands = Commands("nfs-server.service")
    apply_server(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.commands == [start_command("nfs-ganesha")]


def test_two_running_servers_are_not_changed(tmp_path: Path) -> None:
    apply_server(Commands(), tmp_path, "ganesha", "EXPORT {}\n")
    commands = Commands("nfs-ganesha.service", "nfs-server.service")
    assert not apply_server(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.commands == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", False),
        ("# Path = /srv;\nEXPORT { Path = /nonexistent; }\n", False),
        ('EXPORT {\n  path="/nonexistant";\n}\n', False),
        ("EXPORT {\n\tPath = /srv/more;\n}\n", True),
        ('%include "/etc/ganesha/gpumesh-other.conf"\n', True),
    ],
)
def test_exports_of_ganesha(text: str, found: bool) -> None:
    assert serving.has_exports("ganesha", {"ganesha.conf": text}) is found


def test_serving_requires_systemd() -> None:
    serving.refuse_without_systemd(["data"], systemd_runs=True)
    serving.refuse_without_systemd([], systemd_runs=False)
    with pytest.raises(HostStateError, match="cannot run an NFS server for volume data, more. Choose a member with"):
        serving.refuse_without_systemd(["data", "more"], systemd_runs=False)


def test_stopped_service_is_a_difference(tmp_path: Path) -> None:
    apply_server(Commands(), tmp_path, "kernel", "/srv *\n")
    exports = {"kernel": str(tmp_path / "kernel")}
    entry = {"path": exports["kernel"], "content": "/srv *\n"}
    plan = serving.plan_server(Commands(), [entry], exports, "kernel")
    assert plan.changed
    assert serving.format_server_diff(plan) == (
        "nfs-server.service: stopped\n",
        "nfs-server.service: running at boot\n",
    )

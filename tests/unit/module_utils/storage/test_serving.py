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
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
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
    exports = {"kernel": str(folder / "kernel"), "ganesha": str(folder / "lab.conf")}
    entries = [
        {"path": path, "content": text} if program == server else {"path": path, "state": "absent"}
        for program, path in exports.items()
    ]
    plan = serving.look(commands, entries, exports, server, str(folder))
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


@pytest.mark.parametrize(("old", "new"), [("kernel", "ganesha"), ("ganesha", "kernel")])
def test_the_program_that_served_before_leaves_its_port(tmp_path: Path, old: str, new: str) -> None:
    units = {"kernel": "nfs-server.service", "ganesha": "nfs-ganesha.service"}
    stop, begin = f"systemctl disable --now {units[old]}", f"systemctl enable --now {units[new]}"
    serve(Commands(), tmp_path, old, "/srv *\n")
    commands = Commands(units[old])
    assert serve(commands, tmp_path, new, "/srv *\n")
    # Once before the start, where the kernel's exports are dropped or made.
    assert commands.told == [ANEW, stop, begin]
    # A run that was interrupted before it is stopped goes on there.
    commands = Commands(units[old])
    assert serve(commands, tmp_path, new, "/srv *\n")
    assert commands.told[-2:] == [stop, begin]
    commands = Commands(units[new])
    assert not serve(commands, tmp_path, new, "/srv *\n")
    assert commands.told in ([], [ANEW])


def test_a_program_that_serves_others_is_left_to_them(tmp_path: Path) -> None:
    (tmp_path / "lab.conf").write_text("EXPORT {}\n")
    (tmp_path / "exports").write_text("# none\n\n/home *(ro)\n")
    (tmp_path / "kernel").write_text("/srv *\n")
    commands = Commands("nfs-server.service")
    serve(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.told == [ANEW, start("nfs-ganesha")]
    (tmp_path / "exports").write_text("# none\n")
    (tmp_path / "gpumesh-other.exports").write_text("/srv/other *(ro)\n")
    commands = Commands("nfs-server.service")
    serve(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.told == [start("nfs-ganesha")]


def test_two_servers_at_once_are_left_as_they_are(tmp_path: Path) -> None:
    serve(Commands(), tmp_path, "ganesha", "EXPORT {}\n")
    commands = Commands("nfs-ganesha.service", "nfs-server.service")
    assert not serve(commands, tmp_path, "ganesha", "EXPORT {}\n")
    assert commands.told == []


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


def test_without_systemd_nothing_is_served() -> None:
    serving.refuse_without_systemd(["data"], systemd=True)
    serving.refuse_without_systemd([], systemd=False)
    with pytest.raises(HostStateError, match="cannot run an NFS server for volume data, more. Choose a member with"):
        serving.refuse_without_systemd(["data", "more"], systemd=False)


def test_a_service_that_is_stopped_differs(tmp_path: Path) -> None:
    serve(Commands(), tmp_path, "kernel", "/srv *\n")
    exports = {"kernel": str(tmp_path / "kernel")}
    entry = {"path": exports["kernel"], "content": "/srv *\n"}
    plan = serving.look(Commands(), [entry], exports, "kernel")
    assert plan.changed
    assert serving.as_diff(plan) == ("nfs-server.service: stopped\n", "nfs-server.service: running at boot\n")

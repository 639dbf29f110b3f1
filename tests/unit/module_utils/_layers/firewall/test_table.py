# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that loads the table, with programs that only record their commands. tests/integration has a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import rules, table

UNIT = f"{rules.TABLE_NAME}.service"
DESIRED = rules.parse_desired_firewall("lab", {"members": ["10.0.0.1"], "tcp_ports": ["2049"]})


class Programs:
    """The commands nft and systemctl of a host, with the state of the table and the unit."""

    def __init__(self, units: Path) -> None:
        self.units = units
        self.active = self.live = False
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str], stdin: str | None = None, check: bool = True) -> CommandResult:
        words = " ".join(argv)
        self.commands.append(words)
        rc = 0
        if "is-active" in words:
            rc = 0 if self.active else 3
        elif "list table" in words:
            rc = 0 if self.live else 1
        elif words == "nft --file -":
            self.live = True
        elif "enable --now" in words:
            self.active = True
            for target in (self.units / UNIT).read_text().partition("WantedBy=")[2].split():
                folder = self.units / f"{target}.wants"
                folder.mkdir(exist_ok=True)
                (folder / UNIT).unlink(missing_ok=True)
                (folder / UNIT).symlink_to(self.units / UNIT)
        assert rc == 0 or not check
        return CommandResult(rc, "", "" if rc == 0 else "No such file or directory")


@pytest.fixture(name="programs")
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setattr(table, "find_program", lambda program: f"/usr/sbin/{program}")
    (tmp_path / "units").mkdir()
    return Programs(tmp_path / "units")


def apply_firewall(programs: Programs, check_mode: bool = False) -> tuple[bool, bool]:
    """Whether anything changed, and whether the unit was started."""
    programs.commands.clear()
    folder = str(programs.units.parent)
    host = table.FirewallHost(programs, check_mode, folder, str(programs.units), folder)
    result = table.ensure_present(host, "lab", DESIRED)
    return result.changed, f"systemctl enable --now {UNIT}" in programs.commands


def test_inactive_unit_is_started(programs: Programs) -> None:
    assert apply_firewall(programs) == (True, True)
    assert apply_firewall(programs) == (False, False)
    # Both the table and its record are lost here.
    programs.active = programs.live = False
    assert apply_firewall(programs, check_mode=True) == (True, False)
    assert apply_firewall(programs) == (True, True)
    assert apply_firewall(programs) == (False, False)
    # The unit is started even if the table has been loaded without it.
    programs.active = False
    assert apply_firewall(programs) == (True, True)


def test_table_is_loaded_at_boot(programs: Programs) -> None:
    apply_firewall(programs)
    link = programs.units / "sysinit.target.wants" / UNIT
    assert link.is_symlink()
    link.unlink()
    assert apply_firewall(programs) == (True, True)
    assert link.is_symlink()


def test_table_is_reloaded_with_the_host_rules(programs: Programs) -> None:
    apply_firewall(programs)
    drop_in = programs.units / "nftables.service.d" / f"{rules.TABLE_NAME}.conf"
    again = f"-/usr/sbin/nft --file {programs.units.parent}/{rules.TABLE_NAME}.nft"
    assert drop_in.read_text().splitlines()[2:] == [f"ExecStartPost={again}", f"ExecReload={again}"]
    drop_in.unlink()
    assert apply_firewall(programs) == (True, True)
    assert drop_in.exists()
    folder = str(programs.units.parent)
    assert table.ensure_absent(table.FirewallHost(programs, False, folder, str(programs.units), folder), "lab").changed
    assert not drop_in.parent.exists()

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that loads the table, with programs that only record what they are told. tests/integration has a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall import rules, table

UNIT = f"{rules.TABLE}.service"
DESIRED = rules.make_desired("lab", {"members": ["10.0.0.1"], "tcp_ports": ["2049"]})


class Programs:
    """nft and systemctl of a host, as far as the state of the table and the unit goes."""

    def __init__(self, units: Path) -> None:
        self.units = units
        self.active = self.live = False
        self.told: list[str] = []

    def __call__(self, argv: Sequence[str], stdin: str | None = None, check: bool = True) -> Completed:
        words = " ".join(argv)
        self.told.append(words)
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
        return Completed(rc, "", "" if rc == 0 else "No such file or directory")


@pytest.fixture(name="programs")
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setattr(table, "find", lambda program: f"/usr/sbin/{program}")
    (tmp_path / "units").mkdir()
    return Programs(tmp_path / "units")


def applied(programs: Programs, check_mode: bool = False) -> tuple[bool, bool]:
    """Whether anything changed, and whether the unit was started."""
    programs.told.clear()
    folder = str(programs.units.parent)
    host = table.Host(programs, check_mode, folder, str(programs.units), folder)
    result = table.present(host, "lab", DESIRED)
    return result.changed, f"systemctl enable --now {UNIT}" in programs.told


def test_a_unit_that_does_not_run_is_started(programs: Programs) -> None:
    assert applied(programs) == (True, True)
    assert applied(programs) == (False, False)
    # As after both were lost.
    programs.active = programs.live = False
    assert applied(programs, check_mode=True) == (True, False)
    assert applied(programs) == (True, True)
    assert applied(programs) == (False, False)
    # Even if the table has been loaded without it.
    programs.active = False
    assert applied(programs) == (True, True)


def test_it_starts_at_boot(programs: Programs) -> None:
    applied(programs)
    link = programs.units / "sysinit.target.wants" / UNIT
    assert link.is_symlink()
    link.unlink()
    assert applied(programs) == (True, True)
    assert link.is_symlink()


def test_it_is_loaded_with_the_rules_of_the_host_until_it_is_removed(programs: Programs) -> None:
    applied(programs)
    drop_in = programs.units / "nftables.service.d" / f"{rules.TABLE}.conf"
    again = f"-/usr/sbin/nft --file {programs.units.parent}/{rules.TABLE}.nft"
    assert drop_in.read_text().splitlines()[2:] == [f"ExecStartPost={again}", f"ExecReload={again}"]
    drop_in.unlink()
    assert applied(programs) == (True, True)
    assert drop_in.exists()
    folder = str(programs.units.parent)
    assert table.absent(table.Host(programs, False, folder, str(programs.units), folder), "lab").changed
    assert not drop_in.parent.exists()

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
    # As after nftables.service was stopped.
    programs.active = programs.live = False
    assert applied(programs, check_mode=True) == (True, False)
    assert applied(programs) == (True, True)
    assert applied(programs) == (False, False)
    # Even if the table has been loaded without it.
    programs.active = False
    assert applied(programs) == (True, True)


@pytest.mark.parametrize("target", ["sysinit.target", "nftables.service"])
def test_it_starts_at_boot_and_with_the_rules_of_the_host(programs: Programs, target: str) -> None:
    applied(programs)
    link = programs.units / f"{target}.wants" / UNIT
    assert link.is_symlink()
    link.unlink()
    assert applied(programs) == (True, True)
    assert link.is_symlink()

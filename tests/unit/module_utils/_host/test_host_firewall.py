# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which firewall is active on a host, from the files that ufw and firewalld have there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import host_firewall
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.host_firewall import find_active_firewalls

# As the package ufw installs it, and as `ufw enable` changes it.
UFW_SETTINGS = """# /etc/ufw/ufw.conf
#

# Set to yes to start on boot. If setting this remotely, be sure to add a rule
# to allow your remote connection before starting ufw. Eg: 'ufw allow 22/tcp'
ENABLED={enabled}

# Please use the 'ufw' command to set the loglevel. Eg: 'ufw logging medium'.
# See 'man ufw' for details.
LOGLEVEL=low
"""


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that the host has."""
    installed = ["ufw", "firewall-cmd"]
    monkeypatch.setattr(host_firewall, "find_program", lambda program: program if program in installed else None)
    return installed


@pytest.mark.parametrize(
    ("enabled", "process_name", "firewalls"),
    [
        ("yes", "sshd", ["ufw"]),
        ("no", "sshd", []),
        ("no", "firewalld", ["firewalld"]),
        ("yes", "firewalld", ["ufw", "firewalld"]),
        ("", "firewalld-user", []),
    ],
)
def test_the_active_firewalls_are_found(tmp_path: Path, enabled: str, process_name: str, firewalls: list[str]) -> None:
    (tmp_path / "proc" / "71").mkdir(parents=True)
    (tmp_path / "proc" / "71" / "comm").write_text(f"{process_name}\n")
    (tmp_path / "proc" / "meminfo").touch()
    (tmp_path / "etc" / "ufw").mkdir(parents=True)
    (tmp_path / "etc" / "ufw" / "ufw.conf").write_text(UFW_SETTINGS.format(enabled=enabled))
    assert find_active_firewalls(Tree(str(tmp_path))) == firewalls


def test_what_is_left_of_ufw_and_a_firewalld_of_a_container_are_not_active(tmp_path: Path, programs: list[str]) -> None:
    programs.clear()
    test_the_active_firewalls_are_found(tmp_path, "yes", "firewalld", [])


def test_a_host_without_both_has_none(tmp_path: Path) -> None:
    assert find_active_firewalls(Tree(str(tmp_path))) == []

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports by which an NFS server distinguishes a kernel from a user's program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import ports


@pytest.fixture
def value(tmp_path: Path) -> Path:
    path = tmp_path / "ip_unprivileged_port_start"
    path.write_text("0\n")
    return path


def test_open_ports_are_closed_now_and_at_boot_and_forgotten_with_the_volumes(tmp_path: Path, value: Path) -> None:
    def plan(needed: bool) -> ports.Plan:
        return ports.look("lab", needed, str(value), str(tmp_path))

    assert plan(needed=False) == ports.Plan(0, close=False, write=False, forget=[])
    assert ports.as_diff(plan(needed=True)) == (f"{ports.SETTING} = 0\n", f"{ports.SETTING} = 1024\n")
    ports.apply(plan(needed=True), "lab", str(value), str(tmp_path))
    assert value.read_text() == "1024"
    assert f"{ports.SETTING} = 1024\n" in Path(ports.file_of("lab", str(tmp_path))).read_text()
    assert plan(needed=True) == ports.Plan(1024, close=False, write=False, forget=[])
    assert plan(needed=False).forget
    ports.apply(plan(needed=False), "lab", str(value), str(tmp_path))
    assert list(tmp_path.iterdir()) == [value]


def test_it_is_the_last_setting_at_boot() -> None:
    # systemd-sysctl sorts the names, whatever their folder: a later one wins.
    names = ["99-sysctl.conf", "99-local.conf", "99-zz.conf", "60-ports.conf", Path(ports.file_of("lab")).name]
    assert max(names) == "zz-gpumesh-lab-storage.conf"


def test_the_file_of_an_earlier_version_is_replaced(tmp_path: Path, value: Path) -> None:
    value.write_text("1024\n")
    old = tmp_path / "60-gpumesh-lab-storage.conf"

    def bring(needed: bool) -> bool:
        plan = ports.look("lab", needed, str(value), str(tmp_path))
        ports.apply(plan, "lab", str(value), str(tmp_path))
        return plan.changed

    old.write_text("x\n")
    assert bring(needed=True)
    assert (old.exists(), Path(ports.file_of("lab", str(tmp_path))).exists()) == (False, True)
    assert not bring(needed=True)
    # A run may be interrupted between the two, or a machine leave before it had another run.
    old.write_text("x\n")
    assert bring(needed=True)
    assert not old.exists()
    old.write_text("x\n")
    assert bring(needed=False)
    assert list(tmp_path.iterdir()) == [value]
    assert not bring(needed=False)


def test_a_container_that_may_not_close_them_is_refused(value: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports.os, "access", lambda _path, _mode: False)
    with pytest.raises(HostStateError, match=r"--sysctl net.ipv4.ip_unprivileged_port_start=1024"):
        ports.look("lab", True, str(value))
    value.write_text("1024\n")
    assert not ports.look("lab", True, str(value)).close

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports by which an NFS server distinguishes a kernel from a user's program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import ports


@pytest.fixture
def value(tmp_path: Path) -> Path:
    path = tmp_path / "ip_unprivileged_port_start"
    path.write_text("0\n")
    return path


def test_open_ports_are_closed_until_the_volumes_are_removed(tmp_path: Path, value: Path) -> None:
    def plan(needed: bool) -> ports.PortsPlan:
        return ports.plan_ports("lab", needed, str(value), str(tmp_path))

    assert plan(needed=False) == ports.PortsPlan(0, set_now=False, write_settings=False, obsolete_paths=[])
    assert ports.format_ports_diff(plan(needed=True)) == (f"{ports.SYSCTL_NAME} = 0\n", f"{ports.SYSCTL_NAME} = 1024\n")
    ports.apply_ports_plan(plan(needed=True), "lab", str(value), str(tmp_path))
    assert value.read_text() == "1024"
    assert f"{ports.SYSCTL_NAME} = 1024\n" in Path(ports.settings_path("lab", str(tmp_path))).read_text()
    assert plan(needed=True) == ports.PortsPlan(1024, set_now=False, write_settings=False, obsolete_paths=[])
    assert plan(needed=False).obsolete_paths
    ports.apply_ports_plan(plan(needed=False), "lab", str(value), str(tmp_path))
    assert list(tmp_path.iterdir()) == [value]


def test_settings_file_is_read_last_at_boot() -> None:
    # systemd-sysctl sorts the names, whatever their directory: a later one wins.
    names = ["99-sysctl.conf", "99-local.conf", "99-zz.conf", "60-ports.conf", Path(ports.settings_path("lab")).name]
    assert max(names) == "zz-gpumesh-lab-storage.conf"


def test_former_settings_file_is_replaced(tmp_path: Path, value: Path) -> None:
    value.write_text("1024\n")
    old = tmp_path / "60-gpumesh-lab-storage.conf"

    def bring(needed: bool) -> bool:
        plan = ports.plan_ports("lab", needed, str(value), str(tmp_path))
        ports.apply_ports_plan(plan, "lab", str(value), str(tmp_path))
        return plan.changed

    old.write_text("x\n")
    assert bring(needed=True)
    assert (old.exists(), Path(ports.settings_path("lab", str(tmp_path))).exists()) == (False, True)
    assert not bring(needed=True)
    # A run may be interrupted between the two, or a machine leave before it had another run.
    old.write_text("x\n")
    assert bring(needed=True)
    assert not old.exists()
    old.write_text("x\n")
    assert bring(needed=False)
    assert list(tmp_path.iterdir()) == [value]
    assert not bring(needed=False)


def test_read_only_sysctl_is_refused(value: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports.os, "access", lambda _path, _mode: False)
    with pytest.raises(HostStateError, match=r"--sysctl net.ipv4.ip_unprivileged_port_start=1024"):
        ports.plan_ports("lab", True, str(value))
    value.write_text("1024\n")
    assert not ports.plan_ports("lab", True, str(value)).set_now

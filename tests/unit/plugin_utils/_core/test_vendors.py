# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vendors of hardware addresses."""

from __future__ import annotations

import sys

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.vendors import mac_vendor


@pytest.mark.parametrize(
    ("mac", "said"),
    [
        ("b8:27:eb:11:22:33", "Raspberry Pi"),
        ("00:50:56:00:00:01", "VMware"),
        ("02:42:ac:11:00:02", "a Docker container"),
        ("52:54:00:12:34:56", "QEMU"),
        ("de:ad:be:ef:00:01", "locally administered"),
        ("0c:ff:ff:00:00:01", "of an unknown vendor"),
    ],
)
def test_vendors_of_mac_addresses(mac: str, said: str) -> None:
    assert said in mac_vendor(mac)


def test_without_netaddr_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "netaddr", None)
    assert "-m pip install netaddr" in mac_vendor("b8:27:eb:11:22:33")
    assert mac_vendor("02:42:ac:11:00:02") == "a Docker container"

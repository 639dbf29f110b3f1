# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sessions can reach of the cluster."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import network


def test_addresses_with_ports() -> None:
    assert network.parse_allowed(["10.0.0.5:5000", "10.1.0.0/16:443"]) == [("10.0.0.5", 5000), ("10.1.0.0/16", 443)]


@pytest.mark.parametrize(
    "text", ["10.0.0.5", "10.0.0.256:80", "10.0.0.0/33:80", "10.0.0.5:0", "10.0.0.5:65536", "n1:80"]
)
def test_what_nftables_would_not_load_is_refused_before(text: str) -> None:
    with pytest.raises(InputError, match="session_allow"):
        network.parse_allowed([text])

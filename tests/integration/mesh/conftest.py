# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fixture of the tests of tunnels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tunnel_pair import TunnelPair, create_tunnel


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[TunnelPair]:
    with create_tunnel(tmp_path) as pair:
        yield pair

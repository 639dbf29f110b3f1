# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of the scenarios."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import NamespaceNetwork, create_network


@pytest.fixture
def net() -> Iterator[NamespaceNetwork]:
    """A switch without hosts; all is removed afterwards."""
    with create_network() as namespace_network:
        yield namespace_network

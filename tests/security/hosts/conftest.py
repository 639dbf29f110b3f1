# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the scenario `security`: e1, the manager, and e2 are the cluster; e3 is not in it."""

from __future__ import annotations

import pytest
from lab_hosts import Lab


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab("molecule-security")

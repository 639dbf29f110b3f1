# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of this scenario: n1, the manager, n2 and n3 are the cluster; `outsider` is in the group `everyone` only."""

from __future__ import annotations

import pytest
from lab_hosts import Lab
from told_secrets import KeyRotation, rotate_keys

#: A group with a host that is not to be in the cluster.
EVERYONE = ("-e", "cluster_hosts=everyone", "-e", "cluster_machines=n1,n2,n3")
#: Whose processes are watched.
WATCHED = ("n1", "n2")


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab("molecule-default")


@pytest.fixture(scope="session")
def rotation(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> KeyRotation:
    """Both rotations in one run of site. What AWX keeps as artifacts is printed, and facts are written where a site
    keeps them between runs.
    """
    folder = tmp_path_factory.mktemp("rotation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANSIBLE_SHOW_CUSTOM_STATS", "true")
        patch.setenv("ANSIBLE_CACHE_PLUGIN", "ansible.builtin.jsonfile")
        patch.setenv("ANSIBLE_CACHE_PLUGIN_CONNECTION", str(folder / "facts"))
        return rotate_keys(lab, WATCHED, folder, *EVERYONE)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module storage reads before it changes anything. tests/integration has mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import apply as storage
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import fstab

MOUNT = {"volume": "data", "mount_point": "/mnt/no-such-volume", "mount": "[Mount]"}


def test_an_fstab_in_another_encoding_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fstab"
    path.write_bytes("# Größe\nUUID=1 / ext4 defaults 0 1\n".encode("latin-1"))
    monkeypatch.setattr(fstab, "FSTAB_PATH", str(path))
    wanted = storage.foreign.DesiredMount("data", MOUNT["mount_point"], "n1:/a", "nfs4")
    monkeypatch.setattr(storage.foreign, "parse_desired_mount", lambda _mount: wanted)
    storage.refuse_foreign({"cluster": "lab", "mounts": [MOUNT]})
    unchanged, healed, removed = storage.mount_by_fstab({"cluster": "lab", "mounts": [], "force": False})
    assert (unchanged.changed, healed, removed) == (False, [], [])


def test_a_host_without_volumes_need_not_have_an_fstab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of ours that is missing must not stop the host from leaving."""
    path = tmp_path / "fstab"
    path.write_text(f"{fstab.volumes_marker('lab').format(mark='BEGIN')}\n")
    monkeypatch.setattr(fstab, "FSTAB_PATH", str(path))
    storage.refuse_foreign({"cluster": "lab", "mounts": []})
    with pytest.raises(HostStateError):
        storage.refuse_foreign({"cluster": "lab", "mounts": [MOUNT]})

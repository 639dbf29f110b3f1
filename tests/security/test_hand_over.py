# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root in directories that belong to the accounts of Slurm and munge: links that these put there lead nowhere.

What the root of a former manager can put into the archive is in tests/unit/module_utils/_layers/slurm/test_state.py, and what
its SQL can do in the scenario `slurm`.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import munge
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import state

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root can be attacked by an account")
SECRET_BYTES = b"only root may read this, and it is long enough for a key of munge"


@pytest.fixture(name="secret")
def _secret(tmp_path: Path) -> Path:
    path = tmp_path / "root" / "shadow"
    path.parent.mkdir(mode=0o755)
    path.write_bytes(SECRET_BYTES)
    path.chmod(0o600)
    return path


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, attacker: pwd.struct_passwd) -> Path:
    """Create the directory of the account, below directories that it may enter."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    directory = tmp_path / "state"
    directory.mkdir(mode=0o755)
    (directory / "clustername").write_text("lab")
    os.chown(directory, attacker.pw_uid, attacker.pw_gid)
    return directory


def test_archive_is_not_written_through_a_link(folder: Path, secret: Path, attacker: pwd.struct_passwd) -> None:
    archive = folder / state.ARCHIVE_FILE
    archive.symlink_to(secret)
    packed_state = state.pack_state(str(folder), attacker.pw_name)
    assert not archive.is_symlink() and archive.owner() == attacker.pw_name
    archive.unlink()
    archive.symlink_to(secret)
    for attack in (
        lambda: state.read_part(str(folder), 0, attacker.pw_name),
        lambda: state.write_part(str(folder), 1, "AAAA", attacker.pw_name),
        lambda: state.unpack_state(str(folder), packed_state.checksum, attacker.pw_name),
    ):
        with pytest.raises(HostStateError, match="cannot be opened"):
            attack()
    state.write_part(str(folder), 0, "AAAA", attacker.pw_name)
    assert archive.read_bytes() == b"\0\0\0"
    assert (secret.read_bytes(), secret.owner()) == (SECRET_BYTES, "root")


def test_linked_directory_is_not_followed(folder: Path, secret: Path, attacker: pwd.struct_passwd) -> None:
    (folder / "hash.1").mkdir()
    os.chown(folder / "hash.1", attacker.pw_uid, attacker.pw_gid)
    (folder / "hash.1" / "shadow").write_bytes(b"from the former manager")
    packed_state = state.pack_state(str(folder), attacker.pw_name)
    (folder / "hash.1" / "shadow").unlink()
    (folder / "hash.1").rmdir()
    (folder / "hash.1").symlink_to(secret.parent)
    with pytest.raises(Exception, match="cannot be written: Permission denied"):
        state.unpack_state(str(folder), packed_state.checksum, attacker.pw_name)
    assert (secret.read_bytes(), secret.owner()) == (SECRET_BYTES, "root")
    assert os.geteuid() == 0


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "zero"])
def test_munge_key_must_be_a_plain_file(folder: Path, secret: Path, attacker: pwd.struct_passwd, kind: str) -> None:
    """Otherwise, root would give a file of its own to all members as their key, or wait for ever."""
    key = folder / "munge.key"
    if kind == "link":
        key.symlink_to(secret)
    elif kind == "hard link":
        # Where the kernel lets accounts link to files of others (fs.protected_hardlinks=0).
        os.link(secret, key)
    elif kind == "zero":
        key.symlink_to("/dev/zero")
    else:
        os.mkfifo(key)
    with pytest.raises(HostStateError, match="not a plain file with a single link"):
        munge.read_key_file(str(key))


def test_endless_munge_key_is_not_read(folder: Path) -> None:
    key = folder / "munge.key"
    with key.open("wb") as stream:
        os.truncate(stream.fileno(), 1 << 40)
    assert len(munge.read_key_file(str(key)).key or b"") == 1025


def test_root_identity_is_restored(attacker: pwd.struct_passwd, folder: Path) -> None:
    before = (os.getresuid(), os.getresgid(), os.getgroups())
    state.pack_state(str(folder), attacker.pw_name)
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
    assert subprocess.run(["id", "-u"], capture_output=True, check=True).stdout == b"0\n"

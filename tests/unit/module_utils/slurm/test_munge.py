# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The munge key: kept, generated, given, rotated, and never shown."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import munge

ME = munge.Account(os.getuid(), os.getgid())
KEY = bytes(range(128))


def test_there_and_back() -> None:
    assert munge.decode(munge.encode(KEY)) == KEY
    assert munge.fingerprint(KEY) == munge.fingerprint(KEY)
    assert munge.fingerprint(KEY) != munge.fingerprint(KEY[:-1])


@pytest.mark.parametrize(
    "content", ["no base64!", "ü", base64.b64encode(b"x" * 31).decode(), base64.b64encode(b"x" * 1025).decode()]
)
def test_refused_without_repeating_it(content: str) -> None:
    with pytest.raises(InputError) as refusal:
        munge.decode(content)
    assert content not in str(refusal.value)


def test_what_the_file_is_to_have() -> None:
    there, empty = munge.State(KEY, ME, True), munge.State(None, None, True)
    assert munge.desired_key(there, None, generate=True, rotate=False) == KEY
    assert munge.desired_key(there, b"y" * 64, generate=False, rotate=False) == b"y" * 64
    turned = munge.desired_key(there, None, generate=True, rotate=True)
    made = munge.desired_key(empty, None, generate=True, rotate=False)
    assert munge.desired_key(empty, None, generate=False, rotate=False) is None
    assert turned is not None and made is not None
    assert len({turned, made, KEY}) == 3
    assert len(made) == 128


def test_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "munge" / "munge.key")
    assert munge.differs(munge.read_state(path), KEY, ME)
    munge.write(path, KEY, ME)
    state = munge.read_state(path)
    assert (state.key, state.tight) == (KEY, True)
    assert not munge.differs(state, KEY, ME)
    assert os.stat(path).st_mode & 0o777 == 0o400
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    os.chmod(path, 0o440)
    assert munge.differs(munge.read_state(path), KEY, ME)


def test_munged_has_read_the_key_that_is_there_when_its_socket_is_younger(tmp_path: Path) -> None:
    key, socket = tmp_path / "munge.key", tmp_path / "socket"
    assert munge.is_stale(str(key), str(socket))
    key.write_bytes(KEY)
    assert munge.is_stale(str(key), str(socket))
    socket.touch()
    os.utime(key, (1000, 1000))
    os.utime(socket, (1001, 1001))
    assert not munge.is_stale(str(key), str(socket))
    os.utime(key, (1002, 1002))
    assert munge.is_stale(str(key), str(socket))


def test_credentials_are_signed_and_verified_by_munged_and_never_in_an_argument() -> None:
    calls: list[tuple[list[str], str | None]] = []

    def answer(rc: int, stdout: str, stderr: str):
        def run(argv: list[str], stdin: str | None = None, check: bool = True) -> Completed:
            calls.append((argv, stdin))
            return Completed(rc, stdout, stderr)

        return run

    assert munge.sign(answer(0, "MUNGE:abc:\n", "")) == ("MUNGE:abc:", "")
    assert munge.sign(answer(6, "", "munge: Error: Socket communication error\n"))[0] == ""
    assert munge.verify(answer(0, "", ""), "MUNGE:abc:") == (True, "")
    assert munge.verify(answer(14, "", "unmunge: Error: Invalid credential\n"), "MUNGE:abc:") == (
        False,
        "unmunge: Error: Invalid credential",
    )
    assert not any("MUNGE" in word for argv, _stdin in calls for word in argv)
    assert [stdin for argv, stdin in calls if argv[0] == "unmunge"] == ["MUNGE:abc:"] * 2
    # One that was accepted before, and one that has expired, for which unmunge prints nothing.
    assert munge.verify(answer(17, "", ""), "MUNGE:abc:") == (True, "")
    assert munge.verify(answer(15, "", ""), "MUNGE:abc:") == (False, "it has expired")
    # Nothing was signed, so there is nothing to verify.
    assert munge.verify(answer(0, "", ""), "") == (False, "the manager has signed nothing")


def test_a_credential_lives_until_the_last_of_many_members_has_verified_it() -> None:
    """The manager signs once. With few forks, a task takes longer on all members than a credential usually lives."""
    asked: list[list[str]] = []

    def run(argv: list[str], check: bool = True) -> Completed:
        asked.append(argv)
        return Completed(0, "MUNGE:abc:\n", "")

    munge.sign(run)
    # In munge(1): the longest that the daemon allows, an hour instead of five minutes.
    assert "--ttl=-1" in asked[0]

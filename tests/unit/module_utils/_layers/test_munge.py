# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The munge key: kept, generated, given, rotated, and never shown."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import munge

CURRENT_OWNER = munge.KeyOwner(os.getuid(), os.getgid())
KEY = bytes(range(128))


def test_encoded_key_is_decoded() -> None:
    assert munge.decode_key(munge.encode_key(KEY)) == KEY
    assert munge.key_fingerprint(KEY) == munge.key_fingerprint(KEY)
    assert munge.key_fingerprint(KEY) != munge.key_fingerprint(KEY[:-1])


@pytest.mark.parametrize(
    "content", ["no base64!", "ü", base64.b64encode(b"x" * 31).decode(), base64.b64encode(b"x" * 1025).decode()]
)
def test_invalid_key_is_refused_without_quoting_it(content: str) -> None:
    with pytest.raises(InputError) as refusal:
        munge.decode_key(content)
    assert content not in str(refusal.value)


def test_desired_key() -> None:
    there, empty = munge.KeyFile(KEY, CURRENT_OWNER, True), munge.KeyFile(None, None, True)
    assert munge.desired_key(there, None, generate=True, rotate=False) == KEY
    assert munge.desired_key(there, b"y" * 64, generate=False, rotate=False) == b"y" * 64
    turned = munge.desired_key(there, None, generate=True, rotate=True)
    made = munge.desired_key(empty, None, generate=True, rotate=False)
    assert munge.desired_key(empty, None, generate=False, rotate=False) is None
    assert turned is not None and made is not None
    assert len({turned, made, KEY}) == 3
    assert len(made) == 128


def test_key_file_is_written_and_read(tmp_path: Path) -> None:
    path = str(tmp_path / "munge" / "munge.key")
    assert munge.needs_write(munge.read_key_file(path), KEY, CURRENT_OWNER)
    munge.write_key(path, KEY, CURRENT_OWNER)
    state = munge.read_key_file(path)
    assert (state.key, state.is_private) == (KEY, True)
    assert not munge.needs_write(state, KEY, CURRENT_OWNER)
    assert os.stat(path).st_mode & 0o777 == 0o400
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    os.chmod(path, 0o440)
    assert munge.needs_write(munge.read_key_file(path), KEY, CURRENT_OWNER)


def test_key_is_stale_if_newer_than_the_socket(tmp_path: Path) -> None:
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


def test_credentials_are_never_passed_as_arguments() -> None:
    calls: list[tuple[list[str], str | None]] = []

    def answer(rc: int, stdout: str, stderr: str):
        def run(argv: list[str], stdin: str | None = None, check: bool = True) -> CommandResult:
            calls.append((argv, stdin))
            return CommandResult(rc, stdout, stderr)

        return run

    assert munge.sign_credential(answer(0, "MUNGE:abc:\n", "")) == ("MUNGE:abc:", "")
    assert munge.sign_credential(answer(6, "", "munge: Error: Socket communication error\n"))[0] == ""
    assert munge.verify_credential(answer(0, "", ""), "MUNGE:abc:") == (True, "")
    assert munge.verify_credential(answer(14, "", "unmunge: Error: Invalid credential\n"), "MUNGE:abc:") == (
        False,
        "unmunge: Error: Invalid credential",
    )
    assert not any("MUNGE" in word for argv, _stdin in calls for word in argv)
    assert [stdin for argv, stdin in calls if argv[0] == "unmunge"] == ["MUNGE:abc:"] * 2
    # One that was accepted before, and one that has expired, for which unmunge prints nothing.
    assert munge.verify_credential(answer(17, "", ""), "MUNGE:abc:") == (True, "")
    assert munge.verify_credential(answer(15, "", ""), "MUNGE:abc:") == (False, "it has expired")
    # Nothing was signed, so there is nothing to verify.
    assert munge.verify_credential(answer(0, "", ""), "") == (False, "the manager has not signed a credential")


def test_credentials_have_the_longest_lifetime() -> None:
    """The manager signs once. With few forks, a task takes longer on all members than a credential usually lives."""
    asked: list[list[str]] = []

    def run(argv: list[str], check: bool = True) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, "MUNGE:abc:\n", "")

    munge.sign_credential(run)
    # The longest lifetime that munge(1) allows is an hour instead of five minutes.
    assert "--ttl=-1" in asked[0]

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module munge_key as Ansible runs it: arguments in, JSON out, and no secret in it."""

from __future__ import annotations

import base64
import json
import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest
from module_runs import result_of, start

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find

ME = pwd.getpwuid(os.getuid()).pw_name
KEY = base64.b64encode(bytes(range(64))).decode()


def run(module: str, programs: Path, **arguments: Any) -> dict[str, Any]:
    """The result of a module on a host that has these programs of its own."""
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return result_of(start(module, arguments, environment))


@pytest.fixture(name="programs")
def _programs(tmp_path: Path) -> Path:
    """A host with a munge that signs, and accepts only that."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = {
        "munged": "exit 0",
        "munge": "echo MUNGE:signed:",
        "unmunge": 'read -r given; [ "$given" = MUNGE:signed: ] || { echo "unmunge: Invalid credential" >&2; exit 17; }',
    }
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    return folder


def test_a_key_is_written_once_for_its_owner_alone(tmp_path: Path, programs: Path) -> None:
    path, socket = tmp_path / "munge" / "munge.key", tmp_path / "socket"
    arguments = {"path": str(path), "user": ME, "socket": str(socket), "content": KEY}
    first = run("munge_key", programs, **arguments)
    assert (first["changed"], first["installed"], first["stale"]) == (True, True, True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    socket.touch()
    second = run("munge_key", programs, **arguments)
    assert (second["changed"], second["stale"]) == (False, False)
    assert KEY not in json.dumps([first.get("content"), second])


def test_what_one_host_signs_another_verifies(tmp_path: Path, programs: Path) -> None:
    arguments = {"path": str(tmp_path / "munge.key"), "user": ME, "socket": str(tmp_path / "socket")}
    manager = run("munge_key", programs, **arguments, generate=True, reveal=True, sign=True, asked_at=0)
    assert (manager["credential"], manager["reason"]) == ("MUNGE:signed:", "")
    assert len(base64.b64decode(manager["content"])) == 128
    assert manager["ahead"] > 1e9
    assert run("munge_key", programs, **arguments, verify="MUNGE:signed:")["trusted"]
    other = run("munge_key", programs, **arguments, verify="MUNGE:other:")
    assert (other["trusted"], other["reason"]) == (False, "unmunge: Invalid credential")
    assert not run("munge_key", programs, **arguments, verify="")["trusted"]


def test_an_account_that_is_missing_is_named(tmp_path: Path, programs: Path) -> None:
    path = tmp_path / "munge.key"
    told = run("munge_key", programs, path=str(path), user="nobody-of-this-name", content=KEY)
    assert told["failed"]
    assert "There is no user nobody-of-this-name" in told["msg"]
    assert not path.exists()


@pytest.mark.skipif(find("munged") is not None, reason="munge is installed here")
def test_a_host_without_munge_says_so_when_it_may(tmp_path: Path) -> None:
    told = run("munge_key", tmp_path, path=str(tmp_path / "munge.key"), optional=True, verify="MUNGE:signed:")
    assert (told["installed"], told["changed"], told["trusted"]) == (False, False, False)

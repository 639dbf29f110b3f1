# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module munge as Ansible runs it: arguments in, JSON out, and no secret in it."""

from __future__ import annotations

import base64
import json
import os
import pwd
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from module_runs import read_result, start_module, write_programs

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import munge_apply as munge
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import conf, configure

CURRENT_USER = pwd.getpwuid(os.getuid()).pw_name
KEY = base64.b64encode(bytes(range(64))).decode()
OTHER_KEY = base64.b64encode(bytes(range(1, 65))).decode()


def run_module(module: str, programs: Path, **arguments: Any) -> dict[str, Any]:
    """The result of a module on a host with these programs."""
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    return read_result(start_module(module, arguments, environment))


@pytest.fixture(name="given")
def _given(tmp_path: Path) -> dict[str, Any]:
    """The arguments for a host that is this folder."""
    return {
        "cluster": "lab",
        "cluster_id": "0" * 32,
        "path": str(tmp_path / "munge" / "munge.key"),
        "user": CURRENT_USER,
        "socket": str(tmp_path / "socket"),
        "folder": str(tmp_path / "gpumesh" / "clusters"),
        "supervisor_programs": str(tmp_path),
    }


@pytest.fixture(name="programs")
def _programs(tmp_path: Path) -> Path:
    """A host with a munge that signs, and accepts only its own signature."""
    scripts = {
        "munged": "exit 0",
        "supervisord": "exit 0",
        "supervisorctl": 'case $3 in pid) echo 1;; status) echo "munge RUNNING pid 0, uptime 1";; esac',
        "systemctl": "echo LoadState=loaded; echo ActiveState=active; echo UnitFileState=enabled",
        "munge": "echo MUNGE:signed:",
        "unmunge": 'echo asked >> "${0%/*}/../asked"; read -r given; '
        '[ "$given" = MUNGE:signed: ] || { echo "unmunge: Invalid credential" >&2; exit 14; }',
    }
    return write_programs(tmp_path / "bin", scripts)


def test_a_key_is_written_once_and_readable_only_by_its_owner(given: dict[str, Any], programs: Path) -> None:
    path, socket = Path(given["path"]), Path(given["socket"])
    socket.touch()
    first = run_module("munge", programs, **given, content=KEY, start=False)
    assert (first["changed"], first["missing"]) == (True, [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    second = run_module("munge", programs, **given, content=KEY, start=False)
    assert not second["changed"]
    assert KEY not in json.dumps([first, second])


def test_a_member_verifies_the_credential_of_the_manager(given: dict[str, Any], programs: Path) -> None:
    socket = Path(given["socket"])
    manager = run_module("munge", programs, **given, generate=True, sign=True, controller_time=0, start=False)
    assert (manager["credential"], manager["reason"]) == ("MUNGE:signed:", "")
    assert len(base64.b64decode(manager["content"])) == 128
    assert manager["clock_ahead"] > 1e9
    socket.touch()
    member = {**given, "content": manager["content"], "manager_name": "n1"}
    assert run_module("munge", programs, **member, verify="MUNGE:signed:")["changed"], (
        "supervisord does not know it yet"
    )
    (programs.parent / "asked").unlink()
    trusts = run_module("munge", programs, **member, verify="MUNGE:signed:")
    assert (programs.parent / "asked").read_text() == "asked\n", "munged accepts it only once"
    assert (trusts["restarted"], trusts["fingerprint"]) == (False, manager["fingerprint"])
    would = run_module("munge", programs, **member, verify="MUNGE:other:", _ansible_check_mode=True)
    assert (would["changed"], would["restarted"]) == (True, True)
    refuses = run_module("munge", programs, **member, verify="MUNGE:other:")
    assert "munge rejects the credential of the manager n1: unmunge: Invalid credential" in refuses["msg"]


def test_a_replayed_credential_restarts_nothing(given: dict[str, Any], programs: Path) -> None:
    """Ansible runs a module again whose connection has broken off (the option retries of its SSH connection)."""
    run_module("munge", programs, **given, content=KEY, start=False)
    Path(given["socket"]).touch()
    arguments = {**given, "content": KEY, "manager_name": "n1", "verify": "MUNGE:signed:"}
    run_module("munge", programs, **arguments)
    # unmunge of munge 0.5.15 prints nothing in this case.
    (programs / "unmunge").write_text("#!/bin/sh\nexit 17\n", encoding="utf-8")
    again = run_module("munge", programs, **arguments)
    assert (again.get("msg"), again["changed"], again["restarted"]) == (None, False, False)


def test_a_clock_skew_is_refused_before_anything_changes(given: dict[str, Any], programs: Path) -> None:
    asked = {"controller_time": time.time(), "manager_clock_ahead": -90.0, "manager_name": "n1"}
    told = run_module("munge", programs, **given, content=KEY, **asked)
    assert "The clock is 9" in told["msg"] and "ahead of that of the manager n1" in told["msg"]
    assert not Path(given["path"]).exists()
    assert "msg" not in run_module(
        "munge", programs, **given, content=KEY, **{**asked, "manager_clock_ahead": -30.0}, start=False
    )


def test_a_missing_account_is_named(given: dict[str, Any], programs: Path) -> None:
    told = run_module("munge", programs, **{**given, "user": "nobody-of-this-name"}, content=KEY)
    assert told["failed"]
    assert "There is no user nobody-of-this-name" in told["msg"]
    assert not Path(given["path"]).exists()


@pytest.mark.skipif(find_program("munged") is not None, reason="munge is installed here")
def test_missing_packages_are_reported(given: dict[str, Any], tmp_path: Path) -> None:
    told = run_module("munge", tmp_path, **given, sign=True, start=False, _ansible_check_mode=True)
    assert (told["missing"], told["changed"], told["content"]) == (["munge"], True, "")
    assert not Path(given["folder"]).parent.exists()


def test_a_removal_deletes_the_key(given: dict[str, Any], programs: Path) -> None:
    run_module("munge", programs, **given, content=KEY, start=False)
    assert run_module("munge", programs, **given, state="absent", _ansible_check_mode=True)["changed"]
    assert run_module("munge", programs, **given, state="absent")["changed"]
    assert not Path(given["path"]).exists()


def test_a_foreign_key_is_kept_if_the_cluster_did_not_set_up_munge(given: dict[str, Any], programs: Path) -> None:
    """This is the state after the playbook create alone, on a node of another Slurm cluster."""
    path, program = Path(given["path"]), programs.parent / "gpumesh-munge.conf"
    path.parent.mkdir()
    path.write_bytes(base64.b64decode(KEY))
    program.write_text("[program:munge]\n")
    assert not run_module("munge", programs, **given, state="absent")["changed"]
    run_module("munge", programs, **{**given, "cluster": "other", "cluster_id": "1" * 32}, content=KEY, start=False)
    assert not run_module("munge", programs, **given, state="absent")["changed"]
    assert path.exists() and program.exists()


FOREIGN_SLURM_CONFIG = "ClusterName=theirs\n"
CONFIGLESS = 'SLURMD_OPTIONS="--conf-server ctl"\n'


@pytest.mark.parametrize(
    ("text", "content", "owned", "replace", "refused", "options"),
    [
        # The key of somebody else's Slurm cluster is neither replaced nor passed to the members of ours.
        (FOREIGN_SLURM_CONFIG, OTHER_KEY, False, True, "slurm.conf was not written by this collection", ""),
        (FOREIGN_SLURM_CONFIG, None, False, True, "slurm.conf was not written by this collection", ""),
        (FOREIGN_SLURM_CONFIG, KEY, False, True, "", ""),
        (None, OTHER_KEY, False, True, "", ""),
        (
            None,
            OTHER_KEY,
            False,
            True,
            "/etc/default/slurmd makes this host a node of another Slurm cluster",
            CONFIGLESS,
        ),
        (None, None, False, True, "/etc/default/slurmd makes this host a node of another Slurm cluster", CONFIGLESS),
        (None, OTHER_KEY, True, True, "", CONFIGLESS),
        (conf.render_file([]) + "ClusterName=lab\n", OTHER_KEY, False, True, "", ""),
        # The cluster's own, and a new one in the user's file.
        (None, OTHER_KEY, True, True, "", ""),
        (None, OTHER_KEY, True, False, "not all members are in this play", ""),
        (None, KEY, True, False, "", ""),
        (None, None, True, True, "", ""),
    ],
)
def test_a_key_that_others_rely_on_is_not_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    content: str | None,
    owned: bool,
    replace: bool,
    refused: str,
    options: str,
) -> None:
    monkeypatch.setattr(configure, "CONFIG_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(munge, "Tree", lambda: Tree(str(tmp_path)))
    (tmp_path / "etc" / "default").mkdir(parents=True)
    (tmp_path / "etc" / "default" / "slurmd").write_text(options)
    (tmp_path / "key").write_bytes(base64.b64decode(KEY))
    if text is not None:
        (tmp_path / "slurm.conf").write_text(text)
    given = {"path": str(tmp_path / "key"), "content": content, "replace": replace}
    if refused:
        with pytest.raises(HostStateError, match=refused):
            munge.refuse_to_replace(given, owned)
    else:
        munge.refuse_to_replace(given, owned)

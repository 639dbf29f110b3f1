# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account of a collective, and the code that others can make it run: root starts it, in a directory that others can
write to.
"""

from __future__ import annotations

import ast
import inspect
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective import launch, torch_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import command_prefix

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def create_request(**changes: Any) -> launch.CollectiveRequest:
    default_request = launch.CollectiveRequest(
        "all_reduce", "", "local", 2, 1, [], 1024, 2048, 5, 60, None, None, 1, "/usr/bin/python3"
    )
    return default_request._replace(**changes)


def test_module_in_the_working_directory_is_not_imported(attacker: pwd.struct_passwd) -> None:
    """The working directory is /tmp where root's home is missing."""
    directory = Path(attacker.pw_dir)
    names = ("argparse", "json", "socket", "torch")
    for name in names:
        (directory / f"{name}.py").write_text("open('/dev/stdout', 'w').write('SEIZED\\n')\n", encoding="utf-8")
    try:
        variables = {**os.environ, "PYTHONPATH": str(directory)}
        completed = subprocess.run(
            launch.build_command(create_request()),
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        exposed = [sys.executable, "-c", "import torch"]
        trap_run = subprocess.run(exposed, cwd=directory, capture_output=True, text=True, check=False)
    finally:
        for name in names:
            (directory / f"{name}.py").unlink()
    assert "SEIZED" in trap_run.stdout, "the trap works"
    assert "SEIZED" not in completed.stdout + completed.stderr


def test_program_of_a_rank_has_no_privileges(tmp_path: Path) -> None:
    tell = "id -u; id -G; pwd; echo $HOME $USER; grep -E 'CapEff|NoNewPrivs' /proc/self/status"
    completed = subprocess.run(
        [*command_prefix("nobody"), "sh", "-c", tell], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    nobody = pwd.getpwnam("nobody")
    lines = completed.stdout.split("\n")
    assert lines[:4] == [str(nobody.pw_uid), str(nobody.pw_gid), "/", f"{nobody.pw_dir} nobody"]
    assert "CapEff:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines


def test_ranks_exchange_no_pickled_objects() -> None:
    """PyTorch's collectives of objects unpickle what any rank sends."""
    names = {
        node.attr for node in ast.walk(ast.parse(inspect.getsource(torch_program))) if isinstance(node, ast.Attribute)
    }
    assert not {name for name in names if "object" in name or "pickle" in name}
    assert {"all_gather", "all_reduce"} <= names


def test_invalid_device_data_is_rejected() -> None:
    with pytest.raises(UnicodeDecodeError):
        torch_program.decode_document(list(b"\x80\x04\x95 cposix\nsystem\n"))
    device = {"rank": 1, "host": "n1", "device": 0, "name": "H100"}
    assert torch_program.decode_document(torch_program.encode_document(device)) == device
    long = torch_program.decode_document(torch_program.encode_document({**device, "name": "x" * 5000}))
    assert long == {**device, "name": ""}

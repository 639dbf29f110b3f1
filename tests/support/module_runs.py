# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules as Ansible does, mostly in a separate process: arguments in, JSON out, the same with every ansible-core."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from ansible.module_utils import basic


@contextlib.contextmanager
def patch_module_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Give these arguments to a module that runs in this process.

    This is what `patch_module_args` of ansible-core does, which 2.18 does not have.
    """
    encoded_arguments = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
    profile = mock.patch.object(basic, "_ANSIBLE_PROFILE", "legacy", create=True)
    with mock.patch.object(basic, "_ANSIBLE_ARGS", encoded_arguments), profile:
        yield


def write_programs(directory: Path, scripts: Mapping[str, str]) -> Path:
    """Create a directory for PATH, with programs that are these scripts of the shell. Returns it."""
    directory.mkdir()
    for name, script in scripts.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    return directory


def start_module(
    module: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    program: str = "",
) -> subprocess.Popen[str]:
    """Start a module of this collection.

    ``prefix``: the arguments that start the command. ``program``: Python that runs the module instead, whose last
    argument is the name of the module.
    """
    own_command = ["-m", f"ansible_collections.gpumesh.cluster.plugins.modules.{module}"]
    with tempfile.TemporaryFile("w+") as argument_file:
        json.dump({"ANSIBLE_MODULE_ARGS": arguments}, argument_file)
        argument_file.seek(0)
        return subprocess.Popen(
            [*prefix, sys.executable, *(["-c", program, module] if program else own_command)],
            stdin=argument_file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )


def read_result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the module to end. Returns its result."""
    stdout, stderr = process.communicate(timeout=120)
    assert stdout, stderr
    result: dict[str, Any] = json.loads(stdout)
    return result

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
def module_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Give these arguments to a module that runs in this process.

    This is what `patch_module_args` of ansible-core does, which 2.18 does not have.
    """
    given = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
    profile = mock.patch.object(basic, "_ANSIBLE_PROFILE", "legacy", create=True)
    with mock.patch.object(basic, "_ANSIBLE_ARGS", given), profile:
        yield


def write_programs(folder: Path, scripts: Mapping[str, str]) -> Path:
    """Create a directory for PATH, with programs that are these scripts of the shell. Returns it."""
    folder.mkdir()
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    return folder


def start(
    module: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a module of this collection. ``prefix``: the arguments that start the command."""
    with tempfile.TemporaryFile("w+") as given:
        json.dump({"ANSIBLE_MODULE_ARGS": arguments}, given)
        given.seek(0)
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", f"ansible_collections.gpumesh.cluster.plugins.modules.{module}"],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the module to end. Returns its result."""
    output, errors = process.communicate(timeout=120)
    assert output, errors
    result: dict[str, Any] = json.loads(output)
    return result

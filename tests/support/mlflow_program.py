# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An installed MLflow: the one that the variable GPUMESH_MLFLOW names, or that of a tracking server on this machine."""

from __future__ import annotations

import glob
import json
import os
import subprocess
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings


def python() -> str:
    """The Python of its environment. Skips the test if there is none."""
    found = [os.environ.get("GPUMESH_MLFLOW", ""), *glob.glob(f"{settings.LIBRARY}/*/bin/python")]
    named = next(filter(None, found), "")
    if not named:
        pytest.skip("not checked: no MLflow is installed on this machine, and GPUMESH_MLFLOW does not name its Python")
    return named


def run(program: str, stdin: Any = None, **variables: str) -> Any:
    """Run a Python program in its environment. Returns the JSON in the last line of its output."""
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **variables}
    done = subprocess.run(
        [python(), "-c", program],
        input=json.dumps(stdin),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])

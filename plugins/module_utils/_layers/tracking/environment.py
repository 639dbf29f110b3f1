# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MLflow in its own Python environment: pinned packages from the package index of the host's pip.

A complete environment is marked by a file; an incomplete one is created again.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names, read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.settings import LIBRARY, environment_path

#: The timeout in seconds, for 250 MiB of packages over a slow line.
_INSTALL_TIMEOUT = 3600.0
#: The versions of Python for which packages are available.
SUPPORTED_PYTHONS = ("3.11", "3.12", "3.13")
_COMPLETION_FILE = "gpumesh.json"
#: A program that collects the schemas of this MLflow, by the tables that contain their versions.
_SCHEMA_SOURCE = """
import json, os, mlflow, mlflow.server.auth
from alembic.config import Config
from alembic.script import ScriptDirectory
def schema(*path):
    config = Config()
    config.set_main_option("script_location", os.path.join(*path))
    return ScriptDirectory.from_config(config)
schemas = {
    "alembic_version": schema(os.path.dirname(mlflow.__file__), "store", "db_migrations"),
    "alembic_version_auth": schema(os.path.dirname(mlflow.server.auth.__file__), "db", "migrations"),
}
"""
#: Programs that print the newest version of each schema, and all versions that can be migrated.
_HEADS_PROGRAM = f"""{_SCHEMA_SOURCE}
heads = {{table: one.get_current_head() for table, one in schemas.items()}}
print("\\n" + json.dumps({{**heads, "mlflow": mlflow.__version__}}))
"""
_REVISIONS_PROGRAM = f"""{_SCHEMA_SOURCE}
print("\\n" + json.dumps({{table: [part.revision for part in one.walk_revisions()] for table, one in schemas.items()}}))
"""


def python_version(run: Runner) -> str:
    """Return the version of the host's Python, such as 3.13. Raises HostStateError if there are no packages for it."""
    version = run(["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()
    if version not in SUPPORTED_PYTHONS:
        raise HostStateError(
            f"The tracking server cannot run with Python {version} of this host.",
            f"Choose a member with Python {', '.join(SUPPORTED_PYTHONS)} (Debian 12 or 13).",
        )
    return version


def can_create(run: Runner) -> bool:
    """Return whether the host's Python can create environments."""
    return run(["/usr/bin/python3", "-c", "import ensurepip, venv"], check=False).rc == 0


def read_versions(directory: str) -> Optional[Dict[str, str]]:
    """Return the versions of MLflow and of its schemas in a complete environment; None if it is incomplete."""
    text = read_text(os.path.join(directory, _COMPLETION_FILE))
    return None if text is None else dict(json.loads(text))


def build_environment(run: Runner, requirements: str, python_version: str) -> str:
    """Create the environment unless it is complete. Returns its directory. Raises CommandError with pip's message."""
    directory = environment_path(requirements, python_version)
    if read_versions(directory) is not None:
        return directory
    os.makedirs(LIBRARY, mode=0o755, exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    run(["/usr/bin/python3", "-m", "venv", directory], timeout=_INSTALL_TIMEOUT)
    requirements_path = os.path.join(directory, "requirements.txt")
    write_atomic(requirements_path, requirements, mode=0o644)
    pip = [f"{directory}/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    try:
        run(
            [*pip, "--require-hashes", "--only-binary=:all:", "--requirement", requirements_path],
            timeout=_INSTALL_TIMEOUT,
        )
    except CommandError as failure:
        raise HostStateError(
            f"pip cannot install MLflow: {failure.message}",
            "Check that this host reaches its package index, which is set in /etc/pip.conf.",
        ) from failure
    output = run([f"{directory}/bin/python", "-c", _HEADS_PROGRAM], timeout=300).stdout
    write_atomic(os.path.join(directory, _COMPLETION_FILE), json.dumps(parse_last_line(output)), mode=0o644)
    return directory


def list_revisions(run: Runner, directory: str) -> Dict[str, List[str]]:
    """Return the versions of each schema that MLflow knows: the newest one, and those that it can migrate."""
    revisions_by_table = parse_last_line(run([f"{directory}/bin/python", "-c", _REVISIONS_PROGRAM], timeout=300).stdout)
    return {table: list(revision_ids) for table, revision_ids in revisions_by_table.items()}


def parse_last_line(output: str) -> Dict[str, Any]:
    """Parse the last line of a program's output as JSON: libraries also print messages, before it."""
    return dict(json.loads(output.strip().splitlines()[-1]))


def list_obsolete(current_directory: str) -> List[str]:
    """Return the environments of earlier versions."""
    environment_paths = (os.path.join(LIBRARY, name) for name in list_names(LIBRARY))
    return [path for path in environment_paths if path != current_directory and os.path.isdir(path)]

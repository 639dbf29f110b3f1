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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.settings import LIBRARY, environment_of

#: The timeout in seconds, for 250 MiB of packages over a slow line.
_PATIENCE = 3600.0
#: The versions of Python for which there are packages.
PYTHONS = ("3.11", "3.12", "3.13")
_COMPLETE = "gpumesh.json"
#: The schemas of this MLflow, by the tables in which their versions are.
_SCHEMAS = """
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
#: The newest version of each, and all that it can migrate.
_HEADS = f"""{_SCHEMAS}
heads = {{table: one.get_current_head() for table, one in schemas.items()}}
print("\\n" + json.dumps({{**heads, "mlflow": mlflow.__version__}}))
"""
_REVISIONS = f"""{_SCHEMAS}
print("\\n" + json.dumps({{table: [part.revision for part in one.walk_revisions()] for table, one in schemas.items()}}))
"""


def python_version(run: Runner) -> str:
    """The version of the host's Python, such as 3.13. Raises HostStateError if there are no packages for it."""
    words = run(["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()
    if words not in PYTHONS:
        raise HostStateError(
            f"The tracking server cannot run with Python {words} of this host.",
            f"Choose a member with Python {', '.join(PYTHONS)} (Debian 12 or 13).",
        )
    return words


def can_make(run: Runner) -> bool:
    """Whether the host's Python can create environments."""
    return run(["/usr/bin/python3", "-c", "import ensurepip, venv"], check=False).rc == 0


def facts(folder: str) -> Optional[Dict[str, str]]:
    """The versions of MLflow and of its schemas in a complete environment; None if it is incomplete."""
    text = read_text(os.path.join(folder, _COMPLETE))
    return None if text is None else dict(json.loads(text))


def build(run: Runner, requirements: str, python: str) -> str:
    """Create the environment unless it is complete. Returns its directory. Raises CommandError with pip's message."""
    folder = environment_of(requirements, python)
    if facts(folder) is not None:
        return folder
    os.makedirs(LIBRARY, mode=0o755, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    run(["/usr/bin/python3", "-m", "venv", folder], timeout=_PATIENCE)
    listed = os.path.join(folder, "requirements.txt")
    write_atomic(listed, requirements, mode=0o644)
    pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    try:
        run([*pip, "--require-hashes", "--only-binary=:all:", "--requirement", listed], timeout=_PATIENCE)
    except CommandError as failure:
        raise HostStateError(
            f"pip cannot install MLflow: {failure.message}",
            "See that this host reaches its package index, which pip takes from /etc/pip.conf.",
        ) from failure
    said = run([f"{folder}/bin/python", "-c", _HEADS], timeout=300).stdout
    write_atomic(os.path.join(folder, _COMPLETE), json.dumps(last_json(said)), mode=0o644)
    return folder


def revisions(run: Runner, folder: str) -> Dict[str, List[str]]:
    """The versions of each schema that MLflow knows: the newest one, and those that it can migrate."""
    found = last_json(run([f"{folder}/bin/python", "-c", _REVISIONS], timeout=300).stdout)
    return {table: list(known) for table, known in found.items()}


def last_json(said: str) -> Dict[str, Any]:
    """The last line of a program's output, since libraries print messages as well."""
    return dict(json.loads(said.strip().splitlines()[-1]))


def others(folder: str) -> List[str]:
    """Environments of earlier versions."""
    paths = (os.path.join(LIBRARY, name) for name in names_in(LIBRARY))
    return [path for path in paths if path != folder and os.path.isdir(path)]

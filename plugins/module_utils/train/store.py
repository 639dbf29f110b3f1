# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of a run on the shared volume: request.json, run.json, a folder an attempt with a log a rank, checkpoints/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request, Run, as_values, from_values

_REQUEST = "request.json"
_STATE = "run.json"


class Folder:
    """One run's."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def create(self, request: Request) -> None:
        """Raises InputError where the name is taken: of two who ask at the same time, one gets it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o755)
        except FileExistsError as failure:
            raise InputError(
                f"There is a run '{request.name}' already, in {self.path}.",
                f"Choose another name, or go on with it: gpumesh-train resume {request.name}",
                run=request.name,
            ) from failure
        except OSError as failure:
            raise HostStateError(
                f"{self.path} cannot be created: {failure.strerror}.",
                "Choose a folder on a shared volume that you may write to with --run-dir.",
            ) from failure
        (self.path / "checkpoints").mkdir()
        (self.path / "attempts").mkdir()
        write_atomic(str(self.path / _REQUEST), requests.to_text(request), 0o644)

    def request(self) -> Request:
        """Raises InputError, also where there is no such run."""
        text = read_text(str(self.path / _REQUEST))
        if text is None:
            raise InputError(f"There is no run in {self.path}.", "See 'gpumesh-train list'.")
        return requests.from_text(text)

    def read(self) -> Optional[Run]:
        """What has happened so far; None before anything has. Raises HostStateError for a damaged file."""
        text = read_text(str(self.path / _STATE))
        if text is None:
            return None
        try:
            return from_values(from_json(text))
        except ValueError as failure:
            raise HostStateError(
                f"{self.path / _STATE} is damaged: {failure}.", "Restore it, or begin under another name."
            ) from failure

    def write(self, run: Run) -> None:
        """In one step, so that whoever reads it meanwhile sees the old or the new state."""
        write_atomic(str(self.path / _STATE), json.dumps(as_values(run), indent=1) + "\n", 0o644)

    def attempt(self, number: int) -> Path:
        """The folder with the logs of an attempt."""
        place = self.path / "attempts" / f"{number:03}"
        place.mkdir(exist_ok=True)
        return place


def runs(base: str) -> List[str]:
    """The names of all runs below a folder."""
    place = Path(base)
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if (path / _REQUEST).is_file())

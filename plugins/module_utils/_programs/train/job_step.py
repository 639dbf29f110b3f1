# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job step with one task on each of its nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Sequence, TextIO, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess

#: Seconds for srun to end after its tasks.
_SRUN_EXIT_TIMEOUT = 1.0


class JobStep:
    """The srun of a step. Tasks of other nodes continue if one of them cannot be started, fails or is lost."""

    def __init__(
        self,
        job_id: int,
        nodes: Sequence[str],
        step_options: Sequence[str],
        task_command: Sequence[str],
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start the step. Raises OSError."""
        srun_command = [
            "srun",
            f"--jobid={job_id}",
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(nodes)}",
            "--cpu-bind=none",
            *step_options,
            *task_command,
        ]
        self._process = ChildProcess(
            srun_command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            start_new_session=True,
        )

    @property
    def output(self) -> TextIO:
        """What the tasks and srun write."""
        return cast("TextIO", self._process.stdout)

    def over(self) -> bool:
        """Whether srun has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill srun, whose tasks have ended or are unreachable."""
        deadline = time.monotonic() + _SRUN_EXIT_TIMEOUT
        while not self.over() and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

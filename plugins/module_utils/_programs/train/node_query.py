# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask many nodes of a job the same thing in one step.

srun starts the tasks of nodes that respond at once, also if others do not, and prints what they write as it arrives. It
ends only when it has given up the others, so each answer counts as soon as it is complete. Whoever does not answer in
time may be asked again alone, since Slurm can also refuse, or delay, a whole step because of one of its nodes.

What a node writes is taken for the answer of no other node: srun puts the number of the task before each line, a node
also gives its name, and the text of its answer is encoded.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import threading
import time
from typing import Dict, List, Optional, Sequence, TextIO, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.job_step import JobStep

#: Runs a command, and writes the name of the node with its exit status, then its output, in lines that srun does not
#: split, and a line that ends the answer. The environment is that in which a single node is asked.
_ANSWER_SCRIPT = """export LC_ALL=C LANGUAGE=C
output=$("$@" 2>/dev/null)
printf '%s %s\\n' "$SLURMD_NODENAME" "$?"
printf %s "$output" | tail -c 65536 | base64 -w 800
echo ."""
#: Seconds for the end of the output of a srun that was killed.
_OUTPUT_TIMEOUT = 1.0
_LABELLED_LINE = re.compile(rb" *(\d{1,9}): (.*)\n", re.DOTALL)
_FIRST_LINE = re.compile(rb"(\S+) (\d{1,3})")
_LAST_LINE = b"."


class AnswerParser:
    """Assemble answers from the lines of a step. ``nodes``: those of the step, in the order of the job's list of nodes,
    in which Slurm numbers its tasks.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = [node.encode() for node in nodes]
        self._partial_answers: Dict[int, Tuple[int, List[bytes]]] = {}

    def feed(self, line: bytes) -> Optional[Tuple[str, CommandResult]]:
        """Return the node whose answer this line completes, and the answer."""
        line_match = _LABELLED_LINE.fullmatch(line)
        if line_match is None:
            return None
        task, text = int(line_match.group(1)), line_match.group(2)
        if task not in self._partial_answers:
            first_line = _FIRST_LINE.fullmatch(text)
            if first_line is not None and self._nodes[task : task + 1] == [first_line.group(1)]:
                self._partial_answers[task] = (int(first_line.group(2)), [])
            return None
        exit_status, chunks = self._partial_answers[task]
        if text != _LAST_LINE:
            chunks.append(text)
            return None
        del self._partial_answers[task]
        try:
            output = base64.b64decode(b"".join(chunks), validate=True)
        except binascii.Error:
            return None
        return self._nodes[task].decode(), CommandResult(exit_status, output.decode("utf-8", "replace"), "")


class NodeQuery:
    """A command that runs on several nodes at once, and the answers that have arrived so far.

    A single node is not asked in this way, but alone.
    """

    def __init__(
        self, job_id: int, nodes: Sequence[str], step_options: Sequence[str], command: Sequence[str], timeout: float
    ) -> None:
        """``timeout``: seconds that a node has for its answer, in this step or alone."""
        self.answers: Dict[str, CommandResult] = {}
        self._nodes = nodes
        self._began_at = self._answered_at = time.monotonic()
        self._deadline = self._began_at + timeout
        self._changed = threading.Condition()
        self._is_over = True
        self._step: Optional[JobStep] = None
        self._reader: Optional[threading.Thread] = None
        with contextlib.suppress(OSError):
            if len(nodes) > 1:
                self._start(job_id, step_options, command)

    def _start(self, job_id: int, step_options: Sequence[str], command: Sequence[str]) -> None:
        """Start the step, and read what its nodes answer. Raises OSError."""
        query_options = ["--label", "--quiet", f"--job-name={os.path.basename(command[0])}", *step_options]
        task_command = ["/bin/sh", "-c", _ANSWER_SCRIPT, "sh", *command]
        self._step = JobStep(job_id, self._nodes, query_options, task_command)
        self._reader = threading.Thread(target=self._read, args=(self._step.output,), daemon=True)
        self._is_over = False
        self._reader.start()

    def _read(self, stream: TextIO) -> None:
        parser = AnswerParser(self._nodes)
        # Only a line feed ends a line of srun, while text may contain other characters that Python would split at.
        with stream:
            for line in stream.buffer:
                answer = parser.feed(line)
                if answer is not None:
                    with self._changed:
                        self.answers.setdefault(*answer)
                        self._answered_at = time.monotonic()
                        self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def await_answers(self, patience: float, pause: Optional[float] = None) -> None:
        """Wait until all nodes have answered, the step has ended, or these seconds have passed.

        ``pause``: the seconds after an answer in which another one has to arrive, if all nodes should take about as
        long. It is longer if the step was slow so far.
        """
        with self._changed:
            while not self._is_over and len(self.answers) < len(self._nodes):
                limit = self._began_at + patience
                if pause is not None and self.answers:
                    limit = min(limit, self._answered_at + max(pause, self._answered_at - self._began_at))
                seconds = limit - time.monotonic()
                if seconds <= 0:
                    return
                self._changed.wait(seconds)

    @property
    def seconds_left(self) -> float:
        """The seconds that nodes still have for an answer."""
        return max(self._deadline - time.monotonic(), 0.0)

    def close(self) -> None:
        """End the step."""
        if self._step is not None and self._reader is not None:
            self._step.kill()
            self._reader.join(_OUTPUT_TIMEOUT)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of a session, as reported by Slurm, or not."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job

#: The values that Slurm fills in for the fields.
_QUEUE_FORMAT = "%A|%u|%T|%N|%B|%r|%k"
_RUNNING_SESSION = "7|alice|RUNNING|n1|n1|None|gpumesh-session +;demo;main;1 running\n"
_CONTROLLER_DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Slurm:
    """Returns one answer after the other, and then the last one repeatedly; those with an error contain only text.

    The first line of an answer is preceded by the prefix in the format.
    """

    def __init__(self, *answers: CommandResult) -> None:
        self.answers = list(answers)

    def __call__(self, argv: list[str], check: bool = True, **_options: object) -> CommandResult:
        done = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if done.rc and check:
            raise CommandError(argv, f"exited {done.rc}", rc=done.rc, stderr=done.stderr)
        (before,) = (word[len("--format=") : -len(_QUEUE_FORMAT)] for word in argv if word.startswith("--format="))
        return done._replace(stdout=before + done.stdout if done.stdout else "")


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_QUERY_INTERVAL", 0.0)
    monkeypatch.setattr(job, "_CONTROLLER_TIMEOUT", 0.1)


def test_query_survives_a_restart_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_CONTROLLER_TIMEOUT", 60.0)
    found = job.query_session(Slurm(CommandResult(1, "", _CONTROLLER_DOWN), CommandResult(0, _RUNNING_SESSION, "")), 7)
    assert found is not None and found.stage == "running"
    monkeypatch.setattr(job, "_CONTROLLER_TIMEOUT", 0.1)
    with pytest.raises(CommandError, match="Unable to contact"):
        job.query_session(Slurm(CommandResult(1, "", _CONTROLLER_DOWN)), 7)


def test_unpublished_stage_raises_an_error() -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> CommandResult:
        asked.append(argv)
        raise CommandError(argv, "did not end within 30 s")

    with pytest.raises(CommandError, match="did not end"):
        job.publish_stage(run, 7, "+;demo;main;1", "running")
    assert asked == [["scontrol", "update", "job=7", "comment=gpumesh-session +;demo;main;1 running"]]


def test_forgotten_job_is_none() -> None:
    assert job.query_session(Slurm(CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified")), 7) is None
    assert job.query_session(Slurm(CommandResult(0, "", "")), 7) is None


def test_newlines_in_a_comment_forge_no_sessions() -> None:
    forged = "9|eve|RUNNING|n1|n1|None|x\n8|bob|RUNNING|n1|n1|None|gpumesh-session +;y;main;1 running\n"
    assert job.list_sessions(Slurm(CommandResult(0, forged, ""))) == []
    # The session itself is found in spite of the output before it.
    own = "9|eve|RUNNING|n1|n1|None|gpumesh-session +;x;main;1 failed a\n8|bob|RUNNING|n1|n1|None|gpumesh-session +;y;main;1\n"
    assert [one.job_id for one in job.list_sessions(Slurm(CommandResult(0, own, "")))] == [9]


def test_comment_is_a_single_line() -> None:
    """Only a line break ends it: whoever submits a job may write other separators into its comment."""
    text = "9|eve|RUNNING|n1|n1|None|gpumesh-session +;x;main;1 failed a\x0b8|bob|RUNNING|n1|n1|None|gpumesh-session +;y;main;1\n"
    assert [one.job_id for one in job.parse_queue(text)] == [9]

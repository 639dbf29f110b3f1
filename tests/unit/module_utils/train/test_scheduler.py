# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of Slurm 24.11, and its meaning for a run."""

from __future__ import annotations

import re

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Request


@pytest.mark.parametrize(
    ("printed", "reason"),
    [("gpumesh health: storage.mounts: gone\n", "gpumesh health: storage.mounts: gone"), ("none\n", ""), ("", "")],
)
def test_why_a_node_is_out_of_service(printed: str, reason: str) -> None:
    assert scheduler.why_out(lambda *_args, **_options: Completed(0, printed, ""), "n1") == reason


def test_a_note_is_left_on_the_runs_own_job_or_not_at_all() -> None:
    asked: list[list[str]] = []

    def refuse(argv: list[str], **_options: object) -> Completed:
        asked.append(argv)
        raise CommandError(argv, "exited 1", rc=1)

    scheduler.note(refuse, 41, "n3 is not used any more")
    assert asked == [["scontrol", "update", "job=41", "comment=n3 is not used any more"]]


def test_states_of_nodes() -> None:
    assert scheduler.parse_states("t1|allocated\nt2|down*\nt2|down*\n\n") == {"t1": "allocated", "t2": "down*"}


@pytest.mark.parametrize(
    ("state", "fit", "leaves"),
    [
        ("idle", True, False),
        ("allocated", True, False),
        ("mixed", True, False),
        ("completing", True, False),
        ("allocated*", False, False),
        ("down*", False, False),
        ("down", False, False),
        ("draining", False, True),
        ("drained", False, True),
        ("", True, False),
    ],
)
def test_which_nodes_can_be_used(state: str, fit: bool, leaves: bool) -> None:
    assert (scheduler.fit(state), scheduler.leaves(state)) == (fit, leaves)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04\n", 93784.0),
        ("2:03:04", 7384.0),
        ("3:04", 184.0),
        ("0:00", 0.0),
        ("UNLIMITED", None),
        ("", None),
        ("x:1", None),
    ],
)
def test_time_that_is_left(text: str, seconds: float | None) -> None:
    assert scheduler.time_left(lambda *_args, **_options: Completed(0, text, ""), 7) == seconds


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Completed(0, "PENDING|Resources\n", ""), "pending (Resources)"),
        (Completed(0, "RUNNING|None\n", ""), "running"),
        (Completed(0, "", ""), ""),
        (Completed(1, "", "slurm_load_jobs error: Invalid job id specified"), ""),
    ],
)
def test_state_of_a_job(answer: Completed, state: str) -> None:
    assert scheduler.job_state(lambda *_args, **_options: answer, 7) == state


def test_a_controller_that_does_not_answer_is_not_a_job_that_is_over() -> None:
    gone = Completed(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with pytest.raises(CommandError):
        scheduler.job_state(lambda *_args, **_options: gone, 7)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("sbatch: unrecognized option '--detach'\nTry \"sbatch --help\" for more information\n", "option '--detach'."),
        ("allocation failure: Requested node configuration is not available\n", "node configuration is not available."),
        ("sbatch: error: A\nsbatch: error: Batch job submission failed: B\n", "A, Batch job submission failed: B."),
        ("", "sbatch exited 1."),
    ],
)
def test_what_slurm_says_when_it_refuses(said: str, words: str) -> None:
    asked = Request(name="nano", command=("true",), folder="/x/nano")
    with pytest.raises(HostStateError, match=re.escape(words)):
        scheduler.refuse_impossible(lambda *_args, **_options: Completed(1, "", said), asked, "/bin/x")


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ("Slurm refuses the job: AssocMaxSubmitJobLimit.", True),
        (
            "Slurm refuses the job: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits).",
            True,
        ),
        (
            "Slurm refuses the job: Batch job submission failed: Unable to contact slurm controller (connect failure).",
            True,
        ),
        ("Slurm refuses the job: Batch job submission failed: Socket timed out on send/recv operation.", True),
        ("Slurm refuses the job: Batch job submission failed: Slurm temporarily unable to accept job.", True),
        ("Slurm refuses the job: Batch job submission failed: Requested node configuration is not available.", False),
        ("Slurm refuses the job: invalid partition specified: gone, Batch job submission failed.", False),
        (
            "Slurm refuses the job: Batch job submission failed: Required partition not available (inactive or drain).",
            True,
        ),
        ("Slurm refuses the job: Batch job submission failed: I/O error writing script/environment to file.", True),
        (
            "Slurm refuses the job: Batch job submission failed: Invalid account or account/partition combination specified.",
            True,
        ),
    ],
)
def test_what_slurm_refuses_may_pass_or_not(words: str, passes: bool) -> None:
    assert scheduler.may_pass(words) == passes


@pytest.mark.parametrize(
    ("printed", "waits"),
    [
        ("", False),
        ("Dependency\nJobHeldUser\nBeginTime\n", False),
        ("Dependency\nResources\n", True),
        ("Priority\n", True),
    ],
)
def test_whether_other_jobs_wait_for_nodes(printed: str, waits: bool) -> None:
    assert scheduler.others_wait(lambda *_args, **_options: Completed(0, printed, "")) == waits

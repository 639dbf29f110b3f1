# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of Slurm 24.11, and its meaning for a run."""

from __future__ import annotations

import re
import time

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest


@pytest.mark.parametrize(
    ("printed", "reason"),
    [("gpumesh health: storage.mounts: gone\n", "gpumesh health: storage.mounts: gone"), ("none\n", ""), ("", "")],
)
def test_the_out_of_service_reason_of_a_node(printed: str, reason: str) -> None:
    assert scheduler.out_of_service_reason(lambda *_args, **_options: CommandResult(0, printed, ""), "n1") == reason


def test_a_failed_job_comment_is_ignored() -> None:
    asked: list[list[str]] = []

    def refuse(argv: list[str], **_options: object) -> CommandResult:
        asked.append(argv)
        raise CommandError(argv, "exited 1", rc=1)

    scheduler.set_job_comment(refuse, 41, "n3 is not used any more")
    assert asked == [["scontrol", "update", "job=41", "comment=n3 is not used any more"]]


def test_node_states_are_parsed() -> None:
    assert scheduler.parse_node_states("t1|allocated\nt2|down*\nt2|down*\n\n") == {"t1": "allocated", "t2": "down*"}


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
def test_usable_node_states(state: str, fit: bool, leaves: bool) -> None:
    assert (scheduler.is_usable(state), scheduler.is_draining(state)) == (fit, leaves)


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
def test_the_remaining_time_is_parsed(text: str, seconds: float | None) -> None:
    assert scheduler.time_left(lambda *_args, **_options: CommandResult(0, text, ""), 7) == seconds


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (CommandResult(0, "PENDING|Resources\n", ""), "pending (Resources)"),
        (CommandResult(0, "RUNNING|None\n", ""), "running"),
        (CommandResult(0, "", ""), ""),
        (CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified"), ""),
    ],
)
def test_the_job_state_is_parsed(answer: CommandResult, state: str) -> None:
    assert scheduler.job_state(lambda *_args, **_options: answer, 7) == state


def test_an_unreachable_controller_does_not_mean_that_the_job_has_ended() -> None:
    gone = CommandResult(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
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
def test_the_refusal_of_sbatch_is_reported(said: str, words: str) -> None:
    asked = RunRequest(name="nano", command=("true",), folder="/x/nano")
    with pytest.raises(HostStateError, match=re.escape(words)):
        scheduler.refuse_impossible(lambda *_args, **_options: CommandResult(1, "", said), asked, "/bin/x")


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
def test_temporary_refusals_are_recognized(words: str, passes: bool) -> None:
    assert scheduler.is_temporary(words) == passes


@pytest.mark.parametrize(
    ("printed", "waits"),
    [
        ("", False),
        ("Dependency\nJobHeldUser\nBeginTime\n", False),
        ("Dependency\nResources\n", True),
        ("Priority\n", True),
    ],
)
def test_pending_jobs_that_wait_for_nodes(printed: str, waits: bool) -> None:
    assert scheduler.other_jobs_wait(lambda *_args, **_options: CommandResult(0, printed, "")) == waits


REQUEST = RunRequest(name="nano", command=["true"], folder="/runs/nano", nodes=4, min_nodes=1, spare=1)


@pytest.mark.parametrize(
    ("code", "said", "nodes"),
    [
        (
            0,
            "sbatch: Job 14 to start at {now} using 16 processors on nodes gpu[1,4] in partition cluster\n",
            ["n1", "n4"],
        ),
        # All that suit are reserved, or in use.
        (0, "sbatch: Job 15 to start at {later} using 32 processors on nodes gpu[1,4] in partition cluster\n", []),
        (1, "allocation failure: Requested node configuration is not available\n", []),
        (0, "", []),
    ],
)
def test_nodes_that_slurm_would_give_the_run_now(code: int, said: str, nodes: list[str]) -> None:
    asked: list[list[str]] = []
    formats: list[object] = []

    def run(argv: list[str], **options: object) -> CommandResult:
        asked.append(argv)
        if "hostnames" in argv:
            return CommandResult(0, "n1\nn4\n", "")
        formats.append(options["environment"])
        now, later = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + more)) for more in (1, 3600))
        return CommandResult(code, "", said.format(now=now, later=later))

    assert scheduler.offered_nodes(run, REQUEST, "/bin/x", 2, ["n2", "n3"]) == nodes
    assert {"--test-only", "--nodes=2", "--exclude=n2,n3"} <= set(asked[0])
    assert formats == [{"SLURM_TIME_FORMAT": "standard"}]


@pytest.mark.parametrize(
    ("job", "cancelled"),
    [
        ("JobId=41 JobState=COMPLETING Reason=None Restarts=0 ExitCode=0:0", True),
        ("JobId=41 JobState=CANCELLED Reason=None Restarts=0", True),
        ("JobId=41 JobState=RUNNING Reason=None Restarts=0", False),
        ("JobId=41 JobState=COMPLETING Reason=TimeLimit Restarts=0", False),
        ("JobId=41 JobState=COMPLETING Reason=None Restarts=1", False),
        ("JobId=41 JobState=COMPLETING Reason=RaisedSignal:9(Killed) Restarts=0 ExitCode=0:9", False),
        ("", False),
    ],
)
def test_a_cancelled_job_is_told_from_others_that_end(
    monkeypatch: pytest.MonkeyPatch, job: str, cancelled: bool
) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)

    def run(argv: list[str], **_options: object) -> CommandResult:
        if not job:
            raise CommandError(argv, "exited 1", rc=1)
        return CommandResult(0, job, "")

    assert scheduler.is_cancelled(run, 41) == cancelled

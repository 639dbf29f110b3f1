# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data of a training run: the request, and what has happened so far.

A *run* has a name and a directory. It consists of *attempts*, one after the other: in each, the same ranks start
together on some nodes, and continue from the last complete checkpoint. An attempt ends as a whole, for one *cause*,
which has a *culprit*.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION

NamedFields = TypeVar("NamedFields", bound=Tuple[Any, ...])


def from_known_fields(tuple_type: Type[NamedFields], mapping: Mapping[str, Any]) -> NamedFields:
    """Build a named tuple, ignoring fields that it does not have: a newer version may have written them.

    Members of a cluster are updated one after the other, so the nodes of a run may have different versions. Raises
    TypeError if a value is missing.
    """
    return tuple_type(**{name: field for name, field in mapping.items() if name in tuple_type._fields})  # type: ignore[attr-defined]


#: Seconds without a sign of life of any rank. PyTorch itself ends a rank that waits in a collective for 600 seconds,
#: and names the collective. A shorter timeout would mistake a validation that PyTorch allows for a hang.
HANG_TIMEOUT = 900.0


class RunRequest(NamedTuple):
    """The request. ``ranks``: processes that a node starts; 0 for one per GPU, or one if there are none.

    ``min_nodes``: with fewer nodes, the run is queued again; ``spare``: additional nodes that it holds.
    ``hang_timeout`` and ``grace`` in seconds: without progress of any rank, and to save a checkpoint after a warning.
    ``sbatch``: additional options of sbatch; ``directory``: where the command starts. ``code``: the directory of which
    the run has a snapshot, and ``commit`` its commit in git. ``stage``: a directory of which each node has a copy in
    ``stage_dir``. ``profile``: what is recorded of the ranks, such as torch:5. ``stop_on_nan``: whether the run stops
    when its loss is not a number. ``warn_signal``: what a program with a handler for it receives when it should save a
    checkpoint and exit.
    """

    name: str
    command: Sequence[str]
    folder: str
    nodes: int = 1
    min_nodes: int = 1
    spare: int = 0
    gpus_per_node: int = 0
    time: str = ""
    partition: str = ""
    sbatch: Sequence[str] = ()
    max_restarts: int = 10
    hang_timeout: float = HANG_TIMEOUT
    grace: float = 60.0
    directory: str = "."
    code: str = ""
    commit: str = ""
    stage: str = ""
    stage_dir: str = ""
    profile: str = ""
    ranks: int = 0
    stop_on_nan: bool = False
    warn_signal: str = "SIGUSR1"

    @property
    def ranks_per_node(self) -> int:
        """The number of processes that a node starts."""
        return self.ranks or self.gpus_per_node or 1


class Progress(NamedTuple):
    """The last report of a rank. ``checkpoint``: the step of the last complete checkpoint.

    ``waited``: the total seconds for which it has waited for other ranks. ``first``: the first step that it has made.
    ``busy``: what it does instead of steps, such as a validation, for at most ``limit`` seconds. ``nan``: whether its
    loss is not a number, or infinite.
    """

    step: Optional[int] = None
    steps: Optional[int] = None
    loss: Optional[float] = None
    checkpoint: Optional[int] = None
    waited: Optional[float] = None
    first: Optional[int] = None
    busy: Optional[str] = None
    limit: Optional[float] = None
    nan: Optional[bool] = None


class RankEnd(NamedTuple):
    """The end of a rank. ``status``: its exit status, or the negative number of the signal that killed it.

    ``at``: seconds since 1970 by the clock of its node. ``tail``: its last lines of output. ``memory``: since the
    ranks of its node started, the kernel has killed one of their processes because the memory of the job was used up.
    """

    rank: int
    node: str
    status: int
    at: float
    tail: str = ""
    memory: bool = False


class Cause(NamedTuple):
    """The cause of the end of an attempt.

    ``kind``: finished, crash, node (lost, rebooted, drained), hang, diverged (its loss is not a number), warned (time
    limit or preemption), grown (nodes that were away are back), cancelled, start (it could not start), supervisor (its
    process was killed), volume (the shared one is full or fails). ``rank`` and ``node`` are the culprit, if there is
    one; ``detail`` is a message of one line. ``hardware``: by the words of the error, the hardware or the driver of
    ``node`` is at fault.
    """

    kind: str
    detail: str = ""
    rank: Optional[int] = None
    node: str = ""
    hardware: bool = False


class Straggler(NamedTuple):
    """A rank, or all ranks of a node, that slow down the others. ``cost``: the approximate fraction of the time lost.

    ``since`` and ``until`` are in seconds since 1970; the latter is None while it lasts.
    """

    rank: Optional[int]
    node: str
    since: float
    cost: float
    detail: str
    until: Optional[float] = None


class Attempt(NamedTuple):
    """One attempt. Times in seconds since 1970; ``first`` and ``last`` are steps; ``action`` is what followed.

    ``supervisor``: the node of the process that has started it and monitors it; ``heir``: that process is not the one
    of the batch script, but continues the run after a loss. ``excluded``: the node that no later attempt uses because
    of its end. ``allocated``: the nodes with which its job started, and ``away`` those of them that it does not use and
    that do not respond, or are not in the job any more; ``stepping``: the seconds from its first step to its last.
    """

    number: int
    job: int
    nodes: Tuple[str, ...]
    world_size: int
    supervisor: str
    begin: float
    end: Optional[float] = None
    first: Optional[int] = None
    last: Optional[int] = None
    checkpoint: Optional[int] = None
    cause: Optional[Cause] = None
    action: str = ""
    stragglers: Tuple[Straggler, ...] = ()
    excluded: str = ""
    allocated: Tuple[str, ...] = ()
    stepping: Optional[float] = None
    heir: bool = False
    away: Tuple[str, ...] = ()


#: A run in one of these states continues only if it is resumed.
ENDED_STATES = ("finished", "failed", "cancelled")


class Submission(NamedTuple):
    """The last job that was submitted for a run. Only the job whose script has this ``token`` is in charge."""

    token: str
    job: int = 0


class TrainingRun(NamedTuple):
    """The content of run.json. ``state``: queued, running, or one of ENDED; ``detail`` is the reason.

    ``token``: that of the submission that started it. ``counted``: the first attempt whose failures count, since those
    before a resume do not. ``nan_since``: the step since which the loss is not a number; ``busy``: what the program
    does instead of steps; ``longest_gap`` and ``longest_start``: the longest times between two signs of life, and until
    the first step, in seconds; ``watched``: the evidence for a hang, steps or output, or empty for none;
    ``updated``: when the progress was written.
    """

    name: str
    state: str = "queued"
    token: str = ""
    job: int = 0
    counted: int = 1
    attempts: Tuple[Attempt, ...] = ()
    steps: Optional[int] = None
    step: Optional[int] = None
    loss: Optional[float] = None
    steps_per_second: Optional[float] = None
    checkpoint_at: Optional[float] = None
    detail: str = ""
    nan_since: Optional[int] = None
    busy: str = ""
    longest_gap: float = 0.0
    longest_start: float = 0.0
    watched: str = ""
    updated: Optional[float] = None


def format_run(run: TrainingRun) -> Dict[str, Any]:
    """Return the content of run.json. ``version``, that of the program which wrote it, is only for people."""
    run_fields = {**run._asdict(), "version": VERSION}
    run_fields["attempts"] = [
        {
            **attempt._asdict(),
            "nodes": list(attempt.nodes),
            "allocated": list(attempt.allocated),
            "away": list(attempt.away),
            "cause": attempt.cause and dict(attempt.cause._asdict()),
            "stragglers": [dict(straggler._asdict()) for straggler in attempt.stragglers],
        }
        for attempt in run.attempts
    ]
    return dict(run_fields)


def parse_run(run_fields: Any) -> TrainingRun:
    """Parse the content of run.json. Raises ValueError if it is invalid."""
    try:
        attempts: List[Attempt] = [
            from_known_fields(
                Attempt,
                {
                    **attempt,
                    "nodes": tuple(attempt["nodes"]),
                    "allocated": tuple(attempt.get("allocated", ())),
                    "away": tuple(attempt.get("away", ())),
                    "cause": from_known_fields(Cause, attempt["cause"]) if attempt["cause"] else None,
                    "stragglers": tuple(
                        from_known_fields(Straggler, straggler) for straggler in attempt.get("stragglers", ())
                    ),
                },
            )
            for attempt in run_fields["attempts"]
        ]
        return from_known_fields(TrainingRun, {**run_fields, "attempts": tuple(attempts)})
    except (AttributeError, KeyError, TypeError) as failure:
        raise ValueError(f"it is not the state of a run: {failure}") from failure

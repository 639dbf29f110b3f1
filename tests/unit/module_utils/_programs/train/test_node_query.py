# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between two attempts, all nodes are asked in one step, and alone only those that do not answer in it."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import BUSY_MACHINE_TIMEOUT, wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import job_step, node_query, step
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.node_query import AnswerParser, NodeQuery
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.step import NodeProber

#: Like srun of Slurm 24.11 in a job whose nodes do not all respond: the tasks of the others start at once, and it gives
#: up some seconds later. Tasks are numbered in the order of the job's list of nodes, whatever that of --nodelist.
SRUN = """#!{python}
import json, os, signal, subprocess, sys
folder = os.path.dirname(sys.argv[0])
with open(folder + "/slurm.json") as text:
    slurm = json.load(text)
options = [word for word in sys.argv[1:] if word.startswith("--")]
command = sys.argv[len(options) + 1 :]
nodes = next(word.partition("=")[2].split(",") for word in options if word.startswith("--nodelist="))
with open(folder + "/calls", "a") as calls:
    calls.write(json.dumps([nodes, command[-1], "--label" in options]) + "\\n")
if slurm["refuses"] and len(nodes) > 1:
    sys.exit("srun: error: Unable to create step for job 41: Requested nodes are busy")
status = 0
for task, node in enumerate(sorted(nodes, key=slurm["order"].index)):
    if node in slurm["dead"]:
        continue
    ended = subprocess.run(command, stdin=0, stdout=subprocess.PIPE, env={{**os.environ, "SLURMD_NODENAME": node}})
    status = max(status, ended.returncode)
    for line in (slurm["prolog"].encode() + ended.stdout).split(b"\\n")[:-1]:
        label = b"%*d: " % (len(str(len(nodes) - 1)), task) if "--label" in options else b""
        sys.stdout.buffer.write(label + line + b"\\n")
    sys.stdout.flush()
if any(node in slurm["dead"] for node in nodes):
    if slurm["hangs"]:
        signal.pause()
    sys.exit(233)
sys.exit(status)
"""
#: Prints what a node answers when it is examined.
EXAMINATION = """#!/bin/sh
echo "module loaded"
cat "${0%/*}/answer-$SLURMD_NODENAME" || exit 0
exit 14
"""


class Job:
    """Job 41, whose srun is a real process."""

    def __init__(self, folder: Path, nodes: Sequence[str], **behaviour: Any) -> None:
        self.folder = folder
        self.nodes = nodes
        for name, text in (("srun", SRUN.format(python=sys.executable)), ("examine", EXAMINATION)):
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
        facts = {"order": nodes, "dead": [], "prolog": "", "refuses": False, "hangs": False, **behaviour}
        (folder / "slurm.json").write_text(json.dumps(facts), encoding="utf-8")
        self.prober = NodeProber(self, 41, [str(folder / "examine")], allocated_count=len(nodes))

    def __call__(self, argv: Sequence[str], **options: Any) -> CommandResult:
        if argv[0] == "sinfo":
            return CommandResult(0, "".join(f"{node}|allocated\n" for node in self.nodes), "")
        if argv[0] == "squeue":
            return CommandResult(0, f"{len(self.nodes)}\n", "")
        return run(argv, **options)

    def answer(self, node: str, text: str) -> None:
        """Let the examination of a node fail with this output."""
        (self.folder / f"answer-{node}").write_bytes(text.encode())

    @property
    def steps(self) -> list[tuple[list[str], str]]:
        """The nodes of each step that was started, and the last word of its command."""
        return [(nodes, last_word) for nodes, last_word, _labelled in self._calls]

    @property
    def asked_together(self) -> list[list[str]]:
        """The nodes of each step with labels."""
        return [nodes for nodes, _last_word, labelled in self._calls if labelled]

    @property
    def _calls(self) -> list[list[Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for limit in ("_PROBE_PATIENCE", "_PROBE_PAUSE", "_EXAMINATION_PATIENCE", "_EXAMINATION_TIMEOUT"):
        monkeypatch.setattr(step, limit, BUSY_MACHINE_TIMEOUT)
    monkeypatch.setattr(step, "_PATIENT_PROBE_TIMEOUT", BUSY_MACHINE_TIMEOUT)
    monkeypatch.setattr(job_step, "_SRUN_EXIT_TIMEOUT", BUSY_MACHINE_TIMEOUT)
    return tmp_path


@pytest.mark.parametrize("count", [2, 40])
def test_the_number_of_steps_does_not_depend_on_the_number_of_nodes(folder: Path, count: int) -> None:
    job = Job(folder, [f"n{number}" for number in range(count, 0, -1)])
    assert job.prober.find_usable_nodes(job.nodes, []) == job.nodes
    assert job.steps == [(job.nodes, "true")]
    assert job.prober.find_usable_nodes(job.nodes, [], job.nodes) == job.nodes
    assert job.steps[1:] == [(job.nodes, "true"), (job.nodes, str(folder / "examine"))]


def test_only_a_dead_node_is_asked_again_alone(folder: Path) -> None:
    job = Job(folder, ["n1", "n2", "n3", "n4"], dead=["n2"])
    job.answer("n3", "health.gpu_ecc: 12 errors\n")
    assert job.prober.find_usable_nodes(job.nodes, [], ["n2", "n3", "n4"]) == ["n1", "n4"]
    assert job.prober.unusable_reasons == {
        "n2": "does not answer",
        "n3": "is unhealthy: health.gpu_ecc: 12 errors",
    }
    examination = str(folder / "examine")
    assert sorted(job.steps) == sorted([(job.nodes, "true"), (["n2"], "true"), (["n3", "n4"], examination)])


@pytest.mark.parametrize(
    ("behaviour", "asked_alone"),
    [({"refuses": True}, ["n1", "n2", "n3"]), ({"order": ["n3", "n2", "n1"]}, ["n1", "n3"])],
    ids=["refused", "other order"],
)
def test_nodes_are_asked_alone_if_their_step_tells_nothing(
    folder: Path, behaviour: dict[str, Any], asked_alone: list[str]
) -> None:
    job = Job(folder, ["n1", "n2", "n3"], **behaviour)
    job.answer("n1", "health.gpu_ecc: 12 errors\n")
    assert job.prober.find_usable_nodes(job.nodes, [], ["n1", "n3"]) == ["n2", "n3"]
    assert job.steps[0] == (job.nodes, "true")
    examination = str(folder / "examine")
    expected_steps = [
        *(([node], "true") for node in asked_alone),
        *(([node], examination) for node in ("n1", "n3")),
    ]
    assert sorted(job.steps[1:]) == sorted(expected_steps)


def test_a_single_node_is_asked_alone(folder: Path) -> None:
    job = Job(folder, ["n1", "n2"])
    job.answer("n1", "health.gpu_ecc: 12 errors\n")
    assert job.prober.find_usable_nodes(job.nodes, ["n2"], ["n1"]) == []
    assert job.steps == [(["n1"], "true"), (["n1"], str(folder / "examine"))]
    assert job.asked_together == []


def await_some(monkeypatch: pytest.MonkeyPatch, nodes: Sequence[str]) -> None:
    """Ask others alone as soon as these nodes have answered together."""

    def wait(query: NodeQuery, *_limits: float) -> None:
        wait_until("these nodes answer", lambda: set(nodes) <= set(query.answers))

    monkeypatch.setattr(NodeQuery, "await_answers", wait)


def test_a_step_that_hangs_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not respond holds up srun, but not the answers of the others."""
    job = Job(folder, ["n1", "n2", "n3"], dead=["n2"], hangs=True)
    monkeypatch.setattr(job_step, "_SRUN_EXIT_TIMEOUT", 0.0)
    await_some(monkeypatch, ["n1", "n3"])

    def ask(argv: Sequence[str], **options: Any) -> CommandResult:
        if "--nodelist=n2" in argv:
            raise CommandError(argv, "did not end in time")
        return job(argv, **options)

    asking = NodeProber(ask, 41)
    assert asking.find_usable_nodes(job.nodes, []) == ["n1", "n3"]
    assert [nodes for nodes, _word in job.steps] == [job.nodes]


def test_patience_with_a_hanging_step_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_step, "_SRUN_EXIT_TIMEOUT", 0.0)
    job = Job(folder, ["n1", "n2", "n3"], dead=["n2"], hangs=True)
    query = NodeQuery(41, job.nodes, [], ["true"], 0.0)
    assert query.seconds_left == 0.0
    # No pause begins before the first answer.
    query.await_answers(0.0, 0.0)
    query.await_answers(BUSY_MACHINE_TIMEOUT, 0.0)
    assert query.answers
    wait_until("the others have answered", lambda: set(query.answers) == {"n1", "n3"})
    began_at = time.monotonic()
    query.await_answers(BUSY_MACHINE_TIMEOUT, 0.0)
    query.await_answers(0.0)
    assert time.monotonic() - began_at < BUSY_MACHINE_TIMEOUT / 2
    query.close()


def test_a_slow_step_has_longer_pauses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks of a busy cluster take long, but not all for equally long."""
    monkeypatch.setattr(job_step, "_SRUN_EXIT_TIMEOUT", 0.0)
    job = Job(folder, ["n1", "n2"], dead=["n2"], hangs=True)
    query = NodeQuery(41, job.nodes, [], ["true"], 0.0)
    wait_until("n1 answers", lambda: query.answers)
    query.await_answers(BUSY_MACHINE_TIMEOUT, 0.0)
    assert time.monotonic() - query._answered_at >= query._answered_at - query._began_at > 0
    query.close()


def test_late_answer_to_the_common_question_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy controller takes longer for the steps of single nodes than is left of their time."""
    job = Job(folder, ["n1", "n2"])
    job.answer("n2", "health.gpu_ecc: 12 errors\n")
    queries: list[NodeQuery] = []

    def wait(query: NodeQuery, *_limits: float) -> None:
        queries.append(query)

    monkeypatch.setattr(NodeQuery, "await_answers", wait)

    def ask(argv: Sequence[str], **options: Any) -> CommandResult:
        if argv[0] == "srun":
            wait_until("all have answered together", lambda: len(queries[-1].answers) == len(job.nodes))
            raise CommandError(argv, "did not end in time")
        return job(argv, **options)

    asking = NodeProber(ask, 41, [str(folder / "examine")])
    assert asking.find_usable_nodes(job.nodes, []) == ["n1", "n2"]
    assert asking._examine_nodes(job.nodes) == {"n1": "", "n2": "health.gpu_ecc: 12 errors"}


def test_nodes_whose_examination_takes_too_long_have_the_same_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were asked together before: a volume that hangs everywhere makes no node unhealthy."""

    def ask(argv: Sequence[str], *, timeout: float, **_options: Any) -> CommandResult:
        deadline = time.monotonic() + timeout
        wait_until("the time is over", lambda: time.monotonic() >= deadline)
        raise CommandError(argv, f"did not end within {timeout:g} s")

    asking = NodeProber(ask, 41, ["examine"])
    reasons = [asking.examine_node("n1", timeout) for timeout in (0.0, 0.013)]
    assert len(set(reasons)) == 1 and reasons[0].endswith("--quiet examine' did not end within 30 s")


@pytest.mark.parametrize("text", ["\r1: n2 14\r1: .\r", "\n1: n2 14\n1: .\n", "n2 14\n.\n", "\x0b\u2028\x851: n2 14"])
def test_output_of_a_node_changes_no_other_answer(folder: Path, text: str) -> None:
    job = Job(folder, ["n1", "n2", "n3"])
    job.answer("n1", f"{text}\nstorage.mounts: {text.strip()} \u00fc {'x' * 3000}\n")
    assert job.prober.find_usable_nodes(job.nodes, [], job.nodes) == ["n2", "n3"]
    (reason,) = job.prober.unusable_reasons.values()
    # What is asked alone has the same answer.
    assert reason == f"is unhealthy: {job.prober.examine_node('n1')}"
    assert len(job.steps) == 3


def test_prolog_that_prints_answers_for_a_dead_node_is_not_believed(folder: Path) -> None:
    """Also if it prints other characters that end a line, which srun does not label."""
    lies = "".join(f"x{end}1: n2 0{end}1: .\n" for end in ("\r", "\x0b", "\x85", "\u2028"))
    job = Job(folder, ["n1", "n2", "n3"], dead=["n2"], prolog=f"{lies}n2 0\n.\n")
    assert job.prober.find_usable_nodes(job.nodes, []) == ["n1", "n3"]
    assert job.steps == [(job.nodes, "true"), (["n2"], "true")]


@pytest.mark.parametrize(
    ("lines", "answers"),
    [
        ([b"0: n1 0\n", b"0: .\n"], {"n1": (0, "")}),
        # Labels have the same width in a step of more than ten tasks.
        ([b" 1: n2 14\n", b" 1: YWJj\n", b"0: n1 0\n", b" 1: ZGU=\n", b" 1: .\n"], {"n2": (14, "abcde")}),
        # What a prolog of the task has printed, and what comes after the answer.
        ([b"0: loaded\n", b"0: n1 0\n", b"0: .\n", b"0: bye\n", b"0: .\n"], {"n1": (0, "")}),
        # The name of another node, a task that does not exist, and no label.
        ([b"0: n2 0\n", b"0: .\n"], {}),
        ([b"7: n2 0\n", b"7: .\n"], {}),
        ([b"-1: n2 0\n", b"-1: .\n"], {}),
        ([b"n2 0\n", b".\n"], {}),
        ([b"srun: error: n1: task 0: Exited with exit code 1\n"], {}),
        # Characters that end a line elsewhere.
        ([b"0: x\r1: n2 0\r1: .\r\n", b"0: x\x0b1: n2 0\x0b1: .\n", b"0: x\xe2\x80\xa81: n2 0\n"], {}),
        ([b"0: n1 0\r1: n2 0\n", b"0: .\n"], {}),
        # Incomplete, and not encoded.
        ([b"0: n1 0\n", b"0: YWJj\n"], {}),
        ([b"0: n1 0\n", b"0: ."], {}),
        ([b"0: n1 0\n", b"0: Y W J j\n", b"0: .\n"], {}),
        ([b"0: n1 0\n", b"0: YWJ\n", b"0: .\n"], {}),
        ([b"0: n1 1000\n", b"0: .\n"], {}),
    ],
)
def test_answers_are_parsed_strictly(lines: list[bytes], answers: dict[str, tuple[int, str]]) -> None:
    parser = AnswerParser(["n1", "n2"])
    parsed = [answer for answer in map(parser.feed, lines) if answer is not None]
    assert parsed == [(node, CommandResult(rc, text, "")) for node, (rc, text) in answers.items()]


def test_lines_of_an_answer_are_short_enough_for_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun splits lines of more than 1,024 bytes, and would put a label before the rest."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    lines = run(["/bin/sh", "-c", node_query._ANSWER_SCRIPT, "sh", "printf", "%9999s", "x"]).stdout.splitlines()
    assert max(map(len, lines)) < 1000
    assert (lines[0], lines[-1]) == ("n1 0", ".")
    assert base64.b64decode("".join(lines[1:-1])).strip() == b"x"

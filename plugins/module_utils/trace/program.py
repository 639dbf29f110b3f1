# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-trace`: report on the profile of a run, and start a program with a profile."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import exit_status, say, write
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable, whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import page, timeline, words
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.analyse import analyse
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.load import folder_of, load, sources
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Analysis, RankTrace
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import profile
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.paths import TRACE_NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.program import Settings

_RECORD = "record"
_USAGE = """gpumesh-trace [options] RUN [OTHER RUN]
       gpumesh-trace record [--] COMMAND [ARGUMENT...]"""


def main(values: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Returns the exit status: 0, or 2 if the request is refused."""
    return exit_status(TRACE_NAME, lambda: _main(values, list(arguments)))


def _main(values: Mapping[str, Any], arguments: List[str]) -> int:
    if arguments and arguments[0] == _RECORD:
        command = arguments[1:]
        return record(str(values["library"]), os.environ, command[1:] if command[:1] == ["--"] else command)
    return report(Settings(values), parser().parse_args(arguments))


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(TRACE_NAME, _USAGE, "Show where the time of a run goes, from its profile.")
    made.add_argument("runs", nargs="+", metavar="RUN", help="name of a run, or a directory with traces")
    made.add_argument("--run-dir", default="", help="directory that contains the runs")
    made.add_argument("--attempt", type=int, default=0, help="the attempt (default: the last one with a profile)")
    made.add_argument(
        "--cycle",
        type=int,
        default=0,
        metavar="N",
        help="which cycle of torch.profiler.schedule, from 1 (default: the last one that all ranks have)",
    )
    made.add_argument(
        "--output", default="", help="directory for the page and the timelines (default: beside the traces)"
    )
    return made


def _folder(settings: Settings, name: str, run_dir: str, attempt: int) -> Path:
    path = name if "/" in name or os.path.isdir(name) else f"{settings.base(run_dir)}/{name}"
    return folder_of(path, attempt)


def _attempt(folder: Path) -> int:
    """The attempt of a run to which the directory belongs; 0 for another directory."""
    return (whole_number(folder.name) or 0) if folder.parent.name == "profile" else 0


def titles(folders: Sequence[Path]) -> List[str]:
    """The names of the runs, or of the directories: if they are the same, with what tells them apart."""
    resolved = [folder.resolve() for folder in folders]
    tops = [folder.parents[1] if _attempt(folder) else folder for folder in resolved]
    made = [top.name for top in tops]
    if len(set(tops)) == 1 < len(set(resolved)):
        made = [f"{top.name} (attempt {_attempt(folder)})" for top, folder in zip(tops, resolved)]
    parts = 1
    while len(set(made)) < len(set(tops)):
        parts += 1
        made = [str(Path(*top.parts[-parts:])) for top in tops]
    return [printable(title) for title in made]


def report(settings: Settings, given: argparse.Namespace) -> int:
    """Read the traces of one run or two, and write the report. Raises GpumeshError."""
    if len(given.runs) > 2:
        raise InputError(f"{len(given.runs)} runs cannot be compared.", "Give one or two.")
    folders = [_folder(settings, name, given.run_dir, given.attempt) for name in given.runs]
    wanted = [sources(folder) for folder in folders]
    target = given.output or str(folders[0])
    _prepare(target)
    runs: List[Analysis] = []
    files: List[str] = []
    for number, title in enumerate(titles(folders)):
        loaded = load(wanted[number], given.cycle)
        which = f" (cycle {loaded.cycle} of {loaded.cycles})" if loaded.cycles > 1 else ""
        run, path = _one(title + which, loaded.traces, target, "" if number == 0 else "-2")
        runs.append(run)
        files.append(path)
        write(words.summary(run))
    moment = time.strftime("%Y-%m-%d %H:%M:%S %z")
    name = "report-2" if len(runs) > 1 else "report"
    html = f"{target}/{name}.html"
    _write(html, page.render(runs, moment, [os.path.basename(path) for path in files], f"{name}.json"))
    figures = [{**words.values(run), "folder": os.path.abspath(folder)} for run, folder in zip(runs, folders)]
    _write(f"{target}/{name}.json", json.dumps(figures, indent=1) + "\n")
    for path in (html, *files):
        say(path)
    return 0


def _one(title: str, traces: Mapping[int, RankTrace], target: str, suffix: str) -> Tuple[Analysis, str]:
    run = analyse(title, traces)
    path = f"{target}/timeline{suffix}.json.gz"
    timeline.write(path, traces, run)
    return run, path


def _prepare(target: str) -> None:
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as failure:
        raise _unwritable(target, failure) from failure
    if not os.access(target, os.W_OK):
        raise HostStateError(f"{target} cannot be written to.", "Give another directory with --output.")


def _write(path: str, text: str) -> None:
    try:
        write_atomic(path, text, 0o644)
    except OSError as failure:
        raise _unwritable(path, failure) from failure


def _unwritable(path: str, failure: OSError) -> HostStateError:
    return HostStateError(f"{path} cannot be written: {failure.strerror}.", "Give another directory with --output.")


def record(library: str, environment: Mapping[str, str], command: Sequence[str]) -> int:
    """Run the command of a rank in this process, with a profile if GPUMESH_PROFILE requests one.

    Raises GpumeshError.
    """
    if not command:
        raise InputError("There is no command to run.", "Give it after 'record', for example: python3 train.py")
    argv, variables = recorded(library, environment, command)
    try:
        os.execvpe(argv[0], argv, variables)
    except OSError as failure:
        raise InputError(
            f"{argv[0]} cannot be run: {failure.strerror}.", "Give a command that this node has."
        ) from failure


def recorded(library: str, environment: Mapping[str, str], command: Sequence[str]) -> Tuple[List[str], Dict[str, str]]:
    """The command and its environment. Python finds gpumesh_run in ``library``, with a profile and without."""
    variables = dict(environment)
    variables["PYTHONPATH"] = ":".join(part for part in (variables.get("PYTHONPATH", ""), library) if part)
    asked = variables.pop("GPUMESH_PROFILE", "")
    if not asked:
        return list(command), variables
    wanted = str(profile.parse(asked))
    if profile.needed(wanted) and not shutil.which(profile.NSYS):
        raise HostStateError(f"{os.uname().nodename} has no command {profile.NSYS}.", profile.INSTALL)
    job = variables.get("SLURM_JOB_ID", "")
    folder = os.path.abspath(variables.get("GPUMESH_PROFILE_DIR") or (f"profile-{job}" if job else "profile"))
    _prepare(folder)
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or ""
    variables.update(profile.variables(wanted, folder, expand(nodes) if nodes else ()))
    rank = variables.get("RANK") or variables.get("SLURM_PROCID") or "0"
    return profile.command(wanted, command, folder, int(rank)), variables

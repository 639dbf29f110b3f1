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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import exit_status, print_line, write_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import messages, page, timeline
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.analyse import analyse
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.load import (
    find_sources,
    find_trace_dir,
    load_traces,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import Analysis, RankTrace
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import profile
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.paths import TRACE_NAME
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import TrainSettings

_RECORD_COMMAND = "record"
_USAGE = """gpumesh-trace [options] RUN [OTHER RUN]
       gpumesh-trace record [--] COMMAND [ARGUMENT...]"""


def main(installed_settings: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Return the exit status: 0, or 2 if the request is refused."""
    return exit_status(TRACE_NAME, lambda: _dispatch(installed_settings, list(arguments)))


def _dispatch(installed_settings: Mapping[str, Any], arguments: List[str]) -> int:
    if arguments and arguments[0] == _RECORD_COMMAND:
        command = arguments[1:]
        return run_profiled(
            str(installed_settings["library"]), os.environ, command[1:] if command[:1] == ["--"] else command
        )
    return write_report(TrainSettings(installed_settings), build_parser().parse_args(arguments))


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    argument_parser = argparse.ArgumentParser(
        TRACE_NAME, _USAGE, "Show where the time of a run goes, from its profile."
    )
    argument_parser.add_argument("runs", nargs="+", metavar="RUN", help="name of a run, or a directory with traces")
    argument_parser.add_argument("--run-dir", default="", help="directory that contains the runs")
    argument_parser.add_argument(
        "--attempt", type=int, default=0, help="the attempt (default: the last one with a profile)"
    )
    argument_parser.add_argument(
        "--cycle",
        type=int,
        default=0,
        metavar="N",
        help="which cycle of torch.profiler.schedule, from 1 (default: the last one that all ranks have)",
    )
    argument_parser.add_argument(
        "--output", default="", help="directory for the page and the timelines (default: beside the traces)"
    )
    return argument_parser


def _find_trace_dir(settings: TrainSettings, run_name: str, run_dir: str, attempt: int) -> Path:
    path = run_name if "/" in run_name or os.path.isdir(run_name) else f"{settings.runs_dir(run_dir)}/{run_name}"
    return find_trace_dir(path, attempt)


def _attempt_number(trace_dir: Path) -> int:
    """The attempt of a run to which the directory belongs; 0 for another directory."""
    return (parse_whole_number(trace_dir.name) or 0) if trace_dir.parent.name == "profile" else 0


def run_titles(trace_dirs: Sequence[Path]) -> List[str]:
    """Return the names of the runs, or of the directories, extended until they are distinct."""
    resolved_dirs = [trace_dir.resolve() for trace_dir in trace_dirs]
    top_dirs = [trace_dir.parents[1] if _attempt_number(trace_dir) else trace_dir for trace_dir in resolved_dirs]
    run_names = [top_dir.name for top_dir in top_dirs]
    if len(set(top_dirs)) == 1 < len(set(resolved_dirs)):
        run_names = [
            f"{top_dir.name} (attempt {_attempt_number(trace_dir)})"
            for top_dir, trace_dir in zip(top_dirs, resolved_dirs)
        ]
    part_count = 1
    while len(set(run_names)) < len(set(top_dirs)):
        part_count += 1
        run_names = [str(Path(*top_dir.parts[-part_count:])) for top_dir in top_dirs]
    return [printable(title) for title in run_names]


def write_report(settings: TrainSettings, parsed_options: argparse.Namespace) -> int:
    """Read the traces of one run or two, and write the report. Raises GpumeshError."""
    if len(parsed_options.runs) > 2:
        raise InputError(f"{len(parsed_options.runs)} runs cannot be compared.", "Give one or two.")
    trace_dirs = [
        _find_trace_dir(settings, report_name, parsed_options.run_dir, parsed_options.attempt)
        for report_name in parsed_options.runs
    ]
    sources_by_run = [find_sources(trace_dir) for trace_dir in trace_dirs]
    output_dir = parsed_options.output or str(trace_dirs[0])
    _prepare_dir(output_dir)
    runs: List[Analysis] = []
    timeline_paths: List[str] = []
    for run_index, title in enumerate(run_titles(trace_dirs)):
        loaded = load_traces(sources_by_run[run_index], parsed_options.cycle)
        cycle_suffix = f" (cycle {loaded.cycle} of {loaded.cycle_count})" if loaded.cycle_count > 1 else ""
        run, path = _analyse_run(title + cycle_suffix, loaded.traces, output_dir, "" if run_index == 0 else "-2")
        runs.append(run)
        timeline_paths.append(path)
        write_text(messages.format_summary(run))
    created_at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    report_name = "report-2" if len(runs) > 1 else "report"
    page_path = f"{output_dir}/{report_name}.html"
    _write_file(
        page_path,
        page.render_page(runs, created_at, [os.path.basename(path) for path in timeline_paths], f"{report_name}.json"),
    )
    figures = [
        {**messages.build_figures(run), "folder": os.path.abspath(trace_dir)}
        for run, trace_dir in zip(runs, trace_dirs)
    ]
    _write_file(f"{output_dir}/{report_name}.json", json.dumps(figures, indent=1) + "\n")
    for path in (page_path, *timeline_paths):
        print_line(path)
    return 0


def _analyse_run(title: str, traces: Mapping[int, RankTrace], output_dir: str, suffix: str) -> Tuple[Analysis, str]:
    run = analyse(title, traces)
    path = f"{output_dir}/timeline{suffix}.json.gz"
    timeline.write_timeline(path, traces, run)
    return run, path


def _prepare_dir(output_dir: str) -> None:
    try:
        os.makedirs(output_dir, exist_ok=True)
    except OSError as failure:
        raise _unwritable_error(output_dir, failure) from failure
    if not os.access(output_dir, os.W_OK):
        raise HostStateError(f"{output_dir} cannot be written to.", "Give another directory with --output.")


def _write_file(path: str, text: str) -> None:
    try:
        write_atomic(path, text, 0o644)
    except OSError as failure:
        raise _unwritable_error(path, failure) from failure


def _unwritable_error(path: str, failure: OSError) -> HostStateError:
    return HostStateError(f"{path} cannot be written: {failure.strerror}.", "Give another directory with --output.")


def run_profiled(library_dir: str, environment: Mapping[str, str], command: Sequence[str]) -> int:
    """Run the command of a rank in this process, with a profile if GPUMESH_PROFILE requests one.

    Raises GpumeshError.
    """
    if not command:
        raise InputError("There is no command to run.", "Give it after 'record', for example: python3 train.py")
    argv, variables = profiled_command(library_dir, environment, command)
    try:
        os.execvpe(argv[0], argv, variables)
    except OSError as failure:
        raise InputError(
            f"{argv[0]} cannot be run: {failure.strerror}.", "Give a command that this node has."
        ) from failure


def profiled_command(
    library_dir: str, environment: Mapping[str, str], command: Sequence[str]
) -> Tuple[List[str], Dict[str, str]]:
    """Return the command and its environment, in which Python finds gpumesh_run, with a profile and without."""
    variables = dict(environment)
    variables["PYTHONPATH"] = ":".join(part for part in (variables.get("PYTHONPATH", ""), library_dir) if part)
    requested_profile = variables.pop("GPUMESH_PROFILE", "")
    if not requested_profile:
        return list(command), variables
    profile_text = str(profile.parse_profile(requested_profile))
    if profile.required_commands(profile_text) and not shutil.which(profile.NSYS_COMMAND):
        raise HostStateError(f"{os.uname().nodename} has no command {profile.NSYS_COMMAND}.", profile.NSYS_REMEDY)
    job_id = variables.get("SLURM_JOB_ID", "")
    profile_dir = os.path.abspath(
        variables.get("GPUMESH_PROFILE_DIR") or (f"profile-{job_id}" if job_id else "profile")
    )
    _prepare_dir(profile_dir)
    node_list = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or ""
    variables.update(profile.rank_variables(profile_text, profile_dir, expand_hostlist(node_list) if node_list else ()))
    rank = variables.get("RANK") or variables.get("SLURM_PROCID") or "0"
    return profile.rank_command(profile_text, command, profile_dir, int(rank)), variables

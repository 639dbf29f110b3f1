# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the pictures of the README and the guides from real runs, and puts the figures of the same runs into the text.

    docs/pictures                  all of them, then removes its hosts
    docs/pictures --keep train     that one, on hosts that stay for the next time

It starts three hosts as `make lab` does (docs/pictures.yml), and types the commands of the guides there:

report    the check of a cluster with one slow link
train     the run of examples/full that loses a process, hangs, and loses a node (loss curve)
profile   a run with a slow rank

A page is photographed in a light and in a dark color scheme; the loss curve has both. Needs Debian and root, about 4 GB of
disk space and half an hour on two cores. Look at the pictures and at the changes of the text before you commit them.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from browser import show_page, start_chromium
from lab_hosts import ROOT, run_lab_playbook
from lab_links import limit_link
from train_programs import FULL_PROGRAM
from train_runs import TrainLab

from ansible_collections.gpumesh.cluster.tests.publication.guides import console_lines

DESCRIPTION = ROOT / "docs" / "pictures.yml"
IMAGES, GUIDES = ROOT / "docs" / "images", ROOT / "docs" / "guides"
LAB_NAME, NETWORK = "pictures", "10.79.94."
MACHINES = (MANAGER, *_OTHERS) = ("gpu1", "gpu2", "gpu3")
USER, USER_ID, USER_HOME = "alice", 2001, "/mnt/shared/alice"
#: CSS pixels: about what GitHub and the site show without scaling. The second number is pixels of the picture for each.
PAGE_WIDTH, PAGE_SCALE = 1000, 1.5
SCHEMES = {"light": "", "dark": "-dark"}
#: The slow link, like a port that has negotiated 100 Mbit/s, and what is required of links. Others carry more, however busy
#: this machine is.
SLOW_RATE, REQUIRED_GBPS = "95mbit", 0.2
#: A step of the run at which each fault hits it, some steps after a checkpoint.
FAULT_STEPS = (70, 145, 225)


class Stage(NamedTuple):
    """The lab with the runs of the user, and the browser."""

    lab: TrainLab
    browser: Any

    def type_line(self, guide: str, start: str, directory: str) -> str:
        """Run the command of a guide that begins so, as the user on the manager. Returns its stdout."""
        line = find_command(GUIDES / f"{guide}.md", start)
        return self.lab.run(MANAGER, "su", "-", USER, "-c", f"cd {directory} && {line}", timeout=1800)

    def show_output(self, guide: str, start: str, output: str) -> None:
        """Replace what the guide shows as the output of this command."""
        path = GUIDES / f"{guide}.md"
        path.write_text(replace_output(path.read_text(encoding="utf-8"), start, output), encoding="utf-8")

    def photograph(self, name: str, page: Path, last_section: str) -> None:
        """Photograph a page from its top to the end of a section."""
        for scheme, suffix in SCHEMES.items():
            show_page(self.browser, page, PAGE_WIDTH, scheme)
            bottom = self.browser.execute_script(
                f"return document.getElementById({json.dumps(last_section)}).getBoundingClientRect().bottom + scrollY"
            )
            self.save_screen(f"{name}{suffix}", PAGE_WIDTH, round(bottom) + 16)

    def save_screen(self, name: str, width: int, height: int) -> None:
        """Write the upper part of the page that is shown to a picture."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": PAGE_SCALE}
        options = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        data = self.browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        path = IMAGES / f"{name}.png"
        path.write_bytes(base64.b64decode(data))
        # The few colors of a page fit into a palette, which makes the file a third as large.
        subprocess.run(["pngquant", "--force", "--ext=.png", "--strip", "--speed=1", str(path)], check=True)


# --- Text of the guides


def find_command(document: Path, start: str) -> str:
    """Return the only command of a document that begins so."""
    commands = [line for line in console_lines(document) if line.startswith(start)]
    if len(commands) != 1:
        raise SystemExit(f"{document.name} has {len(commands)} commands that begin with '{start}', and not one.")
    return commands[0]


def replace_output(text: str, start: str, output: str) -> str:
    """Replace the output of the only command that begins so in a document: the lines up to the next prompt or the end.

    A ``start`` with the end of its line is the whole command.
    """
    rest = "" if start.endswith("\n") else r"(?:[^\n]*\\\n)*[^\n]*\n"
    command = rf"^\$ {re.escape(start)}{rest}"
    replaced, count = re.subn(
        rf"(?m)({command})(?:(?!\$ |```)[^\n]*\n)*", lambda match: match[1] + output.rstrip("\n") + "\n", text
    )
    if count != 1:
        raise SystemExit(f"there are {count} commands that begin with '{start}', and not one.")
    return replaced


def shorten_progress(output: str) -> str:
    """Keep of what gpumesh-train prints the beginning, and the last line with a step of each attempt, and the end."""
    *lines, end = output.splitlines()
    beginning = list(dict.fromkeys(itertools.takewhile(lambda line: "step" not in line, lines)))
    last_line_by_attempt: dict[str, str] = {}
    for line in lines:
        attempt = re.search(r" · attempt (\d+)", line)
        if " · step " in line and " has ended" not in line:
            last_line_by_attempt[attempt[1] if attempt else "1"] = line
    return "\n".join([*beginning, *last_line_by_attempt.values(), end])


# --- The runs


@contextmanager
def run_lab(*, keep: bool) -> Iterator[TrainLab]:
    """Start the hosts and build the cluster. ``keep``: the hosts stay."""
    run_lab_playbook("up", DESCRIPTION, {})
    lab = TrainLab(LAB_NAME, FULL_PROGRAM)
    lab.runs_directory = lab.shared_volume / USER / "runs"
    for machine in MACHINES:
        make_user = f"id {USER} || useradd --create-home --uid {USER_ID} --shell /bin/bash {USER}"
        lab.run(machine, "sh", "-ec", make_user)
    lab.run(MANAGER, "install", "--directory", "--owner", USER, USER_HOME)
    succeed(lab, "gpumesh.cluster.site", check_report_dir=str(lab.inventory.parent / "report"))
    try:
        yield lab
    finally:
        if not keep:
            run_lab_playbook("down", DESCRIPTION, {})


def succeed(lab: TrainLab, playbook: str, **variables: object) -> None:
    playbook_run = lab.run_playbook(playbook, "--extra-vars", json.dumps(variables))
    if playbook_run.exit_status != 0:
        raise SystemExit(f"{playbook}: {playbook_run.failure_report}")


def copy_example(lab: TrainLab, name: str) -> str:
    """Copy a directory of examples to a directory of the user that all nodes share. Returns its path."""
    path = f"{USER_HOME}/{name}"
    lab.run(MANAGER, "rm", "-rf", path)
    lab.copy(ROOT / "examples" / name, MANAGER, path)
    lab.run(MANAGER, "chown", "-R", USER, path)
    return path


def forget_runs(lab: TrainLab, *names: str) -> None:
    """Remove runs of before, whose names are taken otherwise."""
    lab.run(MANAGER, "rm", "-rf", *(f"{USER_HOME}/runs/{name}" for name in names))


def draw_report(stage: Stage) -> None:
    """Check the cluster while the link between two nodes is slow."""
    reports = stage.lab.inventory.parent / "report"
    ends = {machine: f"{NETWORK}1{machine[-1]}" for machine in ("gpu2", "gpu3")}
    variables = {
        "check_report_dir": str(reports),
        "check_level": "full",
        "check_min_bandwidth_gbps": REQUIRED_GBPS,
        "check_collective_max_bytes": 8 << 20,
    }
    with limit_link(stage.lab, ends, SLOW_RATE):
        stage.lab.run_playbook("gpumesh.cluster.check", "--extra-vars", json.dumps(variables))
    verdict = json.loads((reports / "lan" / "verdict.json").read_text(encoding="utf-8"))
    failed = sorted(check["host"] for check in verdict["checks"] if check["status"] in ("fail", "error"))
    if failed != sorted(ends):
        raise SystemExit(
            f"what should have failed is the link of gpu2 and gpu3, not: {failed}. Is this machine too busy?"
        )
    stage.photograph("report", reports / "lan" / "report.html", "topology")


def draw_train(stage: Stage) -> None:
    """Train while a process is killed, another one is stopped, and a node is switched off."""
    lab = stage.lab
    directory = copy_example(lab, "full")
    lab.run(MANAGER, "rm", "-rf", f"{USER_HOME}/corpus")
    forget_runs(lab, "gpt")
    stage.show_output("train", "python3 prepare.py", stage.type_line("train", "python3 prepare.py", directory))
    line = find_command(GUIDES / "train.md", "gpumesh-train --name gpt")
    run = lab.start_command(MANAGER, "su", "-", USER, "-c", f"cd {directory} && {line}")
    try:
        for attempt, (step, disturb) in enumerate(zip(FAULT_STEPS, (kill_rank, stop_rank, kill_node)), start=1):
            disturb(
                lab,
                lab.await_run(
                    "gpt", f"makes step {step}", lambda run_status, at=(attempt, step): reached(run_status, *at), 900
                ),
            )
        lab.await_end("gpt", 900)
        output = run.communicate(timeout=120)[0]
    finally:
        run.kill()
    for machine in MACHINES:
        lab.start(machine)
    lab.await_idle(MANAGER)
    stage.show_output("train", "gpumesh-train --name gpt", shorten_progress(output))
    for command in ("gpumesh-train logs gpt", "gpumesh-train show gpt"):
        stage.show_output("train", command, stage.type_line("train", command, directory))
    plot = [sys.executable, "plot.py", str(lab.runs_directory / "gpt"), str(IMAGES / "train.svg")]
    subprocess.run(plot, cwd=ROOT / "examples" / "full", check=True)


def reached(run_status: dict[str, Any], attempt: int, step: int) -> bool:
    """Whether an attempt has made a step, by what its ranks have reported."""
    attempts = run_status["attempts"]
    return len(attempts) == attempt and attempts[-1]["last"] is not None and attempts[-1]["last"] >= step


def kill_rank(lab: TrainLab, run_status: dict[str, Any]) -> None:
    lab.send_rank_signal(run_status, 1, "KILL")


def stop_rank(lab: TrainLab, run_status: dict[str, Any]) -> None:
    lab.send_rank_signal(run_status, 2, "STOP")


def kill_node(lab: TrainLab, run_status: dict[str, Any]) -> None:
    """Cut the power of the last node. The first one is the manager, with Slurm's controller."""
    lab.kill(run_status["attempts"][-1]["nodes"][-1])


def draw_profile(stage: Stage) -> None:
    """Profile a run in which one rank pauses in each step."""
    directory = copy_example(stage.lab, "tracking")
    forget_runs(stage.lab, "slow")
    stage.type_line("profile", "gpumesh-train --name slow", directory)
    lines = stage.lab.run(MANAGER, "su", "-", USER, "-c", f"cd {directory} && gpumesh-trace slow")
    stage.show_output("profile", "gpumesh-trace slow\n", lines)
    stage.photograph("profile", stage.lab.runs_directory / "slow" / "profile" / "001" / "report.html", "timeline")


PICTURES = {"report": draw_report, "train": draw_train, "profile": draw_profile}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help=f"{', '.join(PICTURES)} (default: all)")
    parser.add_argument("--keep", action="store_true", help="keep the hosts for the next time")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.pictures) - set(PICTURES))
    if unknown:
        parser.error(f"no picture is called {', '.join(unknown)}: there are {', '.join(PICTURES)}")
    with run_lab(keep=options.keep) as lab, tempfile.TemporaryDirectory() as directory:
        start_browser = contextmanager(start_chromium)
        with start_browser(Path(directory), "--force-color-profile=srgb") as browser:
            for name, draw in PICTURES.items():
                if not options.pictures or name in options.pictures:
                    print(f"Making {name}", flush=True)
                    draw(Stage(lab, browser))


if __name__ == "__main__":
    main()

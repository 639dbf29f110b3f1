# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that `make test` consists of, by part, in the order in which they start."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

PARTS = ("lint", "unit", "publication", "security", "sanity", "integration", "molecule")
IMAGE = "molecule: image"

#: Scenarios that take longest, which start first, so that both processors are busy until the end.
_LONGEST = (
    "work",
    "slurm",
    "kernel",
    "guides",
    "tailscale",
    "chaos",
    "check",
    "slurm_bookworm",
    "default",
    "wireguard",
)

_COMMANDS = {
    "lint": {
        "lint: format": "ruff format --check .",
        "lint: ruff": "ruff check .",
        "lint: mypy": "tests/mypy",
        "lint: yaml": "yamllint --strict .",
        "lint: workflows": "check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/test.yml",
        "lint: ansible": "ansible-lint --offline --strict",
    },
    "unit": {"unit": "pytest -q -n auto tests/unit"},
    "publication": {
        "publication: tests": "pytest -q -n auto --dist loadscope tests/publication",
        "publication: site": "docs/build",
        "publication: changelog": "antsibull-changelog lint",
    },
    "security": {"security": "pytest -q tests/security"},
    "sanity": {"sanity": "tests/matrix sanity"},
    "integration": {"integration": "pytest -q tests/integration"},
}
#: With the packages of `check`, and so with the layers of all images.
_IMAGE = "ansible-playbook --inventory localhost, --extra-vars @extensions/molecule/check/lab.yml lab/image.yml"


@dataclass(frozen=True)
class Step:
    """A command with its name in the table.

    ``lab`` is the name of the lab whose containers work for it. ``places`` says how many of the commands that run at once
    it counts for, ``needs`` which step must have ended before it starts.
    """

    name: str
    command: tuple[str, ...]
    lab: str = ""
    places: int = 1
    needs: str = ""


def plan_steps(parts: Collection[str], scenarios: Iterable[str]) -> list[Step]:
    """Return the steps of ``parts`` in the order in which they start: what takes long comes early."""
    steps = [Step(IMAGE, tuple(_IMAGE.split()))] if "molecule" in parts else []
    for part in ("sanity", "lint", "unit"):
        steps += _steps_of(part) if part in parts else []
    if "molecule" in parts:
        steps += [_scenario_step(name) for name in sorted(scenarios, key=_start_order)]
    for part in ("integration", "publication", "security"):
        steps += _steps_of(part) if part in parts else []
    return steps


def find_scenarios(root: Path) -> list[str]:
    """Return the names of the Molecule scenarios of the collection at ``root``."""
    return sorted(path.parent.name for path in (root / "extensions/molecule").glob("*/molecule.yml"))


def next_step(waiting: Iterable[Step], running: Collection[Step], limit: int) -> Step | None:
    """Return the first step that can start while ``running`` run and at most ``limit`` places are to be taken.

    A step that needs more than ``limit`` places starts when nothing else runs.
    """
    waiting = list(waiting)
    taken = sum(step.places for step in running)
    unfinished = {step.name for step in [*waiting, *running]}
    for step in waiting:
        if step.needs in unfinished:
            continue
        return step if not running or taken + step.places <= limit else None
    return None


def _steps_of(part: str) -> list[Step]:
    return [
        Step(name, tuple(command.split()), places=2 if "-n auto" in command else 1)
        for name, command in _COMMANDS[part].items()
    ]


def _scenario_step(name: str) -> Step:
    return Step(f"molecule: {name}", ("molecule", "test", "-s", name), lab=f"molecule-{name}", needs=IMAGE)


def _start_order(scenario: str) -> tuple[int, str]:
    return (_LONGEST.index(scenario) if scenario in _LONGEST else len(_LONGEST), scenario)

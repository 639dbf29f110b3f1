# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that `make test` consists of, by part, in the order in which they start."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

PARTS = ("lint", "unit", "publication", "security", "sanity", "integration", "molecule")
IMAGE_STEP = "molecule: image"

#: Scenarios that take longest, which start first, so that both processors are busy until the end.
_LONGEST_SCENARIOS = (
    "work",
    "tracking",
    "kernel",
    "tailscale",
    "default",
    "slurm",
    "chaos",
    "check",
    "session",
    "awx",
    "registry",
    "guides",
    "wireguard",
)

#: The number of them that start before everything else that takes long.
_EARLY_COUNT = 2

#: Scenarios that run with the oldest ansible-core that we support, all others with that of requirements.txt: each
#: playbook runs on hosts with both. It is also the one that takes the least processor time.
_OLDEST_CORE = "2.18"
_OLDEST_CORE_SCENARIOS = frozenset(
    {
        "chaos",
        "check",
        "default",
        "kernel",
        "registry",
        "session",
        "slurm",
        "slurm_bookworm",
        "tailscale",
        "tracking",
        "wireguard",
    }
)

_COMMANDS_BY_PART = {
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
    "security": {"security": "tests/attack"},
    "sanity": {"sanity": "tests/matrix sanity"},
    "integration": {"integration": "pytest -q tests/integration"},
}
#: The command that builds the image with the packages of `work`, and so with the layers of all images.
_IMAGE_COMMAND = "ansible-playbook --inventory localhost, --extra-vars @extensions/molecule/work/lab.yml lab/image.yml"


@dataclass(frozen=True)
class CommandStep:
    """A command with its name in the table.

    ``lab`` is the name of the lab whose containers work for it, ``needs`` the step that must have ended before its
    start.
    """

    name: str
    command: tuple[str, ...]
    lab: str = ""
    needs: str = ""


def plan_steps(parts: Collection[str], scenarios: Iterable[str]) -> list[CommandStep]:
    """Return the steps of ``parts`` in the order in which they start.

    The longest come first, so that no processor waits for the last step.
    """
    scenario_steps = (
        [_scenario_step(name) for name in sorted(scenarios, key=_start_order)] if "molecule" in parts else []
    )
    image_steps = [CommandStep(IMAGE_STEP, tuple(_IMAGE_COMMAND.split()))] if scenario_steps else []
    return [
        *image_steps,
        *_steps_of(parts, "lint"),
        *scenario_steps[:_EARLY_COUNT],
        *_steps_of(parts, "integration", "unit", "sanity"),
        *scenario_steps[_EARLY_COUNT:],
        *_steps_of(parts, "publication", "security"),
    ]


def find_scenarios(root: Path) -> list[str]:
    """Return the names of the Molecule scenarios of the collection at ``root``."""
    return sorted(path.parent.name for path in (root / "extensions/molecule").glob("*/molecule.yml"))


def next_step(waiting: Iterable[CommandStep], running: Collection[CommandStep], limit: int) -> CommandStep | None:
    """Return the first step that can start while ``running`` run, of which there are to be at most ``limit``."""
    waiting = list(waiting)
    unfinished_names = {step.name for step in [*waiting, *running]}
    ready_steps = [step for step in waiting if step.needs not in unfinished_names]
    return ready_steps[0] if ready_steps and len(running) < limit else None


def _steps_of(parts: Collection[str], *selected_parts: str) -> list[CommandStep]:
    return [
        CommandStep(name, tuple(command.split()))
        for part in selected_parts
        if part in parts
        for name, command in _COMMANDS_BY_PART[part].items()
    ]


def _scenario_step(name: str) -> CommandStep:
    command_prefix = (
        ("tests/matrix", "molecule", _OLDEST_CORE, "--") if name in _OLDEST_CORE_SCENARIOS else ("molecule",)
    )
    return CommandStep(
        f"molecule: {name}", (*command_prefix, "test", "-s", name), lab=f"molecule-{name}", needs=IMAGE_STEP
    )


def _start_order(scenario: str) -> tuple[int, str]:
    return (_LONGEST_SCENARIOS.index(scenario) if scenario in _LONGEST_SCENARIOS else len(_LONGEST_SCENARIOS), scenario)

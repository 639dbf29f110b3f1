# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What AWX 24.6.1 does with surveys, launches, workflows and projects, in its own words, as pure functions.

Each rule was seen at a real one or read in its source. What cannot be shown with them is whether a real one has a rule
that is not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: AWX's types of questions, and that of their defaults.
QUESTIONS: dict[str, Any] = {
    "text": str,
    "textarea": str,
    "password": str,
    "multiplechoice": str,
    "multiselect": str,
    "integer": int,
    "float": (float, int),
}
#: How long a name may be.
NAME = 512
#: A line by which AWX takes a file of a project for a playbook.
_PLAYBOOK = re.compile(r"^\s*?-?\s*?(?:hosts|include|import_playbook):\s*?.*?$")
_ENDED_BADLY = ("failed", "canceled", "error")


class RefusedError(Exception):
    """What a controller answers with status 400."""

    def __init__(self, words: str | Sequence[str], field: str = "error") -> None:
        super().__init__(words)
        self.field = field
        self.words = [words] if isinstance(words, str) else list(words)


class Launched(NamedTuple):
    """What a launch is answered with 201: the extra variables of the job, and what was left out."""

    extra_vars: dict[str, Any]
    ignored_fields: dict[str, Any]


def check_injectors(injectors: Mapping[str, Mapping[str, str]]) -> None:
    """The rules for what a type of credentials adds to a job."""
    for name in injectors.get("env", {}):
        if name.startswith("ANSIBLE_"):
            raise RefusedError(
                f"Environment variable {name} may affect Ansible configuration so its use is not allowed in credentials.",
                field="injectors",
            )


def check_name(name: str) -> None:
    """The rule for the names of objects."""
    if len(name) > NAME:
        raise RefusedError(f"Ensure this field has no more than {NAME} characters.", field="name")


def check_survey(survey: Mapping[str, Any]) -> None:
    """The rules for a survey."""
    for field in ("name", "description", "spec"):
        if field not in survey:
            raise RefusedError(f"Field '{field}' is missing from survey spec.")
    if not survey["spec"]:
        raise RefusedError("'spec' doesn't contain any items.")
    known: set[str] = set()
    for number, question in enumerate(survey["spec"]):
        _check_question(number, question)
        if question["variable"] in known:
            raise RefusedError(f"'variable' '{question['variable']}' duplicated in survey question {number}.")
        known.add(question["variable"])


def _check_question(number: int, question: Mapping[str, Any]) -> None:
    for field in ("type", "question_name", "variable", "required"):
        if field not in question:
            raise RefusedError(f"'{field}' missing from survey question {number}")
    if not isinstance(question["required"], bool):
        raise RefusedError(f"'required' in survey question {number} expected to be boolean.")
    kind, default = question["type"], question.get("default", "")
    if kind not in QUESTIONS:
        raise RefusedError(f"'{kind}' in survey question {number} is not one of the allowed question types.")
    if default != "" and (isinstance(default, bool) or not isinstance(default, QUESTIONS[kind])):
        raise RefusedError(f"Default value {default} in survey question {number} expected to be {kind}.")
    if kind in ("multiplechoice", "multiselect"):
        wrong = set(default.splitlines()) - set(question["choices"])
        if wrong:
            raise RefusedError(f"Default choice must be answered from the choices listed: {wrong}.")


def errors_of(question: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What is wrong with the answer to a question. A default does not count here."""
    name, kind = question["variable"], question["type"]
    if name not in given:
        return [f"'{name}' value missing"] if question["required"] else []
    value = given[name]
    if kind in ("text", "textarea", "password"):
        if not isinstance(value, str):
            return [f"Value {value} for '{name}' expected to be a string."]
        return _out_of_range(name, value, len(value), question, f"length is {len(value)} ")
    if kind in ("integer", "float"):
        if isinstance(value, bool) or not isinstance(value, QUESTIONS[kind]):
            wanted = "an integer" if kind == "integer" else "a numeric type"
            return [f"Value {value} for '{name}' expected to be {wanted}."]
        return _out_of_range(name, value, value, question, "")
    if kind == "multiselect" and not isinstance(value, list):
        return [f"'{name}' value is expected to be a list."]
    values = value if kind == "multiselect" else [value]
    wrong = [one for one in values if one not in question["choices"]]
    return [f"Value {one} for '{name}' expected to be one of {question['choices']}." for one in wrong]


def _out_of_range(name: str, value: Any, size: float, question: Mapping[str, Any], words: str) -> list[str]:
    errors = []
    if question.get("min") not in ("", None) and size < question["min"]:
        errors.append(f"'{name}' value {value} is too small ({words}must be at least {question['min']}).")
    if question.get("max") not in ("", None) and size > question["max"]:
        errors.append(f"'{name}' value {value} is too large (must be no more than {question['max']}).")
    return errors


def launch(spec: Sequence[Mapping[str, Any]], own: Mapping[str, Any], given: Mapping[str, Any]) -> Launched:
    """Start a template with a survey. ``own``: its extra variables; ``given``: those of the launch.

    A question that is not answered has its default, also an empty one; one that has none is not among the variables.
    """
    errors = [error for question in spec for error in errors_of(question, given)]
    if errors:
        raise RefusedError(errors, field="variables_needed_to_start")
    asked = {question["variable"] for question in spec}
    accepted = {name: value for name, value in given.items() if name in asked}
    return Launched(started(spec, own, accepted), {name: given[name] for name in given if name not in asked})


def started(spec: Sequence[Mapping[str, Any]], own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The extra variables of a job. Those of a workflow and the artifacts of its jobs are given without being asked for."""
    defaults = {}
    for question in spec:
        default = question.get("default")
        if question["type"] == "multiselect" and isinstance(default, str):
            default = default.splitlines()
        if default is not None and not errors_of(question, {question["variable"]: default}):
            defaults[question["variable"]] = default
    return {**own, **defaults, **given}


def prompts_rejected(spec: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> bool:
    """Whether a workflow names its node among ``node_prompts_rejected``: what its template needs is not in the node."""
    given = node.get("extra_data") or {}
    asked = {question["variable"] for question in spec}
    return bool([error for question in spec for error in errors_of(question, given)] or set(given) - asked)


def run_workflow(nodes: Sequence[Mapping[str, Any]], ends: Mapping[str, str]) -> tuple[str, list[str]]:
    """The status of a workflow, and the nodes that ran. ``ends``: the status of those that are not successful.

    A failure that leads on to another node counts as handled.
    """
    after = {node["identifier"]: node for node in nodes}
    targets = {
        one for node in nodes for way in ("success", "failure", "always") for one in node.get(f"{way}_nodes", [])
    }
    waiting = [name for name in after if name not in targets]
    ran: list[str] = []
    failed = False
    while waiting:
        name = waiting.pop(0)
        ran.append(name)
        bad = ends.get(name, "successful") in _ENDED_BADLY
        way = "failure" if bad else "success"
        waiting += [*after[name].get(f"{way}_nodes", []), *after[name].get("always_nodes", [])]
        handled = after[name].get("failure_nodes", []) or after[name].get("always_nodes", [])
        failed = failed or (bad and not handled)
    return "failed" if failed else "successful", ran


def playbooks(project: Path) -> list[str]:
    """The files of a project that AWX offers as playbooks."""
    found = []
    for path in sorted(project.rglob("*")):
        parts = path.relative_to(project).parts
        hidden = any(
            part in ("roles", "tasks", "group_vars", "host_vars") or part.startswith(".") for part in parts[:-1]
        )
        if path.suffix in (".yml", ".yaml") and not hidden and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
            if any(_PLAYBOOK.match(line) for line in lines):
                found.append(str(path.relative_to(project)))
    return found

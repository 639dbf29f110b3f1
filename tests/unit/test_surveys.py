# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each survey of playbooks/awx has questions for what its playbook's roles read, with the same types and defaults."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.values import cluster_name
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.tests.support.task_files import roles_of

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "gpumesh.cluster."
PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))

#: Roles whose options describe a cluster. Answers would override the inventory, where they belong.
LAYERS = {"check", "daemon", "reachability", *(layer.name for layer in registry.LAYERS)}
#: Options of the other roles that no survey has, and why.
NOT_ASKED = {
    "a variable of each host": {"cluster_site", "cluster_endpoint"},
    "AWX says who started the job": {"cluster_actor"},
    "a file on the machine that runs Ansible, which is gone with the job": {"discover_facts_file"},
    "a decision on the inventory and its hosts": {"cluster_unknown_variables", "cluster_unsupported_release"},
    "patterns of the site's names": {"discover_prefer", "discover_exclude", "discover_include"},
    "needed as long as the older version is used: in the inventory": {"cluster_older_version"},
    "internal to the playbooks": {
        "cluster_adopted_record",
        "cluster_join_only",
        "cluster_changes",
        "cluster_keep_record",
    },
}
#: Questions of some playbooks only: others use the record, or a readable form of it.
OF_SOME = {
    "cluster_subnet": {"create", "site"},
    "cluster_manager": {"create", "site"},
    "cluster_output": {"show"},
}
#: Layers that may lose something, and then read cluster_force.
LOSING = {"storage", "tracking"}
#: What layers are requested to do, as opposed to their settings.
TO_DO = {
    "mesh": {"mesh_rotate_keys"},
    "slurm": {"munge_rotate_key"},
    "site": {"check_level"},
    "tracking": {"tracking_server", "tracking_state"},
    "train": {
        "train_name",
        "train_state",
        "train_command",
        "train_code",
        "train_stage",
        "train_directory",
        "train_nodes",
        "train_min_nodes",
        "train_spare",
        "train_gpus_per_node",
        "train_time",
        "train_max_restarts",
        "train_wait",
    },
    "session": {
        "session_name",
        "session_state",
        "session_roles",
        "session_time",
        "session_network",
        "session_ports",
        "session_retry",
        "session_wait",
    },
    "check": {
        "check_level",
        "check_job_timeout",
        "check_collectives",
        "check_collective_timeout",
        "check_min_busbw_gbps",
    },
}
#: Values without which a playbook cannot run.
NEEDED = {
    "join": {"cluster_machines"},
    "remove": {"cluster_machine"},
    "train": {"train_name"},
    "session": {"session_name"},
}
#: Extra variables of a template that an answer overrides, in place of the role's default.
TEMPLATE_DEFAULTS = {"train_wait": False}
#: What plays do not run on. Each survey asks for it, and no role has it.
WITHOUT = "cluster_without"
TYPES = {
    "str": {"text"},
    "path": {"text"},
    "bool": {"multiplechoice"},
    "int": {"integer"},
    "float": {"float"},
    "list": {"multiselect"},
    "raw": {"text", "textarea"},
}


@lru_cache(maxsize=None)
def load(path: Path) -> Any:
    """The content of a file, which all callers share."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


WRITTEN = load(ROOT / "playbooks" / "awx" / "data" / "surveys.yml")
#: As they are if no cluster is suggested.
SURVEYS: dict[str, list[dict[str, Any]]] = {
    playbook: [WRITTEN["__gpumesh_awx_cluster"] if isinstance(one, str) else one for one in questions]
    for playbook, questions in WRITTEN["gpumesh_awx_surveys"].items()
}
SETTINGS = load(ROOT / "playbooks" / "awx" / "data" / "settings.yml")
QUESTIONS = [(playbook, question) for playbook, survey in SURVEYS.items() for question in survey]


def calls(tasks: list[dict[str, Any]], folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """The entry points of our roles that a list of tasks calls, including those through task files and blocks."""
    for task in tasks:
        for action in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
            if action in task:
                for role in roles_of(task):
                    yield role, task[action].get("tasks_from", "main")
        for action in ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks"):
            if action in task and folder is not None and (folder / str(task[action])).exists():
                yield from calls(load(folder / task[action]), folder)
        for part in ("block", "rescue", "always"):
            yield from calls(task.get(part, []), folder)


def plays_of(path: Path) -> Iterator[dict[str, Any]]:
    """The plays of a playbook, with imported playbooks replaced by theirs."""
    for play in load(path):
        imported = play.get("ansible.builtin.import_playbook")
        if imported:
            yield from plays_of(path.parent / imported)
        else:
            yield play


@lru_cache(maxsize=None)
def entry_points(playbook: str) -> frozenset[tuple[str, str]]:
    """All entry points that a playbook calls, directly, through a role, or through another playbook."""
    found: set[tuple[str, str]] = set()
    for play in plays_of(ROOT / "playbooks" / f"{playbook}.yml"):
        found |= {(role["role"].removeprefix(PREFIX), "main") for role in play.get("roles", [])}
        found |= set(calls([*play.get("pre_tasks", []), *play.get("tasks", []), *play.get("post_tasks", [])]))
    open_ones = list(found)
    while open_ones:
        role, entry = open_ones.pop()
        folder = ROOT / "roles" / role / "tasks"
        for call in calls(load(folder / f"{entry}.yml") or [], folder):
            if "{{" not in "".join(call) and call not in found:
                found.add(call)
                open_ones.append(call)
    return frozenset(found)


def options(playbook: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for role, entry in sorted(entry_points(playbook)):
        spec = load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"].get(entry, {})
        for name, option in (spec.get("options") or {}).items():
            found.setdefault(name, option | {"role": role})
    if any((layer, "main") in entry_points(playbook) for layer in LOSING):
        found.setdefault("cluster_force", {"type": "bool", "default": False, "role": "cluster"})
    return found


def test_each_playbook_has_a_survey() -> None:
    assert sorted(SURVEYS) == PLAYBOOKS
    assert all(WITHOUT in [question["variable"] for question in survey] for survey in SURVEYS.values())


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_all_that_differs_from_run_to_run_is_asked(playbook: str) -> None:
    known = options(playbook)
    asked = {question["variable"] for question in SURVEYS[playbook]} - {WITHOUT}
    left_out = set().union(*NOT_ASKED.values()) | {name for name, some in OF_SOME.items() if playbook not in some}
    wanted = {name for name, option in known.items() if option["role"] not in LAYERS} - left_out
    assert TO_DO.get(playbook, set()) <= set(known)
    wanted |= TO_DO.get(playbook, set())
    assert asked == wanted


@pytest.mark.parametrize(("playbook", "question"), QUESTIONS, ids=lambda value: str(value)[:60])
def test_a_question_is_like_its_option(playbook: str, question: dict[str, Any]) -> None:
    option = {WITHOUT: {"type": "str"}, **options(playbook)}[question["variable"]]
    kinds = {"multiplechoice"} if option["type"] == "str" and "choices" in option else TYPES[option["type"]]
    assert question["type"] in kinds
    assert len(question["question_description"]) <= 120
    if option["type"] == "bool":
        assert question["choices"] == ["true", "false"]
    else:
        assert question.get("choices") == option.get("choices")
    # The default of a question is what the role does without an answer.
    default = TEMPLATE_DEFAULTS.get(question["variable"], option.get("default", ""))
    told = question["question_description"]
    if not question["required"] and default not in ("", []):
        words = default[0] if isinstance(default, list) else str(default).lower()
        assert f"By default {words}" in told or f"{words}, the default," in told


@pytest.mark.parametrize(("playbook", "question"), QUESTIONS, ids=lambda value: str(value)[:60])
def test_an_answer_that_is_not_given_leaves_it_to_the_inventory(playbook: str, question: dict[str, Any]) -> None:
    """AWX passes every default, even an empty one, and rejects an empty text if there is a minimum length."""
    assert "default" not in question
    if question["type"] in ("text", "textarea"):
        assert question["min"] == 1
    assert question["required"] is (question["variable"] in NEEDED.get(playbook, set()))


def test_a_cluster_is_proposed_only_where_somebody_says_so() -> None:
    assert SETTINGS["gpumesh_awx_cluster_name"] == ""


def test_a_question_says_which_names_a_cluster_may_have() -> None:
    question = WRITTEN["__gpumesh_awx_cluster"]
    longest = "a" * question["max"]
    assert cluster_name(longest) == longest
    with pytest.raises(ValueError, match="at most 39 lower-case letters, digits"):
        cluster_name(longest + "a")
    assert "a lower-case letter, then at most 39 of a-z, 0-9, - and _" in question["question_description"].lower()


def test_collectives_are_those_of_the_module() -> None:
    text = (ROOT / "plugins" / "modules" / "collective_test.py").read_text(encoding="utf-8")
    documentation = yaml.safe_load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])
    question = next(one for one in SURVEYS["check"] if one["variable"] == "check_collectives")
    assert question["choices"] == documentation["options"]["collective"]["choices"]


def test_nothing_is_left_out_that_there_is_not() -> None:
    known = {name for playbook in PLAYBOOKS for name in options(playbook)}
    assert set().union(*NOT_ASKED.values(), OF_SOME) <= known


#: Options that messages tell people to set, and that no survey has, and why.
NOT_FOR_AWX = {
    "describes the hosts or the networks of the cluster: in the inventory": {
        "cluster_endpoint",
        "cluster_unknown_variables",
        "cluster_unsupported_release",
        "firewall_enabled",
        "firewall_host",
        "mesh_backend",
        "mesh_interface",
        "mesh_mtu",
        "mesh_subnet",
        "mesh_userspace",
        "mesh_userspace_nodes",
    },
    "describes the services of the cluster, for all later runs: in the inventory": {
        "session_enabled",
        "session_mounts_allowed",
        "slurm_accounting",
        "slurm_conf",
        "slurm_job_plugin",
        "slurm_rest",
        "storage_backend",
        "storage_server",
        "storage_volumes",
        "tracking_ca_file",
        "tracking_tls",
        "tracking_uid",
        "tracking_unconfined",
        "tracking_volume",
    },
    "limits and accounts of the site, for all later checks: in the inventory": {
        "check_job_user",
        "check_max_rdma_latency_us",
        "check_min_bandwidth_gbps",
        "check_min_rdma_gbps",
    },
    "a variable of each host": {"slurm_node"},
    "a directory that AWX exposes to all jobs: in the inventory": {"check_report_dir"},
    "needed as long as the older version is used: in the inventory": {"cluster_older_version"},
    "the playbooks set it": {"reachability_members", "slurm_former_manager"},
    "setup sets it: gpumesh_awx_job_user": {"session_user"},
    "a secret: in a credential": {"mesh_auth_key", "mesh_auth_key_file", "tracking_certificate_file"},
}
#: Options that are asked by the playbooks that the messages name.
OF_NAMED = {**OF_SOME, "tracking_server": {"tracking"}, "tracking_state": {"tracking"}}

_OPTIONS = {
    name
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")
    for spec in load(path)["argument_specs"].values()
    for name in spec.get("options") or {}
}
#: How messages name an option to set: NAME=VALUE, and Set NAME to.
_TOLD = re.compile(r"\b([a-z]+_[a-z_]+)=|(?:\b[Ss]et|Correct|With|-e) ([a-z]+_[a-z_]+)\b")


def literals(path: Path) -> Iterator[str]:
    """The texts of a file of Python, without documentation. Values in them are replaced by a letter."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) or (
            isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("DOCUMENTATION", "EXAMPLES")
        ):
            left_out.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.value


@lru_cache(maxsize=None)
def told() -> dict[str, set[str]]:
    """The options that messages tell people to set, and the files with these messages."""
    texts = [(path, text) for path in sorted((ROOT / "plugins").rglob("*.py")) for text in literals(path)]
    texts += [(path, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "roles").glob("*/tasks/**/*.yml"))]
    found: dict[str, set[str]] = {}
    for path, text in texts:
        for names in _TOLD.findall(text):
            for name in _OPTIONS.intersection(names):
                found.setdefault(name, set()).add(path.name)
    return found


def test_what_messages_tell_people_to_set_is_asked() -> None:
    """In AWX, nobody can add -e to a job: each template that reads the option has to ask for it."""
    asked = {name: {playbook for playbook, question in QUESTIONS if question["variable"] == name} for name in told()}
    reading = {name: {playbook for playbook in PLAYBOOKS if name in options(playbook)} for name in told()}
    left_out = set().union(*NOT_FOR_AWX.values())
    not_asked = {}
    for name, files in told().items():
        wanted = OF_NAMED.get(name, reading[name])
        if name not in left_out and (not wanted or wanted - asked[name]):
            not_asked[name] = (wanted - asked[name], files)
    assert not_asked == {}


def test_nothing_is_listed_that_no_message_tells() -> None:
    assert set().union(*NOT_FOR_AWX.values()) <= set(told())
    assert {"cluster_trusted_copy", "cluster_trusted_generation", "cluster_force"} <= set(told())


def test_force_is_asked_where_it_does_something() -> None:
    """To remove or reboot machines or stop their jobs, to delete a cluster, and where a volume or the server of tracking may
    be lost.
    """
    assert {name for name, survey in SURVEYS.items() for one in survey if one["variable"] == "cluster_force"} == {
        *("remove", "reboot", "delete"),
        *("storage", "tracking", "site", "join", "create"),
    }

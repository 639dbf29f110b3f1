# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guides state agrees with the source: examples, quoted messages, names and versions."""

from __future__ import annotations

import ast
import re
import shlex
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import program
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import parse_machine_names
from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT
from ansible_collections.gpumesh.cluster.tests.publication.guides import blocks, console_lines

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *GUIDES]
LINES = [(document, line) for document in DOCUMENTS for line in console_lines(document)]
#: Messages of other programs.
FOREIGN_MESSAGES = {
    "Can't get config",
    "Out Of Memory",
    "Something is wrong with the boot of the nodes",
    "TaskProlog failed",
    "oom_kill",
    "terminate called without an active exception",
}
STAMP = plan.ChangeStamp("2026-11-25T12:00:00Z", "tests")


def text_of(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def parsed(*parts: str) -> Any:
    return yaml.safe_load(text_of(*parts))


def sessions() -> list[Any]:
    found = [block for document in DOCUMENTS for block in blocks(document) if block.language == "yaml"]
    documents = [yaml.safe_load(block.text) for block in found]
    return [one for one in documents if isinstance(one, dict) and "session_roles" in one]


def test_sessions_in_the_guides_are_accepted() -> None:
    assert sessions()
    for session in sessions():
        assert spec.parse_spec(session).roles


# --- Messages


@lru_cache(maxsize=None)
def messages() -> tuple[str, ...]:
    """The strings of the plugins, with "…" for values, and those of roles and playbooks."""
    found: list[str] = []
    for path in (ROOT / "plugins").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    for folder in ("roles", "playbooks"):
        for path in (ROOT / folder).rglob("*.yml"):
            found += list(strings(yaml.load(path.read_text(encoding="utf-8"), Loader=Tagless)))
    return tuple(re.sub(r"\{\{.*?\}\}", "…", text, flags=re.DOTALL) for text in found)


class Tagless(yaml.SafeLoader):
    """Reads values with tags such as !unsafe as what they are."""


Tagless.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_scalar(node))


def strings(value: Any) -> Iterator[str]:
    """All texts, except the names of blocks, which Ansible does not print."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key != "name" or "block" not in value:
                yield from strings(one)


def is_said(quoted: str) -> bool:
    """Whether a message has the words of the quotation, in their order; an ellipsis stands for a value."""
    words = [re.escape(piece.strip()) for piece in quoted.split("...") if piece.strip()]
    pattern = re.compile(".*…?.*".join(words), re.DOTALL)
    return any(pattern.search(text) for text in messages())


def quotations() -> list[tuple[str, str]]:
    return [
        (document.name, quoted)
        for document in GUIDES
        for heading in re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
        for quoted in re.findall(r'"([^"]+)"', heading)
    ]


def test_headings_quote_what_is_printed() -> None:
    assert len(quotations()) > 8
    assert not [one for one in quotations() if one[1] not in FOREIGN_MESSAGES and not is_said(one[1])]


def test_an_invented_message_is_not_found() -> None:
    assert not is_said("The record is damaged")
    assert not is_said("Probe every pair of machines in the subnet")
    assert is_said("The manager ... does not answer")


# --- Commands in the inventories of the guides


def record_of(inventory: str) -> Any:
    """The record of the cluster that an inventory of the repository describes."""
    hosts = list(parsed("inventories", inventory, "hosts.yml")["all"]["children"]["cluster"]["hosts"])
    variables = parsed("inventories", inventory, "group_vars", "cluster.yml")
    members = [
        {"machine": name, "address": f"192.168.1.{number}", "interface": "eth0"}
        for number, name in enumerate(dict.fromkeys([*hosts, "gpu1", "gpu2", "gpu3"]), 11)
    ]
    made = plan.create("0" * 32, "lan", "192.168.1.0/24", members[0]["machine"], {"backend": "none"}, members, STAMP)
    return plan.set_storage(made.record, variables.get("storage_volumes") or []).record


def variables_of(line: str) -> dict[str, str]:
    words = shlex.split(line)
    given = [words[place + 1] for place, word in enumerate(words) if word == "-e"]
    return dict(text.split("=", 1) for text in given if "=" in text and not text.startswith("{"))


def inventory_of(line: str) -> str:
    found = re.search(r"-i (?:inventories/)?(\S+)", line)
    return "lan" if found is None or found[1] in ("INVENTORY", "my-lan") else found[1]


REMOVALS = [line for _document, line in LINES if "gpumesh.cluster.remove " in line]
REMOVALS += [
    f"ansible-playbook -i inventories/lan {command}"
    for document in DOCUMENTS
    for command in re.findall(r"^\|.*`(gpumesh\.cluster\.remove [^`]*)`", document.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("line", list(dict.fromkeys(REMOVALS)))
def test_the_machine_of_a_removal_can_leave_the_cluster_of_the_guide(line: str) -> None:
    given = variables_of(line)
    record = record_of(inventory_of(line))
    force = given.get("cluster_force") == "true"
    drafted = plan.remove(
        record, parse_machine_names(given["cluster_machine"]), STAMP, given.get("cluster_new_manager"), force
    )
    assert given["cluster_machine"] not in [member["machine"] for member in drafted.record["members"]]


def test_keys_of_a_mesh_are_rotated_where_there_is_one() -> None:
    lines = [line for _document, line in LINES if "mesh_rotate_keys" in line]
    assert lines
    for line in lines:
        variables = parsed("inventories", inventory_of(line), "group_vars", "cluster.yml")
        assert variables["mesh_backend"] == "wireguard", line


def test_a_name_of_a_run_is_that_of_one_program() -> None:
    programs: dict[str, set[str]] = {}
    for _document, line in LINES:
        if not line.startswith("gpumesh-train --"):
            continue
        ours, _sbatch, command = program.split_arguments(shlex.split(line)[1:])
        name = program.build_parser().parse_args(ours).name
        programs.setdefault(name, set()).update(word for word in command if word.endswith(".py"))
    assert len(programs) > 3
    assert not {name: found for name, found in programs.items() if len(found) > 1}


# --- Inventories


def test_the_guides_show_the_inventories_of_the_repository() -> None:
    shown = [
        yaml.safe_load(block.text) for block in blocks(GUIDES[0].with_name("rented.md")) if block.language == "yaml"
    ]
    assert parsed("inventories", "rented", "hosts.yml") in shown
    assert parsed("inventories", "rented", "group_vars", "cluster.yml") in shown
    lan_blocks = [block for block in blocks(GUIDES[0].with_name("lan.md")) if block.file]
    lan = {block.file: yaml.safe_load(block.text) for block in lan_blocks if block.language == "yaml"}
    assert lan["my-lan/hosts.yml"] == parsed("inventories", "lan", "hosts.yml")
    there = text_of("inventories", "lan", "group_vars", "cluster.yml")
    ours = yaml.safe_load(re.sub(r"^# (?=[a-z_]+:|  [A-Za-z])", "", there, flags=re.MULTILINE))
    for name, value in lan["my-lan/group_vars/cluster.yml"].items():
        assert ours[name] == value, name


def test_the_initial_values_of_a_mesh_are_documented() -> None:
    options = parsed("roles", "mesh", "meta", "argument_specs.yml")["argument_specs"]["main"]["options"]
    comments = text_of("roles", "mesh", "defaults", "main.yml").partition("mesh_backend:")[0]
    for initial in (plan.DEFAULT_MESH, plan.DEFAULT_TAILNET):
        for key in ("subnet", "port", "interface"):
            value = dict(initial)[key]
            assert f"V({value})" in options[f"mesh_{key}"]["description"], key
            assert str(value) in comments, key
    assert f"initially V({plan.DEFAULT_MESH['backend']})" in options["mesh_backend"]["description"]


def test_the_files_on_a_member_are_those_of_the_source() -> None:
    chapter = text_of("docs", "guides", "day2.md").partition("## What is on a member")[2].partition("\n## ")[0]
    paths = re.findall(r"`(/[^`]+)`", chapter)
    assert len(paths) > 15
    texts = [
        path.read_text(encoding="utf-8")
        for folder in ("plugins", "roles")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yml")
    ]
    for path in paths:
        # The source puts some paths together: of these, the name of the file is there.
        name = re.sub(r"(CLUSTER|INTERFACE|SERVICE)", "{X}", path.rstrip("/").rpartition("/")[2])
        pattern = re.compile(r".{1,30}".join(re.escape(part) for part in name.split("{X}")))
        assert any(path.rstrip("/") in text or pattern.search(text) for text in texts), path


# --- Names and versions


def test_every_guide_is_linked() -> None:
    documentation = parsed("galaxy.yml")["documentation"].replace("/tree/", "/blob/")
    for start, prefix in (("README.md", f"{documentation}/"), ("docs/index.md", "")):
        targets = re.findall(r"\]\(([^)#]+)", text_of(*start.split("/")))
        assert {f"{prefix}guides/{guide.name}" for guide in GUIDES} <= set(targets), start


def test_a_guide_lists_everything_in_the_collection() -> None:
    contents = text_of("docs", "guides", "contents.md").partition("\n## ")[0]
    rows = {
        row.split("|")[1].strip(): set(re.findall(r"`([a-z_]+)`", row)) for row in contents.splitlines() if "|" in row
    }
    public = {
        path.stem
        for path in (ROOT / "plugins" / "modules").glob("*.py")
        if "\n  - gpumesh.cluster.internal\n" not in text_of("plugins", "modules", path.name)
    }
    assert rows["modules"] == public
    assert rows["playbooks"] == {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    assert rows["roles"] == {path.name for path in (ROOT / "roles").iterdir()}
    assert rows["filters"] == {path.stem for path in (ROOT / "plugins" / "filter").glob("*.py")}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_required_versions_agree() -> None:
    galaxy = parsed("galaxy.yml")
    bounds = {name: numbers(bound.removeprefix(">=")) for name, bound in galaxy["dependencies"].items()}
    # The filter of community.general that the roles use last appeared in it.
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "roles").rglob("*.yml")]
    used = {name for text in texts for name in re.findall(r"community\.general\.(\w+)", text)}
    general = Path(sysconfig.get_path("purelib"), "ansible_collections", "community", "general")
    for name in used:
        for path in general.glob(f"plugins/*/{name}.*"):
            added = re.search(r"^ *version_added: [\"']?([\d.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert added is None or numbers(added[1]) <= bounds["community.general"], name
    needs = dict(line.split(">=") for line in text_of("meta", "ee-requirements.txt").splitlines() if ">=" in line)
    assert f"(https://www.paramiko.org) {needs['paramiko']} or later" in text_of("docs", "guides", "troubleshooting.md")
    requires = parsed("meta", "runtime.yml")["requires_ansible"].removeprefix(">=").removesuffix(".0")
    tested = re.search(r"^supported=\((.*)\)$", text_of("tests", "matrix"), re.MULTILINE)
    assert tested and tested[1].split()[0] == requires
    pythons = re.findall(r"\[2\.\d+\]=(3\.\d+)", text_of("tests", "matrix"))
    words = f"ansible-core {requires} to {tested[1].split()[-1]} on Python {min(pythons)} to {max(pythons)}"
    for document in ("README.md", "docs/guides/lan.md"):
        assert words in re.sub(r"\s+", " ", text_of(*document.split("/"))), document


def test_the_version_is_the_same_everywhere() -> None:
    version = parsed("galaxy.yml")["version"]
    for document in ("execution-environment.yml", "docs/guides/awx.md"):
        named = re.findall(r"gpumesh-(?:cluster-|ee:)(\d+\.\d+\.\d+)", text_of(*document.split("/")))
        assert set(named) == {version}, document

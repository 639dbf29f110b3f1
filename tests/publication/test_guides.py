# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guides say can be typed: commands, files, links and names are taken from their text and tried."""

from __future__ import annotations

import re
import shlex
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import program as session
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import program as trace
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import manage, profile, program
from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed, check_syntax
from ansible_collections.gpumesh.cluster.tests.publication.guides import Block, blocks, console_lines

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/index.md", "examples/README.md")),
    *GUIDES,
    *sorted((ROOT / "roles").glob("*/README.md")),
]
GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
#: How links to files of the repository begin, in documents that are also shown without it.
REPOSITORY_LINK = re.compile(
    rf"{re.escape(GALAXY['repository'])}/(?:blob|tree)/main/|"
    + re.escape(GALAXY["repository"].replace("https://github.com/", "https://raw.githubusercontent.com/") + "/main/")
)
#: Programs on the members, or on the machine of whoever reads: their commands are not ours to try.
FOREIGN = {
    *("srun", "sbatch", "scontrol", "supervisord"),
    *(
        ".",
        "ansible",
        "apt-get",
        "cat",
        "cd",
        "chmod",
        "conda",
        "cp",
        "curl",
        "docker",
        "export",
        "git",
        "install",
        "jq",
        "ln",
        "mariadb",
        "mariadb-dump",
        "mkdir",
        "openssl",
        "pip",
        "python3",
        "runuser",
        "sacctmgr",
        "scp",
        "sha256sum",
        "sprio",
        "squeue",
        "ssh",
        "ssh-keygen",
        "sshare",
        "systemctl",
        "umask",
        "uv",
    ),
}
#: Variables that are no options of a role.
OTHER_VARIABLES = {"cluster_hosts", "show_output"}

#: Each command, once a document.
COMMANDS = [(document, line) for document in DOCUMENTS for line in console_lines(document)]
PLAYS = [(document, line) for document, line in COMMANDS if line.startswith("ansible-playbook ")]
YAML = [block for document in DOCUMENTS for block in blocks(document) if block.language == "yaml"]


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)[:70]


@lru_cache(maxsize=None)
def options() -> frozenset[str]:
    """Every option of every role, and the settings of the playbook for AWX."""
    names = set(OTHER_VARIABLES)
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for spec in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            names |= set(spec.get("options") or {})
    return frozenset(names | set(yaml.safe_load((ROOT / "playbooks/awx/data/settings.yml").read_text())))


@pytest.fixture(scope="session")
def desk(installed: Installed) -> Installed:
    """The folder of someone who follows the guides: the inventories, and the files that they tell to write."""
    shutil.copytree(ROOT / "inventories", installed.folder / "inventories")
    for block in YAML:
        if block.file:
            path = installed.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    (installed.folder / "mine.yml").write_text(next(one.text for one in YAML if "gpumesh_awx_" in one.text))
    return installed


def test_there_are_commands() -> None:
    assert len(PLAYS) > 20
    assert {path.stem for path in GUIDES} >= {"lan", "rented", "containers", "awx", "day2", "troubleshooting"}


class Play(NamedTuple):
    """A command that runs playbooks: its words by what they are."""

    options: tuple[str, ...]
    playbooks: tuple[str, ...]
    variables: tuple[str, ...]


def play(line: str) -> Play:
    _program, *words = ["inventories/lan" if word == "INVENTORY" else word for word in shlex.split(line)]
    given = {index + 1 for index, word in enumerate(words) if word == "-e"}
    rest = [word for index, word in enumerate(words) if word != "-e" and index not in given]
    playbooks = tuple(word for word in rest if word.startswith("gpumesh.cluster."))
    others = tuple(word for word in rest if word not in playbooks)
    return Play(others, playbooks, tuple(words[index] for index in sorted(given)))


@pytest.mark.parametrize(("document", "line"), PLAYS, ids=name_of)
def test_a_playbook_takes_the_variables_of_the_command(desk: Installed, document: Path, line: str) -> None:
    for variable in play(line).variables:
        name, equals, _value = variable.partition("=")
        assert not equals or name in options(), f"no option of a role: {variable}"
        assert not variable.startswith("@") or (desk.folder / variable[1:]).exists()


@pytest.mark.parametrize("words", sorted({play(line).options for _document, line in PLAYS}), ids=" ".join)
def test_ansible_reads_the_playbooks_of_the_commands(desk: Installed, words: tuple[str, ...]) -> None:
    """Of all commands with the same options at once. Variables do not bear on that."""
    plays = [play(line) for _document, line in PLAYS]
    playbooks = sorted({name for one in plays if one.options == words for name in one.playbooks})
    assert all(one.playbooks for one in plays)
    assert len(check_syntax(desk, *words, *playbooks)) == len(playbooks)


def command_words(line: str) -> list[str]:
    """The words of the first command of the line: of what ssh is to run, if that is named."""
    words = shlex.split(line.partition("&&")[0] if not line.startswith("make") else line, comments=True)
    return words[2:] if words[0] == "ssh" and len(words) > 2 else words


@pytest.mark.parametrize(("document", "line"), [one for one in COMMANDS if one not in PLAYS], ids=name_of)
def test_another_command_names_what_there_is(document: Path, line: str) -> None:
    words = command_words(line)
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        name, _equals, value = words.pop(0).partition("=")
        assert name == "GPUMESH_PROFILE" and profile.parse_profile(value)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        named = [word for word in shlex.split(line.partition("&&")[0], comments=True)[1:] if "=" not in word]
        assert set(named) <= targets
    elif words[0] == "ansible-galaxy":
        assert words[1:3] in (["collection", "install"], ["collection", "build"])
    elif words[0] == "ansible-builder":
        assert (ROOT / "execution-environment.yml").exists()
    elif words[0] == "gpumesh-train":
        named = words[1] in manage.COMMAND_NAMES
        ours, _sbatch, command = program.split_arguments(words[1:])
        given = manage.build_parser().parse_args(ours) if named else program.build_parser().parse_args(ours)
        assert named or (given.name and command)
        assert named or not given.profile or profile.parse_profile(given.profile)
    elif words[0] == "gpumesh-session":
        ours, dashes, command = line.partition(" -- ")
        session.make_parser().parse_args(shlex.split(ours, comments=True)[1:])
        assert bool(dashes) == bool(command.strip())
    elif words[0] == "gpumesh-trace":
        assert 1 <= len(trace.build_parser().parse_args(words[1:]).runs) <= 2
    else:
        # It may be in a subshell.
        assert words[0].lstrip("(") in FOREIGN, f"nobody tries {line}"
    for word in words:
        if word.startswith("examples/"):
            assert (ROOT / word).exists()


def has_plays(block: Block) -> bool:
    document: Any = yaml.safe_load(block.text)
    return isinstance(document, list) and "hosts" in document[0]


def test_ansible_reads_the_plays_of_documents(desk: Installed, tmp_path: Path) -> None:
    files = {tmp_path / f"{number}.yml": block for number, block in enumerate(YAML) if has_plays(block)}
    assert {block.document.parent.name for block in files.values()} == {
        path.name for path in (ROOT / "roles").iterdir()
    }
    for path, block in files.items():
        path.write_text(block.text)
    assert check_syntax(desk, "-i", "inventories/lan", *map(str, files)) == [str(path) for path in files]


@pytest.mark.parametrize(
    "block",
    [block for block in YAML if not has_plays(block)],
    ids=lambda block: f"{name_of(block.document)}: {block.text[:30]!r}",
)
def test_a_file_is_what_ansible_takes(desk: Installed, tmp_path: Path, block: Block) -> None:
    document: Any = yaml.safe_load(block.text)
    if "all" in document:
        path = tmp_path / "block.yml"
        path.write_text(block.text)
        done = desk.run("ansible-inventory", "-i", str(path), "--graph", "cluster")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("|--") >= 3
    elif "collections" in document:
        assert document["collections"] == [{"name": f"{GALAXY['repository']}.git", "type": "git", "version": "main"}]
    elif block.document.name != "CONTRIBUTING.md":
        unknown = set(document) - options() - {"ansible_user"}
        assert not unknown, f"no option of a role: {sorted(unknown)}"


def linked_targets(text: str) -> list[str]:
    """Where links and images lead."""
    return re.findall(r"(?<=\]\()[^)\s]+(?=\))|(?<=\bsrc=\")[^\"]+|(?<=\bsrcset=\")[^\"]+", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in linked_targets(text):
        inside = REPOSITORY_LINK.match(target)
        if target.startswith("#") or (target.startswith("https://") and not inside):
            continue
        assert not target.startswith("http:"), target
        path, _hash, anchor = (target[inside.end() :] if inside else target).partition("#")
        linked = ((ROOT if inside else document.parent) / path).resolve()
        assert linked.exists(), f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{document.name} links to {target}"


def test_pages_of_galaxy_have_whole_addresses() -> None:
    """Galaxy, Automation Hub and AWX show them without the repository, where a relative link leads nowhere."""
    for document in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "roles").glob("*/README.md")):
        text = document.read_text(encoding="utf-8")
        assert not [one for one in linked_targets(text) if not one.startswith(("https://", "#"))], document


def test_each_check_has_its_symptom_and_the_reverse() -> None:
    """The names of checks, from where they are made, and those of the guide."""
    made: set[str] = set()
    rooms = "clock|collective|health|members|mesh|reachability|slurm|ssh|storage|tracking"
    for path in [
        *(ROOT / "plugins/plugin_utils/_checks/report").glob("*.py"),
        *(ROOT / "plugins/module_utils/_checks/health").glob("*.py"),
    ]:
        made |= set(re.findall(rf'"((?:{rooms})\.[a-z_]+)"', path.read_text(encoding="utf-8")))
    made -= {"slurm.conf"}
    text = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    told = set(re.findall(rf"`((?:{rooms})\.[a-z_]+)`", text)) - {"slurm.conf"}
    # The names of these are put together.
    assembled = {"reachability.own_name", "reachability.unique_address", "slurm.job_unjudged"}
    assert told - assembled <= made
    assert made <= told


def test_verdicts_of_pairs_are_those_of_the_guide() -> None:
    text = (ROOT / "plugins/plugin_utils/_checks/reachability_verdicts.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(\w+)"', text[text.index("VERDICTS = (") : text.index(")", text.index("VERDICTS = ("))]))
    guide = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    chapter = guide[guide.index("## Machines do not reach each other") : guide.index("## Slurm")]
    told = set(re.findall(r"^\| `(\w+)` \|", chapter, re.MULTILINE))
    # These are no faults of a path, and have checks of their own.
    assert names - {"name_is_loopback", "clock_skew", "not_checked", "ok"} == told

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is published works without the checkout: every playbook by its full name, every plugin, every role."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

import yaml

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed, check_syntax, checkout

PLAYBOOKS = [
    ".".join(path.relative_to(ROOT / "playbooks").with_suffix("").parts)
    for path in [*sorted((ROOT / "playbooks").glob("*.yml")), ROOT / "playbooks" / "awx" / "setup.yml"]
]
LOCAL = ("-i", "here,", "-e", "cluster_hosts=all", "-e", "ansible_connection=local")


def test_every_playbook_is_found_by_its_full_name(installed: Installed) -> None:
    names = [f"gpumesh.cluster.{playbook}" for playbook in PLAYBOOKS]
    assert check_syntax(installed, *names) == [
        str(installed.collection / "playbooks" / f"{playbook.replace('.', '/')}.yml") for playbook in PLAYBOOKS
    ]


def test_discover_runs_from_there(installed: Installed) -> None:
    done = installed.run("ansible-playbook", *LOCAL, "gpumesh.cluster.discover", "-e", "discover_output=json")
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line.strip() for line in done.stdout.splitlines() if line.strip().startswith("{"))
    report = json.loads(line)
    assert report["unreachable"] == {} or report["unreachable"] == []
    assert "here" in line


def test_plugins_are_documented_there(installed: Installed) -> None:
    for kind in ("module", "filter", "inventory", "callback", "role"):
        done = installed.run("ansible-doc", "--type", kind, "--list", "--json", "gpumesh.cluster")
        assert done.returncode == 0, done.stderr
        folder = {"module": "plugins/modules", "role": "roles"}.get(kind, f"plugins/{kind}")
        listed = json.loads(done.stdout)
        assert len(listed) == len([path for path in (ROOT / folder).iterdir() if not path.name.startswith("_")])


def test_the_archive_has_what_runs_and_nothing_else(installed: Installed) -> None:
    with tarfile.open(installed.archive) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        *("meta", "playbooks", "plugins", "roles", "docs", "examples", "inventories", "changelogs"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.json", "FILES.json"),
        # By these, Galaxy lints what it imports.
        *(".ansible-lint", ".yamllint"),
    }
    assert "meta/execution-environment.yml" in names
    assert {name for name in names if name.startswith("changelogs/")} == {"changelogs/changelog.yaml"}
    assert {name.split("/")[1] for name in names if name.startswith("docs/")} == {"guides", "images", "index.md"}
    assert not [name for name in names if name.endswith((".pyc", ".log")) or "__pycache__" in name]
    for folder in ("plugins", "roles", "playbooks"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert str(path.relative_to(ROOT)) in names


def test_a_checkout_installs_the_same(installed: Installed, tmp_path: Path) -> None:
    """As the guides say, also over what is there."""
    source = checkout(tmp_path / "gpumesh")
    words = ["collection", "install", "--force", str(source), "--no-deps", "--offline", "-p", str(tmp_path / "there")]
    for _time in range(2):
        done = installed.run("ansible-galaxy", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    there = tmp_path / "there" / "ansible_collections" / "gpumesh" / "cluster"
    listed = [json.loads((one / "FILES.json").read_text())["files"] for one in (there, installed.collection)]
    names = [{one["name"]: one["chksum_sha256"] for one in files} for files in listed]
    assert names[0] == names[1]


def test_the_changelog_names_what_there_is() -> None:
    """All of it, in the release that brought it: `antsibull-changelog release --update-existing` adds what is missing."""
    releases = yaml.safe_load((ROOT / "changelogs" / "changelog.yaml").read_text())["releases"]
    named = set()
    for release in releases.values():
        named |= {f"modules/{one['name']}" for one in release.get("modules", [])}
        named |= {f"roles/{one['name']}" for one in release.get("objects", {}).get("role", [])}
        named |= {f"{kind}/{one['name']}" for kind, some in release.get("plugins", {}).items() for one in some}
    kinds = ("modules", "callback", "filter", "inventory", "lookup")
    there = {f"{kind}/{path.stem}" for kind in kinds for path in (ROOT / "plugins" / kind).glob("*.py")}
    assert named == there | {f"roles/{path.name}" for path in (ROOT / "roles").iterdir()}
    # It is written from these data: `antsibull-changelog generate`.
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("\\", "")
    described = {(one["name"], one["description"]) for some in releases.values() for one in some.get("modules", [])}
    lines = {f"* gpumesh.cluster.{name} - {text}".replace("\\", "") for name, text in described}
    assert lines <= set(changelog.splitlines())


def test_dependencies_agree(installed: Installed) -> None:
    """What the archive asks for is what a project in AWX installs."""
    manifest = json.loads((installed.collection / "MANIFEST.json").read_text())["collection_info"]
    requirements = yaml.safe_load((ROOT / "collections" / "requirements.yml").read_text())["collections"]
    wanted = {one["name"]: one["version"] for one in requirements if one.get("type", "galaxy") == "galaxy"}
    assert manifest["dependencies"] == wanted
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("plugins", "roles", "playbooks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".yml", ".j2") and "awx" not in path.parts
    )
    used = set(re.findall(r"\b((?:ansible|community)\.(?!builtin|module|utils\.v|legacy)[a-z]+)\.[a-z_]+", text))
    for path in (ROOT / "plugins").rglob("*.py"):
        used |= set(re.findall(r'"(community\.[a-z]+|ansible\.posix)\.[a-z_]+"', path.read_text(encoding="utf-8")))
    used = {name for name in used if name.split(".")[0] == "community" or name in ("ansible.posix", "ansible.utils")}
    assert used <= set(wanted), f"used, and not asked for: {sorted(used - set(wanted))}"
    assert set(wanted) <= used, f"asked for, and not used: {sorted(set(wanted) - used)}"


def test_an_execution_environment_gets_what_the_collection_needs(installed: Installed) -> None:
    """The context of the image is made here; to build it takes a registry, which the tests have not."""
    for path in (ROOT / "execution-environment.yml", installed.archive):
        shutil.copy(path, installed.folder)
    made = installed.run("ansible-builder", "create", "-c", "context")
    assert made.returncode == 0, made.stdout + made.stderr
    found = installed.run("ansible-builder", "introspect", str(installed.folder / "collections"))
    assert found.returncode == 0, found.stderr
    assert "openssh-clients [platform:rpm]" in found.stdout
    assert "paramiko" in found.stdout and "netaddr" in found.stdout
    build = installed.folder / "context" / "_build"
    (wanted,) = yaml.safe_load((build / "requirements.yml").read_text())["collections"]
    # The image installs it with this folder as the working folder.
    assert wanted == {"name": f"archive/{installed.archive.name}", "type": "file"}
    assert (build / wanted["name"]).read_bytes() == installed.archive.read_bytes()


def test_a_project_installs_the_collection_from_itself(installed: Installed, tmp_path: Path) -> None:
    """AWX installs collections/requirements.yml with the project as the working folder."""
    project = checkout(tmp_path / "project")
    wanted = yaml.safe_load((project / "collections" / "requirements.yml").read_text())["collections"]
    own = [one for one in wanted if one.get("type") == "dir"]
    # The others are on Galaxy, which the tests do not ask.
    (project / "collections" / "requirements.yml").write_text(yaml.safe_dump({"collections": own}))
    made = tmp_path / "requirements_collections"
    dependencies = installed.environment["ANSIBLE_COLLECTIONS_PATH"].split(":")[1]
    there = installed._replace(
        folder=project, environment={**installed.environment, "ANSIBLE_COLLECTIONS_PATH": f"{made}:{dependencies}"}
    )
    install = ["install", "--requirements-file", "collections/requirements.yml", "--collections-path", str(made)]
    run_in(there, "ansible-galaxy", "collection", *install, "--no-deps", "--offline")
    assert (made / "ansible_collections" / "gpumesh" / "cluster" / "roles" / "cluster" / "tasks" / "main.yml").exists()
    # As AWX calls it: a file of the project.
    run_in(there, "ansible-playbook", "--inventory", "inventories/lan", "--syntax-check", "playbooks/site.yml")


def run_in(installed: Installed, program: str, *arguments: str) -> None:
    done = installed.run(program, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make release` tags a commit that has all that a release needs, and no other: in a repository made for the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.tests import release

FILES = {
    ".gitignore": "/.cache/\n",
    "galaxy.yml": "version: 1.2.0\n",
    "plugins/module_utils/_core/version.py": 'VERSION = "1.2.0"\n',
    "execution-environment.yml": "# --tag gpumesh-ee:1.2.0\n- src: gpumesh-cluster-1.2.0.tar.gz\n",
    "docs/guides/awx.md": "`gpumesh-ee:1.2.0` has gpumesh-cluster-1.2.0.tar.gz.\n",
    "changelogs/changelog.yaml": "releases:\n  1.2.0:\n    changes:\n      release_summary: Meshes are faster.\n",
    "changelogs/fragments/.gitkeep": "",
    "CHANGELOG.md": "# Release notes\n\n## v1\\.2\\.0\n",
}


class Repository:
    """A repository whose only commit can be released."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        for name, value in (
            *(("user.name", "Tests"), ("user.email", "tests@example.org"), ("user.signingkey", "")),
            *(("commit.gpgsign", "false"), ("tag.gpgsign", "false")),
        ):
            self.git("config", name, value)
        for name, text in FILES.items():
            self.write(name, text)
        self.commit()
        self.pass_tests()

    def git(self, *arguments: str) -> str:
        return release.git(self.root, *arguments)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Change it")

    def pass_tests(self) -> None:
        """What tests/run does in the end."""
        self.write(release.PASSED_TREE, self.git("rev-parse", "HEAD^{tree}") + "\n")


@pytest.fixture(name="repository")
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    # The settings of whoever runs the tests, such as a key of theirs, do not count.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    return Repository(tmp_path)


def test_the_commit_is_tagged_with_the_summary(repository: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    assert release.main([], repository.root) == 0
    assert repository.git("rev-parse", "1.2.0^{commit}") == repository.git("rev-parse", "HEAD")
    assert repository.git("cat-file", "-t", "1.2.0") == "tag"
    text = repository.git("tag", "--list", "--format=%(contents)", "1.2.0")
    assert text == "gpumesh.cluster 1.2.0\n\nMeshes are faster."
    assert "publish gpumesh-cluster-1.2.0.tar.gz" in capfd.readouterr().out


def test_a_key_signs_the_tag(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("keys")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    public_key = (folder / "key.pub").read_text(encoding="ascii")
    (folder / "signers").write_text(f"tests@example.org {public_key}", encoding="ascii")
    for name, value in (
        ("gpg.format", "ssh"),
        ("user.signingkey", str(folder / "key")),
        ("gpg.ssh.allowedSignersFile", str(folder / "signers")),
    ):
        repository.git("config", name, value)
    assert release.main([], repository.root) == 0
    repository.git("verify-tag", "1.2.0")


def test_a_dry_run_tags_nothing(repository: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--dry-run"], repository.root) == 0
    assert "git tag --annotate 1.2.0" in capfd.readouterr().out
    assert repository.git("tag", "--list") == ""


def dirty(repository: Repository) -> None:
    repository.write("README.md", "A file that git does not know.\n")


def untested(repository: Repository) -> None:
    repository.write("README.md", "A change since the tests.\n")
    repository.commit()


def never_tested(repository: Repository) -> None:
    (repository.root / release.PASSED_TREE).unlink()


def tagged(repository: Repository) -> None:
    repository.git("tag", "1.2.0")


def write(name: str, text: str) -> Callable[[Repository], None]:
    """Commit the file, and pass the tests."""

    def change(repository: Repository) -> None:
        repository.write(name, text)
        repository.commit()
        repository.pass_tests()

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dirty, "changes that are not committed"),
        (untested, "Not all tests have passed on this commit"),
        (never_tested, "Not all tests have passed on this commit"),
        (tagged, "The tag 1.2.0 exists already"),
        (write("galaxy.yml", "version: 1.2.0-dev\n"), "'1.2.0-dev' in galaxy.yml is not the version of a release"),
        (write("galaxy.yml", "version: 1.3.0\n"), "awx.md has 1.2.0, and galaxy.yml 1.3.0"),
        (write("plugins/module_utils/_core/version.py", 'VERSION = "1.1.0"\n'), "version.py has 1.1.0"),
        (write("execution-environment.yml", "src: gpumesh-cluster-1.1.0.tar.gz\n"), "environment.yml has 1.1.0"),
        (write("docs/guides/awx.md", "Nothing.\n"), "awx.md has no version"),
        (write("changelogs/fragments/faster.yml", "bugfixes: []\n"), "The changelog lacks faster.yml"),
        (write("changelogs/changelog.yaml", "releases: {1.1.0: {}}\n"), "The changelog has no release 1.2.0"),
        (write("CHANGELOG.md", "## v1\\.1\\.0\n"), "The changelog has no release 1.2.0"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_tagged(
    repository: Repository, capfd: pytest.CaptureFixture[str], change: Callable[[Repository], None], words: str
) -> None:
    change(repository)
    tags = repository.git("tag", "--list")
    for arguments in (["--dry-run"], []):
        assert release.main(arguments, repository.root) == 1
        assert words in capfd.readouterr().err
    assert repository.git("tag", "--list") == tags


def test_this_repository_has_what_the_script_reads() -> None:
    version = str(release.read_yaml(release.ROOT / "galaxy.yml")["version"])
    assert list(release.find_version_obstacles(release.ROOT, version)) == []

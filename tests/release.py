# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tag the commit that is checked out as the release in galaxy.yml, if all that a release needs is there: `make release`.

    tests/release.py [--dry-run]    --dry-run only checks, and prints what it would do

The tag has the name that Galaxy has for the version. It is signed if git has a key to sign with (user.signingkey), and
annotated otherwise. Nothing is pushed or published: the commands for that are printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
#: Where the version is written, and the pattern of the line or name that has it.
VERSION_PATTERNS = {
    "plugins/module_utils/_core/version.py": r'^VERSION = "(.*)"$',
    "execution-environment.yml": r"\bgpumesh-(?:cluster-|ee:)(\d[\w.+-]*?)(?:\.tar\.gz)?$",
    "docs/guides/awx.md": r"\bgpumesh-(?:cluster-|ee:)(\d+\.\d+\.\d+)",
}
#: tests/run writes it after all tests have passed in a clean checkout.
PASSED_TREE = ".cache/passed"


def git(root: Path, *arguments: str, check: bool = True) -> str:
    """Run git in the repository. Returns its stdout."""
    return subprocess.run(["git", *arguments], cwd=root, check=check, capture_output=True, text=True).stdout.strip()


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def find_obstacles(root: Path, version: str) -> list[str]:
    """Return what is missing for a release of the version: each with what to do about it."""
    return [
        *find_repository_obstacles(root, version),
        *find_version_obstacles(root, version),
        *find_changelog_obstacles(root, version),
    ]


def find_repository_obstacles(root: Path, version: str) -> Iterator[str]:
    if git(root, "status", "--porcelain"):
        yield "There are changes that are not committed. Commit them, or start from a fresh clone."
    if git(root, "tag", "--list", version):
        yield f"The tag {version} exists already. Set the next version in galaxy.yml."
    passed_path = root / PASSED_TREE
    passed_tree = passed_path.read_text(encoding="ascii").strip() if passed_path.exists() else ""
    if passed_tree != git(root, "rev-parse", "HEAD^{tree}"):
        yield "Not all tests have passed on this commit. Run 'make test' in a clean checkout of it."


def find_version_obstacles(root: Path, version: str) -> Iterator[str]:
    # A pre-release, such as 1.1.0-dev, is what the next release is called until then.
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"'{version}' in galaxy.yml is not the version of a release, such as 1.2.0."
    for name, pattern in VERSION_PATTERNS.items():
        found_versions = set(re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE))
        if found_versions != {version}:
            found_text = " and ".join(sorted(found_versions)) or "no version"
            yield f"{name} has {found_text}, and galaxy.yml {version}. Write {version} there."


def find_changelog_obstacles(root: Path, version: str) -> Iterator[str]:
    fragments = sorted(path.name for path in (root / "changelogs" / "fragments").glob("[!.]*"))
    if fragments:
        yield f"The changelog lacks {', '.join(fragments)} of changelogs/fragments. Run 'antsibull-changelog release'."
    heading = f"## v{version}".replace(".", "\\.")
    has_page = heading in (root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    if version not in read_yaml(root / "changelogs" / "changelog.yaml")["releases"] or not has_page:
        yield f"The changelog has no release {version}. Run 'antsibull-changelog release'."


def tag_command(root: Path, version: str) -> list[str]:
    """Return the arguments of git that make the tag. Its text is that of the changelog."""
    changes = read_yaml(root / "changelogs" / "changelog.yaml")["releases"][version].get("changes", {})
    kind = "--sign" if git(root, "config", "user.signingkey", check=False) else "--annotate"
    text = f"gpumesh.cluster {version}\n\n{changes.get('release_summary', '')}".strip()
    return ["tag", kind, "--message", text, version]


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Check, and tag. Returns 1 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="check only, and print what would be done")
    dry_run = parser.parse_args(arguments).dry_run
    version = str(read_yaml(root / "galaxy.yml")["version"])
    obstacles = find_obstacles(root, version)
    if obstacles:
        print(f"Release {version} is not tagged:", *obstacles, sep="\n  ", file=sys.stderr)
        return 1
    command = tag_command(root, version)
    commit = git(root, "rev-parse", "--short", "HEAD")
    if dry_run:
        print(f"Would run: git {command[0]} {command[1]} {version} ({commit})")
        return 0
    # git may have to ask for the passphrase of the key.
    if subprocess.run(["git", *command], cwd=root, check=False).returncode:
        print(f"git could not make the tag {version}.", file=sys.stderr)
        return 1
    print(
        f"Tagged {commit} as {version}. To publish it:",
        "make build",
        f"git push origin {version}",
        f"ansible-galaxy collection publish gpumesh-cluster-{version}.tar.gz",
        sep="\n  ",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

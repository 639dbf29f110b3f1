# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which release a host has, from the os-release files of distributions, as they ship them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import releases

ROOT = Path(__file__).parents[4]
# The lines of each file that are not addresses of web sites.
OS_RELEASES = {
    "Debian 12": """PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=debian
""",
    "Debian 14 before its release": """PRETTY_NAME="Debian GNU/Linux forky/sid"
NAME="Debian GNU/Linux"
VERSION_CODENAME=forky
ID=debian
""",
    "Ubuntu 22.04, and DGX OS 6": """PRETTY_NAME="Ubuntu 22.04.4 LTS"
NAME="Ubuntu"
VERSION_ID="22.04"
VERSION="22.04.4 LTS (Jammy Jellyfish)"
VERSION_CODENAME=jammy
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=jammy
""",
    "Ubuntu 24.04, and DGX OS 7": """PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
LOGO=ubuntu-logo
""",
    "Pop!_OS 22.04": """NAME="Pop!_OS"
VERSION="22.04 LTS"
ID=pop
ID_LIKE="ubuntu debian"
PRETTY_NAME="Pop!_OS 22.04 LTS"
VERSION_ID="22.04"
VERSION_CODENAME=jammy
UBUNTU_CODENAME=jammy
LOGO=distributor-logo-pop-os
""",
    "Linux Mint 22": """NAME="Linux Mint"
VERSION="22 (Wilma)"
ID=linuxmint
ID_LIKE="ubuntu debian"
PRETTY_NAME="Linux Mint 22"
VERSION_ID="22"
VERSION_CODENAME=wilma
UBUNTU_CODENAME=noble
""",
    "LMDE 6": """PRETTY_NAME="LMDE 6 (faye)"
NAME="LMDE"
VERSION_ID="6"
VERSION="6 (faye)"
VERSION_CODENAME=faye
ID=linuxmint
ID_LIKE=debian
DEBIAN_CODENAME=bookworm
""",
    "Raspbian 12": """PRETTY_NAME="Raspbian GNU/Linux 12 (bookworm)"
NAME="Raspbian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=raspbian
ID_LIKE=debian
""",
    "Debian 11": """PRETTY_NAME="Debian GNU/Linux 11 (bullseye)"
NAME="Debian GNU/Linux"
VERSION_ID="11"
VERSION="11 (bullseye)"
VERSION_CODENAME=bullseye
ID=debian
""",
    "Ubuntu 25.10": """PRETTY_NAME="Ubuntu 25.10"
NAME="Ubuntu"
VERSION_ID="25.10"
VERSION="25.10 (Questing Quokka)"
VERSION_CODENAME=questing
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=questing
""",
    "Kali": """PRETTY_NAME="Kali GNU/Linux Rolling"
NAME="Kali GNU/Linux"
VERSION_ID="2025.2"
VERSION="2025.2"
VERSION_CODENAME=kali-rolling
ID=kali
ID_LIKE=debian
""",
    "Rocky Linux 9": """NAME="Rocky Linux"
VERSION="9.4 (Blue Onyx)"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.4"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"
""",
    "Alpine": """NAME="Alpine Linux"
ID=alpine
VERSION_ID=3.20.3
PRETTY_NAME="Alpine Linux v3.20"
""",
}


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("Debian 12", "Debian 12"),
        ("Debian 14 before its release", "Debian 14"),
        ("Ubuntu 22.04, and DGX OS 6", "Ubuntu 22.04"),
        ("Ubuntu 24.04, and DGX OS 7", "Ubuntu 24.04"),
        ("Pop!_OS 22.04", "Ubuntu 22.04"),
        ("Linux Mint 22", "Ubuntu 24.04"),
        ("LMDE 6", "Debian 12"),
        ("Raspbian 12", "Debian 12"),
        ("Debian 11", ""),
        ("Ubuntu 25.10", ""),
        ("Kali", ""),
        ("Rocky Linux 9", ""),
        ("Alpine", ""),
    ],
)
def test_a_host_has_the_release_on_which_its_own_is_based(name: str, release: str) -> None:
    host_release = releases.identify_release(releases.parse_os_release(OS_RELEASES[name]))
    assert (host_release.release.name if host_release.release else "") == release
    assert bool(releases.explain_unsupported(host_release)) == (not release)


def test_a_release_without_a_codename_is_found_by_its_version() -> None:
    assert releases.identify_release({"ID": "debian", "VERSION_ID": "13"}).release == releases.RELEASES[1]
    assert releases.identify_release({"ID": "ubuntu", "VERSION_ID": "13"}).release is None
    # The codename of a distribution that has neither Debian's packages nor Ubuntu's.
    assert releases.identify_release({"ID": "other", "VERSION_CODENAME": "noble"}).release is None


def test_a_refusal_names_the_host_the_releases_and_the_way_to_try_it() -> None:
    refusal = releases.explain_unsupported(releases.identify_release(releases.parse_os_release(OS_RELEASES["Kali"])))
    assert refusal.startswith(
        "Kali GNU/Linux Rolling is not supported. Use Debian 12, 13 or 14, Ubuntu 22.04, 24.04 or"
    )
    assert "cluster_unsupported_release=true" in refusal
    rocky = releases.identify_release(releases.parse_os_release(OS_RELEASES["Rocky Linux 9"]))
    assert "Rocky Linux 9.4 (Blue Onyx) is not supported, since packages are installed with apt" in (
        releases.explain_unsupported(rocky)
    )


@pytest.mark.parametrize("text", ["", "\0\0", "ID", '=x\nID="debian\nVERSION_CODENAME=trixie\n', "# ID=debian\n"])
def test_a_damaged_file_is_no_release(text: str) -> None:
    assert releases.identify_release(releases.parse_os_release(text)).release is None


def test_the_file_of_the_system_serves_where_etc_has_none(tmp_path: Path) -> None:
    assert releases.read_release(Tree(str(tmp_path))) == releases.HostRelease("an unknown system", None, False)
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "os-release").write_text(OS_RELEASES["Debian 12"])
    assert releases.read_release(Tree(str(tmp_path))).release == releases.RELEASES[0]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text(OS_RELEASES["Pop!_OS 22.04"])
    assert releases.read_release(Tree(str(tmp_path))).description == "Pop!_OS 22.04 LTS"


def test_a_repository_has_the_name_of_the_release_on_which_a_host_is_based(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name, codename in (
        ("LMDE 6", "bookworm"),
        ("Linux Mint 22", "noble"),
        ("Kali", "kali-rolling"),
        ("Alpine", ""),
    ):
        (tmp_path / "etc" / "os-release").write_text(OS_RELEASES[name])
        assert releases.read_codename(Tree(str(tmp_path))) == codename


def read_table(header: str) -> list[list[str]]:
    """The rows of the table in the guide with this column."""
    lines = iter((ROOT / "docs" / "guides" / "releases.md").read_text(encoding="utf-8").splitlines())
    next(line for line in lines if line.startswith("|") and f" {header} |" in line)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[1:]


def test_the_guide_has_the_releases_in_the_table_and_those_of_the_scenarios() -> None:
    rows = read_table("what has run on it")
    assert [(name, codename) for name, codename, *_others in rows] == [
        (release.name, release.codename) for release in releases.RELEASES
    ]
    scenarios: dict[str, list[str]] = {}
    for path in (ROOT / "extensions" / "molecule").glob("*/lab.yml"):
        lab_release = re.search(r"^lab_release: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        scenarios.setdefault(lab_release[1] if lab_release else "trixie", []).append(path.parent.name)
    for _name, codename, _slurm, proof in rows:
        if codename == "trixie":
            assert "all other scenarios" in proof
        elif codename in scenarios:
            assert all(f"`{scenario}`" in proof for scenario in scenarios[codename])
        assert (codename in scenarios) != proof.startswith("not run")


def test_the_guide_has_the_command_that_installs_a_driver_on_each_release() -> None:
    commands = {}
    for names, command in read_table("command"):
        distribution, versions = names.split(" ", 1)
        for version in re.findall(r"[0-9.]+", versions):
            commands[f"{distribution} {version}"] = command.strip("`")
    assert commands == {release.name: release.driver_command for release in releases.RELEASES}


def test_each_role_is_for_the_same_releases() -> None:
    expected: dict[str, list[str]] = {}
    for release in releases.RELEASES:
        expected.setdefault(release.name.split(" ")[0], []).append(release.codename)
    platforms = [{"name": name, "versions": codenames} for name, codenames in expected.items()]
    for path in (ROOT / "roles").glob("*/meta/main.yml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["galaxy_info"]["platforms"] == platforms, path


def test_nothing_else_asks_which_distribution_a_host_has() -> None:
    question = re.compile(
        r"ansible_(distribution|os_family|lsb)|facts[.\[].?(distribution|os_family|lsb)|os-release|lsb_release|_CODENAME"
    )
    asking = {
        str(path.relative_to(ROOT))
        for folder in ("plugins", "roles", "playbooks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yml", ".yaml", ".j2", ".sh", "") and path.is_file()
        if question.search(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert asking == {"plugins/module_utils/_host/releases.py"}

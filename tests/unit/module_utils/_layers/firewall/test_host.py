# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which firewalls of a host are compared, and what prevents a change of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import host_firewall
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import host
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule, parse_rule

FIXTURES = Path(__file__).parent / "fixtures"
POLICIES = (FIXTURES / "firewalld-2.3-policies.txt").read_text(encoding="utf-8")
ADDED = (FIXTURES / "ufw-0.36-added.txt").read_text(encoding="utf-8")
LAN = HostRule("eth0", "10.79.60.0/24")
MESH = HostRule("gpumesh0", "10.99.0.0/16", mesh=True)


class Firewalls:
    """A host with these firewalls, and what their programs print."""

    def __init__(self, root: Path, ufw: bool, firewalld: bool, **outputs: str) -> None:
        self.tree = Tree(str(root))
        self.outputs = outputs
        self.commands: list[str] = []
        self.answers = True
        (root / "etc/ufw").mkdir(parents=True)
        (root / "etc/ufw/ufw.conf").write_text(f"ENABLED={'yes' if ufw else 'no'}\n")
        (root / "proc/7").mkdir(parents=True)
        (root / "proc/7/comm").write_text("firewalld\n" if firewalld else "sshd\n")

    def run(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        command = " ".join(argv)
        self.commands.append(command)
        if command == "firewall-cmd --state":
            return CommandResult(0 if self.answers else 252, "", "")
        outputs = {**self.outputs, "--list-all-zones": PUBLIC.format(""), "--get-default-zone": "public\n"}
        output = next((text for words, text in outputs.items() if words.replace("_", "-") in command), "")
        return CommandResult(0, output, "")

    def compare(self, *rules: HostRule) -> host.HostFirewall:
        return host.compare_host(self.run, self.tree, "lab", rules)


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def network_manager_files(connection: bool) -> dict[str, str]:
    """The interface eth0, and what NetworkManager knows about it."""
    return {
        "sys/class/net/eth0/ifindex": "2",
        "run/NetworkManager/devices/2": "[device]\nmanaged=true\n" + "connection-uuid=0\n" * connection,
    }


PUBLIC = "public (default)\n  target: default\n  interfaces: \n  sources: \n  ports: {}\n  rich rules: \n"


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that the host has."""
    installed = ["ufw", "firewall-cmd"]
    for module in (host, host_firewall):
        monkeypatch.setattr(module, "find_program", lambda program: program if program in installed else None)
    return installed


def test_a_firewall_that_is_not_active_is_not_asked(tmp_path: Path) -> None:
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=False)
    assert firewalls.compare(LAN).commands() == firewalls.commands == []


def test_both_firewalls_get_rules_if_both_are_active(tmp_path: Path) -> None:
    comparison = Firewalls(tmp_path, ufw=True, firewalld=True).compare(LAN)
    assert comparison.firewalls == ["ufw", "firewalld"]
    assert [command.split()[0] for command in comparison.commands()] == ["ufw", *["firewall-cmd"] * 6]


def test_a_zone_that_accepts_the_lan_needs_no_rule(tmp_path: Path) -> None:
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, list_all_zones=PUBLIC.replace("default\n", "ACCEPT\n"))
    assert firewalls.compare(LAN).commands() == []


@pytest.mark.parametrize("other", ["--permanent", "firewall_cmd"])
def test_a_zone_that_accepts_the_lan_only_now_or_only_at_boot_is_not_enough(tmp_path: Path, other: str) -> None:
    outputs = {f"{other} --list_all_zones": PUBLIC, "list_all_zones": PUBLIC.replace("default\n", "ACCEPT\n")}
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs)
    assert firewalls.compare(LAN).commands() != []


@pytest.mark.parametrize("connection", [True, False])
def test_a_zone_to_which_network_manager_binds_the_lan_accepts_it_at_boot(tmp_path: Path, connection: bool) -> None:
    trusted = "trusted\n  target: ACCEPT\n  interfaces:"
    outputs = {"--permanent --list_all_zones": f"{trusted}\n", "list_all_zones": f"{trusted} eth0\n"}
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs)
    write_files(tmp_path, {"proc/8/comm": "NetworkManager", **network_manager_files(connection)})
    assert (firewalls.compare(LAN).commands() == []) == connection


def test_a_lan_is_accepted_at_boot_by_the_default_zone_of_then(tmp_path: Path) -> None:
    outputs = {"list_all_zones": PUBLIC.replace("default\n", "ACCEPT\n") + "\nhome\n  target: default\n"}
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs)
    assert firewalls.compare(LAN).commands() == []
    write_files(tmp_path, {"etc/firewalld/firewalld.conf": "DefaultZone=home\n"})
    assert firewalls.compare(LAN).commands() != []


@pytest.mark.parametrize("rules", [(), (LAN,)])
def test_a_zone_that_a_policy_of_the_administrator_names_is_not_deleted(
    tmp_path: Path, rules: tuple[HostRule, ...]
) -> None:
    guests = "guests (active)\n  ingress-zones: gpumesh-lab\n  egress-zones: ANY\n\n"
    outputs = {"list_all_policies": guests + POLICIES, "--info_zone=gpumesh-lab": "gpumesh-lab\n  interfaces: \n"}
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs)
    write_files(tmp_path, {"etc/firewalld/zones/gpumesh-lab.xml": ""})
    (obstacle,) = firewalls.compare(*rules).obstacles
    assert obstacle.startswith("the policy guests of firewalld names a zone that is to be deleted")
    assert obstacle.endswith(": firewall-cmd --permanent --policy=guests --remove-ingress-zone=gpumesh-lab")


def test_an_unchanged_lan_costs_three_calls(tmp_path: Path) -> None:
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, list_all_policies=POLICIES.replace("via-lab", "x"))
    tunnel = HostRule(port=51820, protocol="udp")
    assert firewalls.compare(LAN, tunnel).commands() == []
    assert firewalls.commands[1:] == [
        "firewall-cmd --permanent --list-all-policies",
        "firewall-cmd --list-all-policies",
    ]


def test_a_firewalld_that_does_not_answer_is_not_asked(tmp_path: Path) -> None:
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True)
    firewalls.answers = False
    assert firewalls.compare(LAN) == host.HostFirewall([], [], ([], False), [], [])
    assert firewalls.commands == ["firewall-cmd --state"]


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("name", ["user.rules", "user6.rules"])
def test_ufw_is_only_asked_on_leaving_if_it_has_rules_of_clusters(
    tmp_path: Path, programs: list[str], is_active: bool, name: str
) -> None:
    firewalls = Firewalls(tmp_path, ufw=is_active, firewalld=False, show=ADDED)
    rules = tmp_path / "etc/ufw" / name
    rules.write_text(f"### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in comment={b'of the admin'.hex()}\n")
    assert firewalls.compare().ufw_changes == []
    assert firewalls.commands == []
    mark = b"gpumesh.cluster lab".hex()
    rules.write_text(f"### tuple ### allow udp 51820 0.0.0.0/0 any 0.0.0.0/0 in comment={mark}\n")
    assert len(firewalls.compare().ufw_changes) == 5
    assert bool(firewalls.compare(LAN, HostRule(port=22, protocol="tcp")).ufw_changes) == is_active
    programs.clear()
    assert firewalls.compare().ufw_changes == []


def test_files_of_firewalld_go_even_if_it_is_not_running(tmp_path: Path) -> None:
    for folder, names in (("zones", ("gpumesh-lab", "gpumesh-other")), ("policies", ("gpumesh-in-lab",))):
        (tmp_path / "etc/firewalld" / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / "etc/firewalld" / folder / f"{name}.xml").touch()
            (tmp_path / "etc/firewalld" / folder / f"{name}.xml.old").touch()
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=False)
    comparison = firewalls.compare()
    assert comparison.to_result()["applies"]
    host.apply_firewalld(firewalls.run, firewalls.tree, "lab", comparison)
    left = sorted(path.name for path in (tmp_path / "etc/firewalld").rglob("*.xml*"))
    assert left == ["gpumesh-other.xml", "gpumesh-other.xml.old"]
    assert not firewalls.compare().to_result()["applies"]


@pytest.mark.parametrize(
    ("words", "places"),
    [("get_zone_of_interface", [" --permanent", ""]), ("firewall_cmd --get_zone_of_interface", [""])],
)
def test_an_interface_in_a_zone_of_the_administrator_stays_there(tmp_path: Path, words: str, places: list[str]) -> None:
    outputs = {words: "home\n", "--info_zone": "gpumesh-lab\n  forward: yes\n"}
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs)
    (obstacle,) = firewalls.compare(MESH).obstacles
    assert obstacle.startswith("gpumesh0 is in the zone home of firewalld")
    commands = [f"firewall-cmd{place} --zone=home --remove-interface=gpumesh0" for place in places]
    assert obstacle.endswith(f"remove it: {' && '.join(commands)}")


@pytest.mark.parametrize(
    ("permanent", "running", "obstacles"),
    [
        ("", "", []),
        ("", "80/tcp", ["lose settings that are only in its running configuration: zone public. Save them (firewall-"]),
        ("80/tcp", "", ["activate permanent settings that are not loaded yet: zone public; review them"]),
        ("80/tcp", "81/tcp", ["activate permanent settings", "configuration: zone public. Set again with --permanent"]),
    ],
)
def test_a_reload_that_would_change_more_is_an_obstacle(
    tmp_path: Path, permanent: str, running: str, obstacles: list[str]
) -> None:
    outputs = {
        "--permanent --list_all_zones": PUBLIC.format(permanent),
        "list_all_zones": PUBLIC.format(running),
    }
    found = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs).compare(LAN).obstacles
    assert len(found) == len(obstacles)
    assert all(words in obstacle for words, obstacle in zip(obstacles, found))


def test_a_default_zone_that_is_not_loaded_yet_is_an_obstacle(tmp_path: Path) -> None:
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True)
    write_files(tmp_path, {"etc/firewalld/firewalld.conf": "DefaultZone=public\n"})
    assert firewalls.compare(LAN).obstacles == []
    (tmp_path / "etc/firewalld/firewalld.conf").write_text("DefaultZone=home\n")
    (obstacle,) = firewalls.compare(LAN).obstacles
    assert "activate permanent settings that are not loaded yet: firewalld.conf DefaultZone; review them" in obstacle


@pytest.mark.parametrize(
    ("outputs", "lost"),
    [
        ({"firewall-cmd --direct --get-all-rules": "ipv4 filter INPUT 0 -j DROP\n"}, "direct rules"),
        ({"firewall-cmd --direct --get-all-passthroughs": "ipv4 -A X\n"}, "direct passthroughs"),
        ({"firewall-cmd --direct --get-all-chains": "ipv4 filter X\n"}, "direct chains"),
        ({"--get-ipsets": "banned", "firewall-cmd --ipset=banned --get-entries": "10.1.1.1\n"}, "ipset banned"),
    ],
)
def test_what_only_runs_besides_zones_and_policies_is_an_obstacle(
    tmp_path: Path, outputs: dict[str, str], lost: str
) -> None:
    (obstacle,) = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs).compare(LAN).obstacles
    assert f"running configuration: {lost}. " in obstacle


@pytest.mark.parametrize("running", ["", "web\n  ports: 80/tcp\n"])
def test_a_service_that_is_not_loaded_yet_is_an_obstacle(tmp_path: Path, running: str) -> None:
    outputs = {"--permanent --info_service=web": "web\n  ports: 80/tcp 81/tcp\n", "--info_service=web": running}
    firewalls = Firewalls(tmp_path, ufw=False, firewalld=True, **outputs)
    assert firewalls.compare(LAN).obstacles == []
    (tmp_path / "etc/firewalld/services").mkdir(parents=True)
    for name in ("web.xml", "web.xml.old"):
        (tmp_path / "etc/firewalld/services" / name).touch()
    (obstacle,) = firewalls.compare(LAN).obstacles
    assert "activate permanent settings that are not loaded yet: service web; " in obstacle


@pytest.mark.parametrize(("process", "connection"), [("NetworkManager", True), ("NetworkManager", False), ("x", True)])
def test_network_manager_binds_the_interfaces_of_its_connections_again(
    tmp_path: Path, process: str, connection: bool
) -> None:
    firewalls = Firewalls(
        tmp_path,
        ufw=False,
        firewalld=True,
        **{
            "--permanent --list_all_zones": "public\n  interfaces: \n",
            "list_all_zones": "public\n  interfaces: eth0\n",
        },
    )
    write_files(tmp_path, {"proc/8/comm": process, **network_manager_files(connection)})
    lost = [] if process == "NetworkManager" and connection else ["interface eth0 of zone public"]
    assert [obstacle.split("configuration: ")[1].split(".")[0] for obstacle in firewalls.compare(LAN).obstacles] == lost


@pytest.mark.parametrize(
    "fields", [{"interface": "eth0; reboot"}, {"source": "10.0.0.0/33"}, {"out_interface": "a b", "forward": True}]
)
def test_rules_with_other_texts_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="A rule for the firewall of the host is invalid"):
        parse_rule(fields)


def test_a_rule_has_the_fields_that_are_set() -> None:
    assert parse_rule({"interface": "gms+", "source": "10.192.0.0/10", "forward": True, "port": None}) == HostRule(
        "gms+", "10.192.0.0/10", forward=True
    )

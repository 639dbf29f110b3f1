# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever version of a program printed an output, it is read by its names: case, order and additional parts are free.

The outputs are those of Debian 12, 13 and 14; tool_outputs/README.md has the versions. Ubuntu's versions of Slurm (21.08,
23.11, 25.11) could not be run, so they are not here. `nft -j` is not used: the table is compared as nft lists it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import handshakes, shared_faults, waiting
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import routes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import iproute
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import rules, table
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import tailscale, wireguard
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts, show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import server
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import images
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime import ContainerPaths
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.runtime_podman import Podman

OUTPUTS = Path(__file__).parent / "tool_outputs"
RELEASES = sorted(folder.name for folder in OUTPUTS.iterdir() if folder.is_dir() and folder.name.startswith("debian-"))
SLURM_OUTPUTS = Path(__file__).parent / "module_utils" / "_layers" / "slurm" / "fixtures"
FIRST_PEER, SECOND_PEER = (
    "x2cqcumcVPjNsWssWmy8Qx187xGPz1+f+OFjs5q59QI=",
    "BRgZ63+a3tteJ57+B2G+C7RTutUJpjH0TeW99oCOol8=",
)
TAILSCALES = sorted(folder.name for folder in OUTPUTS.glob("tailscale-*"))
each_release = pytest.mark.parametrize("release", RELEASES)


def read_output(release: str, name: str) -> str:
    return (OUTPUTS / release / name).read_text(encoding="utf-8")


def as_is(text: str) -> str:
    return text


def rearrange_json(text: str) -> str:
    """The same JSON with names in the other case and order, additional fields, and null for what is empty."""
    return json.dumps(_rearrange(json.loads(text)))


def _rearrange(value: Any) -> Any:
    if isinstance(value, list):
        return [_rearrange(element) for element in value]
    if not isinstance(value, dict):
        return None if value == "" else value
    fields = {name.swapcase(): _rearrange(element) for name, element in reversed(value.items())}
    if any(name.startswith("nodekey:") for name in value):
        # The names are those of the peers.
        return fields
    return {"__new_field": {"of": [1]}, **fields, "": None}


def rearrange_settings(text: str) -> str:
    """The lines of `sshd -T` with names in the other case, and additional lines; lists keep their order."""
    lines = ["NewSetting yes", "", "newlist a b", *text.splitlines()]
    return "".join(f"{name.swapcase()} {value}\n" for name, _space, value in (line.partition(" ") for line in lines))


def rearrange_fields(text: str) -> str:
    """The lines of `scontrol show -o` with names in the other case, additional fields, and all but the first reversed."""
    lines = []
    for line in text.splitlines():
        if not line:
            continue
        first, *fields = re.findall(r"([A-Za-z][A-Za-z0-9:/_]*)=((?:(?!\s[A-Za-z][A-Za-z0-9:/_]*=).)*)", line)
        fields = [first, ("NewField", "a b"), *reversed(fields)]
        lines.append(" ".join(f"{name.swapcase()}={value.strip()}" for name, value in fields))
    return "\n".join(["A new line of text", *lines, ""])


@each_release
@pytest.mark.parametrize("arrange", [as_is, rearrange_json])
def test_interfaces_and_routes(release: str, arrange: Callable[[str], str]) -> None:
    links = {link["name"]: link for link in iproute.parse_addresses(arrange(read_output(release, "ip-addr.json")))}
    assert {"lo", "eth0", "gm0", "gm1", "gm9"} <= set(links)
    assert {name: links[name]["kind"] for name in ("lo", "eth0", "gm0", "gm9")} == {
        "lo": "loopback",
        "eth0": "veth",
        "gm0": "tun",
        "gm9": "bridge",
    }
    tunnel = [entry["address"] for entry in links["gm0"]["addresses"] if entry["scope"] == "global"]
    assert (tunnel, links["gm0"]["mtu"]) == (["10.99.0.1", "fd99::1"], 1420)
    (route,) = iproute.parse_default_routes(arrange(read_output(release, "ip-route4-default.json")), "inet")
    assert (route["gateway"], route["interface"], route["metric"]) == ("172.17.0.1", "eth0", None)
    assert wireguard.parse_link(arrange(read_output(release, "ip-address-gm0.json"))) == wireguard.InterfaceLink(
        1420, True, ("10.99.0.1/16", "fd99::1/64"), "tun"
    )
    assert wireguard.parse_routes(
        *(arrange(read_output(release, f"ip-route{family}-gm0.json")) for family in (4, 6))
    ) == {"192.0.2.0/24", "2001:db8::/32"}


@each_release
@pytest.mark.parametrize("arrange", [as_is, rearrange_json])
def test_routes_to_peers(release: str, arrange: Callable[[str], str]) -> None:
    answers = "\n".join(arrange(line) for line in read_output(release, "ip-route-get.json").splitlines())
    addresses = ["10.99.0.2", "203.0.113.9", "198.51.100.7", "fd99::2"]
    found = routes.parse_routes(addresses, answers, read_output(release, "ip-route-get-errors.txt"))
    assert [(found[address]["dev"], found[address]["prefsrc"]) for address in addresses] == [
        ("gm0", "10.99.0.1"),
        (None, None),
        ("eth0", "172.17.0.2"),
        ("gm0", "fd99::1"),
    ]
    assert found["203.0.113.9"]["error"] == "No route to host"
    assert found["198.51.100.7"]["gateway"] == "172.17.0.1"


def add_fields(text: str) -> str:
    """The lines of `wg` with another field each, in the other order of peers; the interface stays the first."""
    first, *others = [f"{line}\tnew" for line in text.splitlines()]
    return "\n".join([first, *reversed(others), ""])


@each_release
@pytest.mark.parametrize("arrange", [as_is, add_fields])
def test_tunnels(release: str, arrange: Callable[[str], str]) -> None:
    dump = wireguard.parse_dump(arrange(read_output(release, "wg-dump.txt")))
    assert (dump.public_key, dump.listen_port) == ("GtdemSvsR23p7aeCMSPS5H4mgetHgVw/bHHx4x70YgA=", 51820)
    assert set(dump.peers_by_key) == {FIRST_PEER, SECOND_PEER}
    first, second = dump.peers_by_key[FIRST_PEER], dump.peers_by_key[SECOND_PEER]
    assert (first.endpoint, first.allowed_ips, first.persistent_keepalive) == (
        "127.0.0.1:51821",
        ("10.99.0.2/32", "fd99::2/128"),
        25,
    )
    assert first.latest_handshake > 1796000000
    assert (second.endpoint, second.latest_handshake, second.persistent_keepalive) == (None, 0, 0)
    latest = handshakes.parse_handshakes(arrange(read_output(release, "wg-latest-handshakes.txt")))
    assert latest == {FIRST_PEER: first.latest_handshake, SECOND_PEER: 0}
    assert handshakes.parse_addresses(arrange(read_output(release, "wg-allowed-ips.txt"))) == {
        FIRST_PEER: "10.99.0.2",
        SECOND_PEER: "10.99.0.3",
    }


@pytest.mark.parametrize("version", TAILSCALES)
@pytest.mark.parametrize("arrange", [as_is, rearrange_json])
def test_tailnets(version: str, arrange: Callable[[str], str]) -> None:
    status = tailscale.parse_status(arrange(read_output(version, "status.json")))
    assert status.version.startswith(version[len("tailscale-") :])
    assert (status.backend_state, status.uses_tun, status.host_label) == ("Running", False, "t1")
    assert (status.addresses, status.tags) == (("100.64.0.1", "fd7a:115c:a1e0::1"), ("tag:gpu",))
    (peer,) = status.peers
    assert (peer.peer_name, peer.addresses) == ("t2", ("100.64.0.2", "fd7a:115c:a1e0::2"))
    assert (peer.is_online, peer.endpoint, peer.recently_active) == (True, "172.17.0.2:41642", True)
    prefs = tailscale.parse_prefs(arrange(read_output(version, "prefs.json")))
    assert (prefs.login_server, prefs.hostname, prefs.accept_dns, prefs.ssh) == (
        "https://172.17.0.2",
        "t1",
        True,
        False,
    )
    logged_out = tailscale.parse_status(arrange(read_output(version, "logged-out.json")))
    assert (logged_out.backend_state, logged_out.addresses, logged_out.peers) == ("NeedsLogin", (), ())
    assert tailscale.parse_ping(read_output(version, "ping.txt"))["path"] == "direct"


@each_release
def test_admitted_addresses_do_not_count_as_a_change_of_the_firewall(release: str) -> None:
    def read_live_table(listing: str) -> str | None:
        host = table.FirewallHost(lambda *_arguments, **_options: CommandResult(0, listing, ""), False, "", "", "")
        return table._read_live_table(host)

    before, joining = read_output(release, "nft-list.txt"), read_output(release, "nft-list-joining.txt")
    assert "192.0.2.2 timeout 1h" in joining
    assert read_live_table(joining) == read_live_table(before) == before
    assert f"table inet {rules.TABLE_NAME} {{" in before
    # A table that is missing is no failure of nft.
    assert "No such file" in read_output(release, "nft-list-absent.txt")


@each_release
@pytest.mark.parametrize("arrange", [as_is, rearrange_settings])
def test_settings_and_match_blocks_of_the_ssh_server(release: str, arrange: Callable[[str], str]) -> None:
    settings = server.parse_sshd_settings(arrange(read_output(release, "sshd-T.txt")))
    assert (settings.use_dns, settings.public_key_login, settings.root_login) == (True, True, "yes")
    assert (settings.authentication_methods, settings.authorized_keys_files) == (
        ["any"],
        [".ssh/authorized_keys", ".ssh/authorized_keys2"],
    )
    printed = read_output(release, "sshd-debug.txt").replace("\n", "\r\n")
    criteria = server.read_match_criteria(lambda *_arguments, **_options: CommandResult(0, "", printed))
    assert criteria == [("address", "192.0.2.0/24"), ("address", "10.0.0.0/8,fd00::/8"), ("host", "*.example.org")]


class Sacctmgr:
    """Replies as sacctmgr did."""

    def __init__(self, release: str) -> None:
        self.release = release

    def __call__(self, argv: Sequence[str], timeout: float = 0) -> CommandResult:
        return CommandResult(0, read_output(self.release, f"sacctmgr-{argv[argv.index('show') + 1]}.txt"), "")


@each_release
def test_accounts_that_are_as_desired(release: str) -> None:
    desired = accounts.parse_desired(
        {"long": {"Priority": 10, "MaxWall": "7-0", "MaxTRESPerUser": "gres/gpu=4"}},
        {"research": {"Organization": "a b", "Parent": "root", "QOS": ["normal", "long"], "users": ["root"]}},
    )
    current = accounts.read_current(Sacctmgr(release), "lab", desired)
    assert accounts.plan_commands("lab", current, desired) == []
    assert current.qos["long"]["maxwall"] == "7-00:00:00"


@each_release
@pytest.mark.parametrize("arrange", [as_is, rearrange_fields])
def test_nodes_partitions_and_settings_of_slurm(release: str, arrange: Callable[[str], str]) -> None:
    assert show.parse_partitions_text(arrange(read_output(release, "scontrol-partition.txt"))) == [
        {"name": "cluster", "state": "up", "default": True, "nodes": ["n1"], "cpus": 1, "max_time": 7 * 24 * 60}
    ]
    (node,) = show.parse_nodes_text(arrange(read_output(release, "scontrol-node.txt")))
    assert (node["name"], node["address"], node["state"], node["cpus"]) == ("n1", "127.0.0.1", "unknown", 1)
    ping = read_output(release, "scontrol-ping.txt")
    assert show.is_controller_up(lambda *_arguments, **_options: CommandResult(0, ping, ""))
    settings = read_output(release, "scontrol-config.txt")
    for arranged in (settings, settings.swapcase()):
        reply = CommandResult(0, arranged, "")
        assert waiting.read_wait_limit(lambda *_arguments, _reply=reply, **_options: _reply) == 300 - 90


@pytest.mark.parametrize("name", ["22.05.node.txt", "24.11.node.txt", "26.05.node.txt"])
def test_rearranged_nodes_of_slurm(name: str) -> None:
    text = (SLURM_OUTPUTS / name).read_text(encoding="utf-8")
    # What looks like a field in a reason is a part of it, so only texts without that can be rearranged.
    rearranged = rearrange_fields(text.replace("gpu 3 = lost", "gpu 3 lost").replace(" x=y", ""))
    for node, other in zip(show.parse_nodes_text(text), show.parse_nodes_text(rearranged), strict=True):
        assert {**other, "reason": ""} == {**node, "reason": ""}
        assert other["reason"].replace(" ", "") in node["reason"].replace("=", "").replace(" ", "")


@pytest.mark.parametrize("name", ["22.05.job.txt", "24.11.job.txt", "26.05.job.txt"])
def test_jobs_of_slurm_with_other_names(name: str) -> None:
    text = (SLURM_OUTPUTS / name).read_text(encoding="utf-8")
    names = re.sub(r"(?m)(^|\s)([A-Za-z][A-Za-z0-9:/_]*)=", lambda found: found[0].swapcase(), text)
    assert show.parse_jobs_text("A new line\n" + names) == show.parse_jobs_text(text)


@pytest.mark.parametrize("name", ["24.11.node.json", "26.05.node.json", "24.11.job.json", "26.05.job.json"])
def test_rearranged_json_of_slurm(name: str) -> None:
    text = (SLURM_OUTPUTS / name).read_text(encoding="utf-8")
    parse: Callable[[str], Sequence[Any]] = show.parse_nodes_json if "node" in name else show.parse_jobs_json
    assert parse(rearrange_json(text)) == parse(text)


def test_a_state_of_one_word_and_numbers_with_a_mark_are_read() -> None:
    node = {"name": "n1", "state": "IDLE", "cpus": {"set": True, "infinite": False, "number": 4}, "features": None}
    (parsed,) = show.parse_nodes_json(json.dumps({"nodes": [node]}))
    assert (parsed["state"], parsed["cpus"], parsed["features"], parsed["address"]) == ("idle", 4, [], "")


def test_fields_after_the_reason_are_read_whatever_their_names() -> None:
    text = (
        "NODENAME=n1 state=IDLE+DRAIN REASON=no gpu x=y [root@2026-11-29T03:58:28] NewField=1 CPUTot=4 COMMENT=mine\n"
    )
    (node,) = show.parse_nodes_text(text)
    assert (node["reason"], node["reason_user"], node["cpus"]) == ("no gpu x=y", "root", 4)
    assert shared_faults.parse_comments(text) == {"n1": "mine"}
    assert shared_faults.read_extra(f"{text.strip()} EXTRA=theirs") == "theirs"


@each_release
def test_images_and_containers_of_podman(release: str, tmp_path: Path) -> None:
    without_name, named = images.parse_images(read_output(release, "podman-images.txt"))
    assert (without_name.image_names, named.image_names) == ([], ["registry.example.org/team/train:24.10"])
    assert named.display_size.endswith(" MB")
    outputs = {"image": "podman-image-inspect.txt", "container": "podman-inspect-running.txt"}

    def run(argv: Sequence[str], **_options: object) -> CommandResult:
        return CommandResult(0, read_output(release, outputs["image" if "image" in argv else "container"]), "")

    podman, paths = Podman(run), ContainerPaths(str(tmp_path), str(tmp_path), str(tmp_path))
    image = podman.find_image(paths, "docker://registry.example.org/team/train:24.10")
    assert image is not None
    assert (image.image_id, image.runs_as_user) == (named.identifier, False)
    (tmp_path / "pid").touch()
    assert podman.is_running(paths)
    outputs["container"] = "podman-inspect-ended.txt"
    assert not podman.is_running(paths)

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever text a user, a record or a tool gives: it is taken, or it is refused in words. Nothing else ever happens.

Texts are made by breaking good ones, since random signs do not get past the first check. HYPOTHESIS_PROFILE=search tries
100,000 of them at each place, and other ones each time; a gate tries the same few.
"""

from __future__ import annotations

import contextlib
import copy
import ipaddress
import json
import os
import random
import string
from collections.abc import Callable
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpumesh.cluster.plugins.filter.machines import machines
from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files, layers, mount_table
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective import parse as collective
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.firewall import rules
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh import tailscale, wireguard
from ansible_collections.gpumesh.cluster.plugins.module_utils.net import iproute
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import accounts, conf, hostlist, show
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh import trust
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import fstab, quota
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import storage

SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"
TRIES = 100_000 if SEARCH else 1_000
SEED = random.SystemRandom().randrange(1 << 32) if SEARCH else 0

KEY = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
STAMP = plan.Stamp("2026-11-20T20:31:00Z", "alice")
VOLUME: dict[str, Any] = {
    "name": "data",
    "server": "n1",
    "path": "/srv/data",
    "mount_point": "/data",
    "read_only": False,
    "recovery": "soft",
    "options": ["noatime", "rsize=1048576"],
    "link": "lan",
    "owner": "root",
    "group": "users",
    "mode": "1777",
    "quota": "500G",
}
ENTRIES: list[dict[str, Any]] = [
    {
        "machine": f"n{number}",
        "address": f"10.0.0.{number}",
        "interface": "eth0",
        "site": "here",
        "lan_address": f"192.168.0.{number}",
        "endpoint": f"gw{number}.example.com:51820",
        "gpus": number,
        "mesh": {"address": f"10.99.0.{number}", "public_key": KEY if number == 1 else None},
        "ssh_host_keys": ["ssh-ed25519 " + "A" * 40],
        "ssh_public_key": "ssh-ed25519 " + "B" * 40,
    }
    for number in (1, 2)
]


def made(volumes: list[dict[str, Any]]) -> model.Record:
    created = plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {}, ENTRIES, STAMP)
    return plan.commit(plan.Draft(plan.set_storage(created.record, volumes).record, created.changes), STAMP)


RECORD = made([VOLUME, {"name": "lustre", "mount_point": "/lustre", "filesystem": "lustre"}])

#: What has broken parsers before: line ends, zones, other digits, long numbers, quotes, escapes, half a surrogate pair.
PIECES = (
    *("\n", "\r", "\t", "\0", "\x1b[2J", "\x7f", "\u2028", "\u202e", "\ud800", "\u0663", "\u00b2", "\u00e9", "\uff11"),
    *("%", "%a\nb", "%eth0", "..", ".", "-", "--", "_", "/", "//", "../", ":", "::", "[", "]", "[]", "[1-3]", ",", ";"),
    *(
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        "{{ 1 }}",
        "#",
        "=",
        "@",
        "+",
        "*",
        " ",
        "0x7f",
        "0",
        "00",
        "9" * 20,
        "9" * 5000,
    ),
    *(
        "/0",
        "/33",
        "/129",
        "/-1",
        "65535",
        "65536",
        "true",
        "null",
        "NaN",
        "1e999",
        "localhost",
        "127.0.0.1",
        "fd00::1",
    ),
    *("224.0.0.1", "0.0.0.0", "fe80::1", "::ffff:127.0.0.1", "1.2.3", "all"),
)
#: JSON of every kind, where another was expected.
ODD: tuple[Any, ...] = (None, True, 0, -1, 1 << 70, 1.5, "", [], {}, [None], [[]], {"": None}, ["x"], {"name": []})


def broken(choose: random.Random, text: str) -> str:
    """One to three changes to a text."""
    for _turn in range(choose.randint(1, 3)):
        at, end = sorted(choose.randint(0, len(text)) for _end in "12")
        kind = choose.randrange(5)
        if kind == 0:
            text = text[:at] + choose.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + choose.choice(PIECES) + text[end:]
        elif kind == 2:
            text = text[:at] + text[end:]
        elif kind == 3:
            text = text[:at] + text[at:end] * choose.randint(2, 4) + text[end:]
        else:
            text = text[:at] + choose.choice(string.printable) + text[at + 1 :]
        text = text[:20_000]
    return text


def broken_document(choose: random.Random, document: Any) -> Any:
    """A copy in which one value, wherever it is, is broken, odd, gone, or there twice."""
    new = copy.deepcopy(document)
    here = new
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return choose.choice(ODD)
        key = choose.choice(keys)
        value = here[key]
        if isinstance(value, (dict, list)) and value and choose.random() < 0.85:
            here = value
            continue
        kind = choose.randrange(4)
        if kind < 2 and isinstance(value, str):
            here[key] = broken(choose, value)
        elif kind == 2 and isinstance(here, list):
            here.insert(key, copy.deepcopy(value))
        elif kind == 3 and isinstance(here, dict):
            here[choose.choice(["", "x", "options", "\n"])] = here.pop(key)
        else:
            here[key] = copy.deepcopy(choose.choice(ODD))
        return new


def endures(
    take: Callable[[Any], Any],
    good: tuple[Any, ...],
    refusals: tuple[type[Exception], ...],
    proves: Callable[[Any], Any] = lambda taken: None,
) -> None:
    """``take`` every broken form: it returns what ``proves`` does not mind, or refuses by one of ``refusals``."""
    choose = random.Random(SEED)
    told = []
    for one in good:
        take(copy.deepcopy(one))
    for turn in range(TRIES):
        one = choose.choice(good)
        wrong = broken(choose, one) if isinstance(one, str) else broken_document(choose, one)
        try:
            taken = take(wrong)
        except refusals as refusal:
            told.append(str(refusal))
            continue
        except Exception as traceback:
            raise AssertionError(f"{wrong!r} (seed {SEED}, turn {turn})") from traceback
        try:
            proves(taken)
        except Exception as traceback:
            raise AssertionError(f"{wrong!r} was taken as {taken!r} (seed {SEED}, turn {turn})") from traceback
    assert all(told), f"refused without a reason (seed {SEED})"


def plain(text: str) -> None:
    """Harmless wherever the values of a record are written: one word, and none that is an option."""
    assert text.isascii() and text.isprintable() and text.split() == [text] and not text.startswith("-")
    assert not set(text) & set("\"'`$\\;&|<>(){}*?!#%,")


def is_address(text: str) -> None:
    plain(text)
    parsed = ipaddress.ip_address(text)
    assert not (parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified)


def is_subnet(text: str) -> None:
    plain(text)
    assert not ipaddress.ip_network(text).is_loopback


def is_endpoint(text: str) -> None:
    plain(text)
    host, port = wireguard.split_endpoint(text)
    assert 0 < port < 65536
    if not set(host) <= set("0123456789.:abcdef"):
        # As getaddrinfo does it: this is what raised in every member.
        host.encode("idna")


def is_path(text: str) -> None:
    plain(text)
    assert os.path.normpath(text) == text


VALUES: list[tuple[Callable[[str], str], tuple[str, ...], Callable[[str], Any]]] = [
    (values.cluster_name, ("lab", "a-b_c9"), plain),
    (values.machine_name, ("n1", "gpu-1.example.com", "10.0.0.7", "A_b"), plain),
    (values.site_name, ("here", "dc-1.a"), plain),
    (values.interface_name, ("eth0", "bond0.100", "br-lan"), plain),
    (values.mesh_interface_name, ("gpumesh0", "wg0"), wireguard.check_interface_name),
    (values.volume_name, ("data", "team-a"), plain),
    (values.subnet, ("10.0.0.7/24", "fd00::/64"), is_subnet),
    (values.address, ("10.0.0.7", "fd00::7"), is_address),
    (values.host_name, ("gw.example.com", "203.0.113.10"), plain),
    (values.endpoint, ("gw.example.com:51820", "203.0.113.10:51820", "[2001:db8::1]:51820"), is_endpoint),
    (values.wireguard_key, (KEY,), lambda key: wireguard.check_public_key(key, "n1")),
    (values.ssh_key, ("ssh-ed25519 " + "A" * 60 + "== me@here",), lambda key: None),
    (values.absolute_path, ("/srv/data", "/srv/a.b/c+d"), is_path),
    (values.mount_point, ("/data", "/home/a"), is_path),
    (values.timestamp, ("2026-11-20T20:31:00Z",), plain),
    (values.line, ("alice@n1",), lambda text: text.encode()),
]


@pytest.mark.parametrize(("check", "good", "proves"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_value_of_the_record(
    check: Callable[[str], str], good: tuple[str, ...], proves: Callable[[str], Any]
) -> None:
    endures(check, good, (ValueError,), proves)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (values.endpoint, "gw..example.com:51820"),
        (values.endpoint, ".example.com:51820"),
        (values.endpoint, "gw.example.com.:51820"),
        (values.endpoint, "a" * 64 + ".com:51820"),
        (values.endpoint, "1.2.3:51820"),
        (values.endpoint, "999.1.1.1:51820"),
        (values.endpoint, "localhost:51820"),
        (values.endpoint, "gw:\u0663"),
        (values.address, "fd00::1%a\nb"),
        (values.address, "::ffff:127.0.0.1"),
        (values.subnet, "0.0.0.0/0"),
        (values.subnet, "::/0"),
        (values.mesh_interface_name, "lo"),
        (values.mesh_interface_name, "all"),
        (values.interface_name, "eth0@if7"),
        (values.mount_point, "/etc"),
        (values.mount_point, "/"),
        (values.mount_point, "/usr/bin/x"),
        (values.mount_point, "//etc/"),
    ],
)
def test_what_cannot_be_applied_is_refused(check: Callable[[str], str], text: str) -> None:
    with pytest.raises(ValueError, match="."):
        check(text)


def settled(record: model.Record) -> None:
    """What was taken can be written, read back, and made into what every layer applies."""
    assert model.parse(json.loads(json.dumps(record))) == record
    for member in record["members"]:
        storage.mounts(record, member["machine"])
        storage.exports(record, member["machine"])
    for member in record["members"]:
        if member["endpoint"]:
            wireguard.split_endpoint(member["endpoint"])
    if record["mesh"]["backend"] == "wireguard":
        wireguard.check_interface_name(record["mesh"]["interface"])


def test_a_record_of_another_host() -> None:
    endures(model.parse, (RECORD,), (GpumeshError,), settled)


def test_what_a_user_says_of_members() -> None:
    endures(lambda given: plan.commit(plan.join(RECORD, given, STAMP), STAMP), (ENTRIES,), (GpumeshError,), settled)


def test_what_a_user_says_of_volumes() -> None:
    volumes = RECORD["storage"]["volumes"]
    endures(lambda given: plan.commit(plan.set_storage(RECORD, given), STAMP), (volumes,), (GpumeshError,), settled)


def test_what_a_user_says_of_a_mesh() -> None:
    meshes = ({"backend": "wireguard", "subnet": "10.98.0.0/16", "port": 51821, "interface": "wg0", "mtu": 1400},)
    endures(lambda given: plan.commit(plan.set_mesh(RECORD, given), STAMP), meshes, (GpumeshError,), settled)


def make_tunnel(text: str) -> None:
    peer = {"machine": "n2", "public_key": KEY, "endpoint": "gw.example.com:1", "allowed_ips": ["10.99.0.2/32"]}
    for key in peer:
        with contextlib.suppress(GpumeshError):
            wrong = {**peer, key: [text] if key == "allowed_ips" else text}
            text_of = wireguard.render_conf(
                wireguard.make_desired("gpumesh0", "10.99.0.1/16", 51820, 1420, [wrong]), "/etc/wireguard/k"
            )
            assert text_of.count("[Peer]") == 1


TEXTS: list[tuple[str, Callable[[Any], Any], tuple[Any, ...]]] = [
    ("machines", machines, ("gpu1, gpu2 gpu3",)),
    ("split_endpoint", wireguard.split_endpoint, ("gw.example.com:51820", "[2001:db8::1]:51820")),
    ("expand", hostlist.expand, ("n[1-3,5],m", "a[01-03]b[1-2]")),
    ("compress", lambda text: hostlist.compress(text.split()), ("n1 n2 n03",)),
    ("size_of", lambda text: quota.size_of("data", text), ("500G", "1.5TiB")),
    ("value_text", lambda text: conf.value_text("Key", text), ("a,b",)),
    ("check_key", conf.check_key, ("SlurmctldPort",)),
    ("conf.parse", conf.parse, ("ClusterName=lab\nNodeName=n[1-3] CPUs=2 # x\nInclude /etc/x\n",)),
    ("parse_pairs", conf.parse_pairs, ("NodeName=n1 CPUs=2 OS=Linux 6.1 #1 Reason=a b",)),
    ("meaning", lambda text: accounts.meaning("MaxWall", text), ("2-12:30:00", "1:00")),
    ("parse_table", lambda text: accounts.parse_table(text, ["a", "b"]), ("x|y\nz|w",)),
    ("ports", lambda text: rules._ports([text]), ("6817-6819", "2049")),
    ("networks", lambda text: rules._networks([text]), ("10.1.0.0/16", "fd00::/64")),
    ("addresses", lambda text: rules._addresses([text]), ("10.1.0.1", "fd00::1")),
    ("hostname", lambda text: tailscale.make_desired({"hostname": text}), ("gpu1",)),
    ("tags", lambda text: tailscale.make_desired({"tags": [text]}), ("tag:gpu",)),
    ("routes", lambda text: tailscale.make_desired({"advertise_routes": [text]}), ("10.1.0.0/16",)),
    ("server", lambda text: tailscale.make_desired({"login_server": text}), ("https://headscale.example.org",)),
    ("parse_ping", tailscale.parse_ping, ("pong from n2 (100.64.0.2) via 198.51.100.7:41641 in 5ms\n",)),
    (
        "parse_dump",
        wireguard.parse_dump,
        (f"(none)\t{KEY}\t51820\toff\n{KEY}\t(none)\t198.51.100.7:1\t10.99.0.2/32\t1\t2\t3\t25\n",),
    ),
    (
        "parse_conf",
        wireguard.parse_conf,
        (f"[Interface]\nListenPort = 1\n[Peer]\n# Machine = n2\nPublicKey = {KEY}\nEndpoint = a:1\n",),
    ),
    (
        "parse_nodes_text",
        show.parse_nodes_text,
        ("NodeName=n1 CPUTot=2 State=IDLE RealMemory=100\n\nNodeName=n2 State=DOWN\n",),
    ),
    ("parse_jobs_text", show.parse_jobs_text, ("JobId=1 JobName=a JobState=RUNNING NodeList=n[1-2]\n",)),
    ("parse_mountinfo", mount_table.parse_mountinfo, ("36 35 98:0 /a /mnt rw,noatime shared:1 - ext3 /dev/root rw\n",)),
    ("parse_units", layers.parse_units, ("Id=a.service\nActiveState=active\n\nId=b.service\n",)),
    (
        "fstab",
        lambda text: fstab.parse(text, "lab"),
        ("# BEGIN volumes of gpumesh cluster lab\na /b nfs4 rw 0 0\n# END volumes of gpumesh cluster lab\n",),
    ),
    ("block_in", lambda text: host_files.block_in(text, "# {mark} ours"), ("x\n# BEGIN ours\ny\n# END ours\nz\n",)),
    (
        "collective",
        collective.parse_text,
        ("# nccl-tests version 2.13\n 8 2 float sum -1 1.0 2.0 3.0 0 1.0 2.0 3.0 0\n",),
    ),
    (
        "certificate",
        trust.parse_certificate,
        ("/f:\n        Type: ssh-ed25519-cert-v01@openssh.com user certificate\n        Valid: forever\n",),
    ),
    ("sshd", trust.parse_server, ("pubkeyauthentication yes\npermitrootlogin no\nhostkey /etc/ssh/k\n",)),
    ("tunnel", make_tunnel, ("n2", KEY, "gw.example.com:1", "10.99.0.2/32")),
]


@pytest.mark.parametrize(("name", "take", "good"), TEXTS, ids=[name for name, _take, _good in TEXTS])
def test_a_text_of_a_user_or_a_tool(name: str, take: Callable[[Any], Any], good: tuple[Any, ...]) -> None:
    endures(take, good, (GpumeshError, AnsibleFilterError))


JSONS: list[tuple[str, Callable[[str], Any], Any]] = [
    (
        "addresses",
        iproute.parse_addresses,
        [
            {
                "ifname": "eth0",
                "flags": ["UP"],
                "mtu": 1500,
                "link_type": "ether",
                "operstate": "UP",
                "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"}],
            }
        ],
    ),
    (
        "routes",
        lambda text: iproute.parse_default_routes(text, "inet"),
        [{"dst": "default", "gateway": "10.0.0.254", "dev": "eth0", "metric": 100}],
    ),
    (
        "link",
        wireguard.parse_link,
        [
            {
                "ifname": "gpumesh0",
                "mtu": 1420,
                "flags": ["UP"],
                "linkinfo": {"info_kind": "wireguard"},
                "addr_info": [{"family": "inet", "local": "10.99.0.1", "prefixlen": 16, "scope": "global"}],
            }
        ],
    ),
    (
        "routes of the tunnel",
        wireguard.parse_routes,
        [{"dst": "10.99.0.0/16", "dev": "gpumesh0", "protocol": "static"}],
    ),
    (
        "prefs",
        tailscale.parse_prefs,
        {"ControlURL": "https://a", "RouteAll": False, "CorpDNS": True, "AdvertiseTags": ["tag:a"]},
    ),
    (
        "status",
        tailscale.parse_status,
        {
            "Version": "1",
            "TUN": True,
            "BackendState": "Running",
            "Self": {"ID": "1", "Tags": []},
            "TailscaleIPs": ["100.64.0.1"],
            "Peer": {"k": {"TailscaleIPs": ["100.64.0.2"]}},
        },
    ),
    (
        "nodes",
        show.parse_nodes_json,
        {"nodes": [{"name": "n1", "state": ["IDLE"], "cpus": 2, "real_memory": 100, "reason": ""}]},
    ),
    (
        "jobs",
        show.parse_jobs_json,
        {"jobs": [{"job_id": 1, "name": "a", "job_state": ["RUNNING"], "nodes": "n[1-2]", "user_name": "a"}]},
    ),
    ("collective", collective.parse_json, {"version": "2.17", "results": []}),
]


@pytest.mark.parametrize(("name", "take", "good"), JSONS, ids=[name for name, _take, _good in JSONS])
def test_json_of_a_tool(name: str, take: Callable[[str], Any], good: Any) -> None:
    # Where the good one is refused, its shape here is not a tool's, and the breaking of it proves nothing less.
    def given(document: Any) -> Any:
        text = json.dumps(document)
        return take(text)

    choose = random.Random(SEED)
    for turn in range(TRIES):
        document = broken_document(choose, good) if choose.random() < 0.7 else broken(choose, json.dumps(good))
        try:
            take(document) if isinstance(document, str) else given(document)
        except GpumeshError:
            continue
        except Exception as traceback:
            raise AssertionError(f"{document!r} (seed {SEED}, turn {turn})") from traceback

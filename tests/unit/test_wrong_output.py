# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever a program, the kernel or another host returns: it is read, or refused with a message.

Nothing else may happen.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective import parse as collective
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, handshakes, host, shared_faults
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import (
    arp,
    perftest,
    ports,
    protocol,
    routes,
    runner,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster import claims
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import (
    lease,
    leased_process,
    managed_files,
    mount_table,
    processes,
    service,
    volume_users,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import gpus, hostname, iproute, kernel, kinds, rdma
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import (
    rotation,
    tailnet_api,
    tailscale,
    wireguard,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts, conf, database, show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import host as slurm_host
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import host as ssh_host
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import server as ssh_server
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import (
    flags,
    fstab,
    mounts,
    quota,
    volumes,
)
from ansible_collections.gpumesh.cluster.tests.support.broken_input import assert_endures
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._host.recorded import FIXTURES, create_tree

HERE = Path(__file__).parent / "module_utils"
KEY = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
SMI = "0, NVIDIA H100 80GB HBM3, 0, [N/A], 16, 16, 31\n1, NVIDIA H100 80GB HBM3, 3, Yes, 8, 16, 33\n"
NVLINK = (
    "GPU 0: NVIDIA H100\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA H100\n\t Link 0: 26.562 GB/s\n"
)
KMSG = "3,5000,990001,-;NVRM: Xid (PCI:0000:3d:00): 79, pid=2, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:1A85 0200000A:0016 01 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 20 4 30 10 -1\n"
    "   1: 00000000000000000000000001000000:1A85 0000000000000000FFFF00000200000A:0016 01 0:0 0:0 0 0 0 4243 1 0\n"
)
CERTIFICATE = """\
/f:
        Type: ssh-ed25519-cert-v01@openssh.com user certificate
        Public key: ED25519-CERT SHA256:a
        Signing CA: ED25519 SHA256:b (using ssh-ed25519)
        Key ID: "k"
        Valid: forever
        Principals:
                root
        Critical Options: (none)
"""


def fixtures(folder: str, pattern: str) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted((HERE / folder / "fixtures").glob(pattern)))


def nothing(taken: Any) -> None:
    """For results that need no further proof."""


def judged(taken: Any) -> None:
    assert taken.status in ("pass", "fail", "skipped", "error")
    assert taken.status == "pass" or taken.reason


def of_gpus(text: str) -> None:
    found = gpu.parse_query(text)
    for judge in (gpu.judge_ecc, gpu.judge_pcie, lambda each: gpu.judge_retired(each, text)):
        judged(judge(found))


def of_perftest(text: str) -> None:
    perftest.parse_bandwidth(text)
    perftest.parse_latency(text)
    assert perftest.parse_failure(text)


def of_fstab(text: str) -> None:
    for line in fstab.parse_own_lines(text, "lab").values():
        flags.parse_line_options(line)
        flags.strip_line_flags(line)


def of_projects(text: str) -> None:
    projid, _rule, projects = text.partition("---\n")
    found = quota.ProjectFiles(*(managed_files.CurrentFile(managed_files.FILE, part) for part in (projid, projects)))
    quota.parse_projects(found, "lab")
    quota.choose_number("lab", "data", found)


def of_recovery(text: str) -> None:
    judgement = gpu.judge_recovery(text, 8, 8)
    assert judgement is None or judgement.status == "fail"


def of_unit(text: str) -> None:
    for name in mounts.select_own_units({"a.mount": text}, "lab"):
        mounts.parse_mount_point(name)
    flags.strip_unit_flags(text)


def of_mounts(text: str) -> None:
    mount_table.parse_mountinfo(text)
    host.find_user_directories(mount_table.parse_mountinfo(text), "/nowhere")
    host.find_filesystem_type("/mnt/a", host.parse_filesystem_types(text), True)
    volumes.require_mount(mount_table.parse_mountinfo(text), "/mnt/a")


def of_services(text: str) -> None:
    for unit, properties in drift.parse_units(text).items():
        drift.describe_service_problems(unit, properties, ["/etc/passwd"])


TEXTS: list[tuple[str, Callable[[str], Any], tuple[str, ...], Callable[[Any], Any]]] = [
    ("nvidia-smi", of_gpus, (SMI,), nothing),
    ("remapped rows", lambda text: gpu.judge_retired([], text), ("00000000:1B:00.0, 1, 0\n",), judged),
    ("recovery", of_recovery, ("1, Reset\n",), nothing),
    ("nvlink", gpu.judge_nvlink, (NVLINK,), judged),
    ("kernel log", gpu.judge_xid, (KMSG,), judged),
    (
        "dcgm",
        gpu.judge_dcgm,
        (
            json.dumps(
                {
                    "DCGM GPU Diagnostic": {
                        "test_categories": [
                            {
                                "category": "Hardware",
                                "tests": [
                                    {
                                        "name": "Memory",
                                        "results": [{"gpu_ids": "0", "status": "Fail", "warnings": [{"warning": "w"}]}],
                                    }
                                ],
                            }
                        ]
                    }
                }
            ),
        ),
        judged,
    ),
    (
        "swap",
        lambda text: host.judge_swap(text, 1.0),
        ("Filename\tType\tSize\tUsed\tPriority\n/x\tfile\t9\t8\t-2\n",),
        judged,
    ),
    ("handshakes", handshakes.parse_handshakes, (f"{KEY}\t1790000000\n",), nothing),
    ("allowed IPs", handshakes.parse_addresses, (f"{KEY}\t10.98.0.2/32 10.98.0.3/32\n",), nothing),
    ("comments", shared_faults.parse_comments, ("NodeName=n1 Arch=x86_64 Comment=gpumesh: health.gpu_ecc\n",), nothing),
    ("counts", shared_faults.parse_counts, ("NodeName=n1 Extra=gpumesh-faults:1764423560:3:health.disk=2\n",), nothing),
    ("perftest", of_perftest, fixtures("_checks/reachability", "perftest/*.txt"), nothing),
    ("iperf3", runner.parse_iperf3, ('{"end": {"sum_received": {"bits_per_second": 1e9}}}',), nothing),
    (
        "routes",
        lambda text: routes.parse_routes(["10.0.0.2", "fd00::2"], text, ""),
        ('[{"dst":"10.0.0.2","dev":"eth0","prefsrc":"10.0.0.1","via":{"family":"inet6","host":"fe80::1"}}]\n[]\n',),
        nothing,
    ),
    (
        "errors of routes",
        lambda text: routes.parse_routes(["10.0.0.2"], "", text),
        ("RTNETLINK answers: Network is unreachable\nCommand failed -:1\n",),
        nothing,
    ),
    ("range of ports", ports.parse_range, ("32768-60999",), nothing),
    (
        "question",
        lambda text: leased_process.parse_request(text.encode("utf-8", "replace")),
        ("stop 4242 777",),
        nothing,
    ),
    ("lease", lease.parse_process, ("4242 777",), nothing),
    ("process", lease._parse_stat, ("42 (a) b) S 1 " + " ".join(map(str, range(40))),), nothing),
    ("version of Slurm", slurm_host.parse_version, ("slurm-wlm 24.11.5", "slurm 22.05.8-x"), nothing),
    (
        "control groups",
        lambda text: slurm_host.parse_cgroups(text, text, True),
        ("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n",),
        nothing,
    ),
    ("model of a GPU", slurm_host.format_gres_type, ("NVIDIA H100 80GB HBM3",), nothing),
    ("nodes", show.parse_nodes_text, fixtures("_layers/slurm", "*.node.txt"), nothing),
    ("jobs", show.parse_jobs_text, fixtures("_layers/slurm", "*.job.txt"), nothing),
    ("partitions", show.parse_partitions_text, fixtures("_layers/slurm", "*.partition.txt"), nothing),
    ("state of a node", lambda text: show.parse_node_state(text.split("+")), ("IDLE+DRAIN", "mixed-"), nothing),
    ("minutes", show.parse_time_limit, ("1-02:30:00", "UNLIMITED"), nothing),
    ("accounts", lambda text: accounts.parse_table(text, ["a", "b"]), ("x|y\nz|w",), nothing),
    ("slurm.conf", conf.parse_settings, ("ClusterName=lab\nNodeName=n[1-3] CPUs=2 # x\nInclude /etc/x\n",), nothing),
    ("slurmdbd", database.extract_error, ("slurmdbd: error: Access denied\n",), nothing),
    (
        "ping of a tailnet",
        tailscale.parse_ping,
        ("pong from n2 (100.64.0.2) via 198.51.100.7:41641 in 5ms\n",),
        nothing,
    ),
    ("wg dump", wireguard.parse_dump, fixtures("_layers/mesh", "wg_dump.txt"), nothing),
    (
        "wg-quick",
        wireguard.parse_conf,
        (f"[Interface]\nListenPort = 1\n[Peer]\n# Machine = n2\nPublicKey = {KEY}\nEndpoint = a:1\n",),
        nothing,
    ),
    (
        "mountinfo",
        of_mounts,
        ("36 35 98:0 /a /mnt rw,noatime shared:1 - ext3 /dev/root rw\n37 36 0:9 / /mnt/a rw - nfs4 n1:/x rw\n",),
        nothing,
    ),
    (
        "mounts",
        lambda text: volume_users.select_mounted(text, ["/mnt/a b"]),
        ("n1:/srv/two /mnt/a\\040b nfs4 rw 0 0\n",),
        nothing,
    ),
    ("sockets", processes.parse_tcp_sockets, (TCP,), nothing),
    (
        "units",
        of_services,
        ("Id=a.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=1\n\nId=b.service\n",),
        nothing,
    ),
    ("unit", service.parse_unit_properties, ("LoadState=loaded\nActiveState=active\n",), nothing),
    (
        "supervisord",
        lambda text: (service.parse_status(text), service.parse_pid(text)),
        ("slurmd   RUNNING   pid 12, uptime 0:00:12\n",),
        nothing,
    ),
    (
        "fstab",
        of_fstab,
        ("# BEGIN volumes of gpumesh cluster lab\na /b nfs4 rw,nosuid 0 0\n# END volumes of gpumesh cluster lab\n",),
        nothing,
    ),
    (
        "mount unit",
        of_unit,
        ("[Unit]\nDescription=Volume data of gpumesh cluster lab\n[Mount]\nWhere=/data\nOptions=rw,nosuid\n",),
        nothing,
    ),
    (
        "projects",
        of_projects,
        ("gpumesh.lab.data:1500000000\nother:7\n---\n1500000000:/srv/data\n7:/x\n",),
        nothing,
    ),
    ("quotas", quota.parse_usage, fixtures("_layers/storage", "xfs_quota/*.txt"), nothing),
    (
        "block",
        lambda text: managed_files.find_block("/f", text, "# {mark} ours"),
        ("x\n# BEGIN ours\ny\n# END ours\n",),
        nothing,
    ),
    ("collectives", collective.parse_text, fixtures("_checks/collective", "*.txt"), nothing),
    (
        "certificate",
        ssh_host.parse_certificate,
        (CERTIFICATE,),
        nothing,
    ),
    (
        "sshd",
        ssh_server.parse_sshd_settings,
        ("pubkeyauthentication yes\npermitrootlogin no\nhostkey /etc/ssh/k\n",),
        nothing,
    ),
    (
        "hosts",
        lambda text: hostname.assess_resolution("n1", text, ["127.0.1.1"]),
        ("127.0.1.1 n1 n1.x # ours\n",),
        nothing,
    ),
    ("state of a port", rdma.parse_state, ("4: ACTIVE",), nothing),
    ("rate of a port", rdma.parse_rate, ("200 Gb/sec (4X HDR)",), nothing),
    ("speed", lambda text: kinds.parse_speed(text, "ethernet", True), ("10000", "-1"), nothing),
    ("owners", claims.parse_claims, (claims.render_claims({"munge": claims.Owner("lab", "0" * 32)}),), nothing),
]


@pytest.mark.parametrize(("name", "take", "good", "proves"), TEXTS, ids=[entry[0] for entry in TEXTS])
def test_a_text(name: str, take: Callable[[str], Any], good: tuple[str, ...], proves: Callable[[Any], Any]) -> None:
    assert good, f"nothing to break for {name}"
    assert_endures(take, good, (GpumeshError,), proves)


@pytest.mark.parametrize(("name", "take", "good", "proves"), TEXTS, ids=[entry[0] for entry in TEXTS])
def test_numbers_that_are_none(
    name: str, take: Callable[[str], Any], good: tuple[str, ...], proves: Callable[[Any], Any]
) -> None:
    """Python considers all of them digits, but cannot convert them to numbers."""
    for text in good[:4]:
        for number in re.finditer(r"[0-9]+", text):
            for wrong in ("9" * 5000, "\u00b2", "\u0663"):
                told = text[: number.start()] + wrong + text[number.end() :]
                with contextlib.suppress(GpumeshError):
                    proves(take(told))


def of_tailnet(server: str | None, text: str) -> None:
    try:
        answer = parse_json(text)
    except ValueError:
        return
    if isinstance(answer, dict):
        tailnet_api.parse_devices(tailnet_api.find_api(server), answer)


def of_frame(text: str) -> None:
    message = protocol.parse_body(text.encode("utf-8", "surrogatepass"))
    for read in (
        lambda: protocol.read_text_field(message, "machine"),
        lambda: protocol.read_integer_field(message, "size", 100),
        lambda: protocol.read_time_field(message, "sent"),
    ):
        with contextlib.suppress(GpumeshError):
            read()


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
    (
        "devices of a tailnet",
        lambda text: of_tailnet(None, text),
        {"devices": [{"nodeId": "1", "name": "n1.a.ts.net", "addresses": ["100.64.0.1"], "tags": ["tag:a"]}]},
    ),
    (
        "devices of Headscale",
        lambda text: of_tailnet("https://a", text),
        {"nodes": [{"id": "1", "givenName": "n1", "ipAddresses": ["100.64.0.1"], "tags": ["tag:a"]}]},
    ),
    (
        "word of a rotation",
        lambda text: rotation.parse_message(text.encode("utf-8", "replace")),
        {"step": "a", "key": KEY},
    ),
    ("recorded nodes", show.parse_nodes_json, json.loads(fixtures("_layers/slurm", "*.node.json")[0])),
    ("recorded jobs", show.parse_jobs_json, json.loads(fixtures("_layers/slurm", "*.job.json")[0])),
    ("recorded link", wireguard.parse_link, json.loads(fixtures("_layers/mesh", "ip_address_userspace.json")[0])),
    ("frame", of_frame, {"machine": "n1", "echo": "a", "size": 5, "sent": 1.5}),
]


@pytest.mark.parametrize(("name", "take", "good"), JSONS, ids=[entry[0] for entry in JSONS])
def test_json(name: str, take: Callable[[str], Any], good: Any) -> None:
    # Damaged as a document, which stays JSON, and as a text, which usually does not.
    def given(one: Any) -> Any:
        return take(one if isinstance(one, str) else json.dumps(one))

    assert_endures(given, (good, json.dumps(good)), (GpumeshError,))


def test_datagrams_and_frames_of_a_network() -> None:
    token = "t" * 64
    sent = protocol.pack_datagram(token, protocol.Datagram(protocol.REQUEST_KIND, b"12345678", 1, 100), 72)
    reply = struct.pack("!6s6sH", b"a" * 6, b"b" * 6, 0x0806) + struct.pack(
        "!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 2, b"b" * 6, b"\x0a\0\0\1", b"a" * 6, b"\x0a\0\0\2"
    )

    def take(text: str) -> None:
        data = text.encode("latin-1", "replace")
        arp.parse_reply(data)
        protocol.parse_datagram(token, data)

    assert_endures(take, (sent.decode("latin-1"),), (GpumeshError,))
    assert_endures(lambda text: arp.parse_reply(text.encode("latin-1", "replace")), (reply.decode("latin-1"),), ())


class Told(Tree):
    """The files of a recorded host, with other contents."""

    def __init__(self, root: str, texts: Mapping[str, Any]) -> None:
        super().__init__(root)
        self._texts = texts

    def read(self, *parts: str) -> str | None:
        place = os.path.relpath(os.path.realpath(self.path(*parts)), self._root_directory)
        text = self._texts.get(place)
        return text.strip() if isinstance(text, str) else None


@pytest.mark.parametrize("case", ["infiniband_ipoib", "cloud_google_tcpx"])
def test_files_of_the_kernel(tmp_path: Path, case: str) -> None:
    root = str(tmp_path)
    create_tree(case, tmp_path)
    recorded = json.loads((FIXTURES / case / "tree.json").read_text(encoding="utf-8"))
    texts = {name: text for name, text in recorded.items() if isinstance(text, str)}
    texts["proc/sys/net/ipv4/ip_local_port_range"] = "32768\t60999"

    def take(told: Any) -> None:
        tree = Told(root, told if isinstance(told, dict) else {})
        found = rdma.read_ports(tree)
        judged(host.judge_rdma(found, None))
        perftest.choose_endpoint(found, "ib0", lambda program: program)
        gpus.read_gpus(tree, tree.list_pci_devices())
        kernel.read_local_ports(tree)

    assert_endures(take, (texts,), (GpumeshError,), try_divisor=10)

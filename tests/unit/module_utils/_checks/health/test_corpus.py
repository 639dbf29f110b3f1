# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many faults the checks find in outputs that others have published, and how many false alarms they raise.

The entries are in ``corpus``, one file for each kind of input, and the ends of training runs in the directory of their
own test. Each goes through the same code as on a node, with the results of the commands given. An entry with ``fault``
comes from a machine with this kind of fault; any other one from a healthy machine, whose programs may fail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective import judge, parse
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import perftest
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RankEnd

CORPUS = Path(__file__).parent / "corpus"
TRAINING_ENDS = Path(__file__).parents[2] / "_programs" / "train" / "ends"

#: Why a kind of fault is not found.
MISSED = {
    "NVLinks not detected at the start of the driver": (
        "health.nvlink reads the state of the links, and finds those that are down."
    ),
    "halted processor of an NVSwitch": (
        "The driver does not say that it is fatal. Links that go down are found, and SXids that say that they are fatal."
    ),
    "GPU system processor does not respond": (
        "The driver logs such a timeout as Xid 119, which is found. The report has only the lines before it."
    ),
    "management unit of an AMD GPU does not answer": (
        "The next command may work again. Only a reset that fails, which is found, shows that the GPU cannot be used."
    ),
    "GPUs taken by another driver": "health.gpu_count finds that these GPUs have no device files.",
    "machine check that stops the kernel": (
        "The log starts again with the next boot. Slurm notices a node that no longer responds."
    ),
    "firmware of an RDMA adapter does not answer": (
        "No check reads the kernel's messages about adapters: health.rdma judges the ports that they have."
    ),
    "RDMA adapter that the driver cannot start": (
        "It has no ports. health.rdma finds that if it was the only one, and the record says that the host has RDMA."
    ),
    "too little power for an RDMA adapter": "It is a warning: health.rdma judges whether the ports are active and fast.",
    "overheated transceiver": "It is a warning: health.rdma judges whether the ports are active and fast.",
    "failed local disk": (
        "No check reads the kernel's messages about disks, since it is not known which ones jobs use. A run that stops "
        "with such a message excludes its node."
    ),
    "processor stuck in the kernel": "It may be over after seconds. Slurm notices a node that no longer responds.",
    "kernel oops": "Most affect only the program that caused them. Slurm notices a node that no longer responds.",
    "assertion that a GPU requires a reset": (
        "Programs, too, can cause failed assertions. nvidia-smi says that the GPU requires a reset, which is found."
    ),
}


#: Stands for whichever check finds a fault.
ANY_CHECK = "any check"


class Entry(NamedTuple):
    """One output. ``expect``: the status of each check, or the result of another judgement; ANY_CHECK if none fits."""

    kind: str
    name: str
    source: str
    fault: str | None
    expect: Mapping[str, str]
    text: str
    options: Mapping[str, Any]


def _join_tails(end: Mapping[str, Any]) -> str:
    return "\n".join(rank["tail"] for rank in end["ranks"])


def _read_corpus() -> list[Entry]:
    entries = []
    for path in sorted(CORPUS.glob("*.yml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries += [
            Entry(
                document["input"],
                entry["name"],
                entry["source"],
                entry.get("fault"),
                entry["expect"],
                entry["text"] if "text" in entry else _join_tails(entry),
                {**document, **entry},
            )
            for entry in document["entries"]
        ]
    return entries


def _read_training_ends() -> list[Entry]:
    """The published ends of runs. A node is excluded from the next attempt if its hardware is at fault."""
    entries = []
    for path in sorted(TRAINING_ENDS.glob("*.yml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries += [
            Entry(
                "training run",
                f"{document['kind']}: {end['name']}",
                end["source"],
                f"training run: {document['kind']}" if end["hardware"] else None,
                {"node excluded": "fail" if end["hardware"] else "pass"},
                _join_tails(end),
                end,
            )
            for end in document["ends"]
            if end["source"].startswith("https://") and "living" not in end
        ]
    return entries


ENTRIES = _read_corpus() + _read_training_ends()

Files = Mapping[str, str]
Answer = Callable[[Sequence[str]], CommandResult]


def _run_checks(
    top: Path, names: Sequence[str], expected: ExpectedState, files: Files, answer: Answer | None = None
) -> dict[str, str]:
    """The status of each check on a host with these files, whose commands give these answers."""
    for path, content in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(content, encoding="utf-8")
    context = run.CheckContext(
        expected,
        Tree(str(top)),
        lambda argv, **_options: answer(argv) if answer else CommandResult(0, "", ""),
        lambda program: f"/usr/bin/{program}" if answer else None,
    )
    return {result["id"]: result["status"] for result in run.run_selected_checks(context, "n1", names)}


def _nvidia_files(gpu_count: int, has_switch: bool = False) -> dict[str, str]:
    names = [f"dev/nvidia{index}" for index in range(gpu_count)]
    return dict.fromkeys(["proc/driver/nvidia/version", *names, *(["dev/nvidia-nvswitch0"] if has_switch else [])], "")


def _judge_kernel_log(entry: Entry, top: Path) -> dict[str, str]:
    is_amd = entry.options.get("gpu") == "amd"
    files = {"dev/kfd": "", "dev/dri/renderD128": ""} if is_amd else _nvidia_files(1)
    records = (f"4,{number},{number},-;{line}\n" for number, line in enumerate(entry.text.splitlines()))
    names = ["gpu_xid", "pcie_errors", "memory_errors"]
    return _run_checks(top, names, ExpectedState(), {**files, "dev/kmsg": "".join(records)})


def _parse_sections(text: str) -> list[dict[str, str]]:
    """The fields of each GPU in nvidia-smi -q, in lower case, by their path such as ``pci/gpu link info``."""
    gpus: list[dict[str, str]] = []
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        indent, (name, colon, value) = len(line) - len(line.lstrip()), line.strip().partition(" :")
        if not indent:
            gpus.append({"address": name.partition(" ")[2]})
        parents = [parent for parent in parents if parent[0] < indent]
        path = "/".join([*(parent[1] for parent in parents), name.strip().lower()])
        if colon:
            gpus[-1][path] = value.strip()
        parents.append((indent, name.strip().lower() if indent else ""))
    return [{path.lstrip("/"): value for path, value in fields.items()} for fields in gpus]


def _query_row(index: int, fields: Mapping[str, str]) -> str:
    """The row of a GPU as nvidia-smi prints it for QUERY_COMMAND."""
    uncorrectable = [
        int(value)
        for path, value in fields.items()
        if path.startswith("ecc errors/volatile/") and "uncorrectable" in path and value.isdigit()
    ]
    pending = [value for path, value in fields.items() if path.startswith("retired pages/pending") and value != "N/A"]
    width = "pci/gpu link info/link width/"
    values = [
        str(index),
        fields.get("product name", "NVIDIA GPU"),
        str(sum(uncorrectable)) if uncorrectable else "[N/A]",
        pending[0] if pending else "[N/A]",
        fields.get(f"{width}current", "[N/A]").rstrip("x"),
        fields.get(f"{width}max", "[N/A]").rstrip("x"),
        fields.get("temperature/gpu current temp", "[N/A]").rstrip(" C"),
    ]
    return ", ".join(values)


def _judge_query(entry: Entry, top: Path) -> dict[str, str]:
    gpus = _parse_sections(entry.text)
    rows = [
        ", ".join(
            [fields["address"]]
            + [fields.get(f"remapped rows/{name}", "[N/A]") for name in ("pending", "remapping failure occurred")]
        )
        for fields in gpus
    ]
    answers = {
        gpu.QUERY_COMMAND: "\n".join(_query_row(index, fields) for index, fields in enumerate(gpus)),
        gpu.REMAP_COMMAND: "\n".join(rows),
        gpu.RECOVERY_COMMAND: "\n".join(
            f"{index}, {fields.get('gpu recovery action', '[N/A]')}" for index, fields in enumerate(gpus)
        ),
        gpu.DETAILS_COMMAND: entry.text,
        gpu.NVLINK_COMMAND: "\n".join(
            f"GPU {index}: {fields.get('product name', 'NVIDIA GPU')} (UUID: GPU-1)"
            for index, fields in enumerate(gpus)
        ),
        gpu.MIG_COMMAND: "",
        ("systemctl", "is-active", "nvidia-fabricmanager"): entry.options.get("service", "active"),
    }
    names = ["gpu_count", "gpu_ecc", "gpu_retired", "pcie", "fabric_manager", "gpu_clocks", "pcie_speed"]
    files = _nvidia_files(len(gpus), entry.options.get("nvswitch", False))
    return _run_checks(
        top, names, ExpectedState(gpus=len(gpus)), files, lambda argv: CommandResult(0, answers[tuple(argv)], "")
    )


def _judge_remapped_rows(entry: Entry, top: Path) -> dict[str, str]:
    answers = {gpu.QUERY_COMMAND: _query_row(0, {}), gpu.REMAP_COMMAND: entry.text}
    return _run_checks(
        top, ["gpu_retired"], ExpectedState(), _nvidia_files(1), lambda argv: CommandResult(0, answers[tuple(argv)], "")
    )


def _judge_recovery(entry: Entry, top: Path) -> dict[str, str]:
    rows = [_query_row(index, {}) for index in range(len(entry.text.splitlines()))]
    answers = {gpu.QUERY_COMMAND: "\n".join(rows), gpu.RECOVERY_COMMAND: entry.text}
    return _run_checks(
        top,
        ["gpu_count"],
        ExpectedState(gpus=len(rows)),
        _nvidia_files(len(rows)),
        lambda argv: CommandResult(entry.options.get("status", 0), answers[tuple(argv)], ""),
    )


def _judge_failure(entry: Entry, top: Path) -> dict[str, str]:
    failure = CommandResult(entry.options["status"], entry.text, "")
    return _run_checks(top, ["gpu_count"], ExpectedState(gpus=1), _nvidia_files(1), lambda _argv: failure)


def _judge_nvlink(entry: Entry, top: Path) -> dict[str, str]:
    answers = {gpu.NVLINK_COMMAND: entry.text, gpu.MIG_COMMAND: "0, Disabled\n"}
    files = _nvidia_files(1, entry.options.get("nvswitch", False))
    return _run_checks(top, ["nvlink"], ExpectedState(), files, lambda argv: CommandResult(0, answers[tuple(argv)], ""))


def _judge_dcgm(entry: Entry, top: Path) -> dict[str, str]:
    result = CommandResult(0, entry.text, "")
    return _run_checks(top, ["dcgm"], ExpectedState(dcgm_level=1), _nvidia_files(1), lambda _argv: result)


def _parse_ports(text: str) -> list[dict[str, str]]:
    """The fields of each port that ibstat, ibstatus or rdma link shows."""
    ports: list[dict[str, str]] = []
    for line in text.splitlines():
        head = re.match(r"(?:CA|Infiniband device) '(?P<name>\w+)'", line)
        link = re.match(r"link (?P<name>\w+)/\d+ .*\bstate (?P<state>\w+) physical_state (?P<physical>\w+)", line)
        field = re.match(r"\s+(?P<name>[\w ]+):\s*(?P<value>.*)", line)
        if head:
            ports.append({"name": head.group("name")})
        elif link:
            layer = "Ethernet" if " netdev " in line else "InfiniBand"
            physical_state = link.group("physical").replace("_", "")
            state = {"name": link.group("name"), "state": link.group("state"), "physical state": physical_state}
            ports.append({**state, "link layer": layer})
        elif field and ports:
            name = field.group("name").strip().lower().replace("_", " ").replace("phys state", "physical state")
            ports[-1].setdefault(name, field.group("value"))
    return ports


def _judge_ports(entry: Entry, top: Path) -> dict[str, str]:
    files: dict[str, str] = {}
    cards: dict[str, int] = {}
    for port in _parse_ports(entry.text):
        # The ports of a card are functions of one device.
        card = cards.setdefault(port.get("system image guid", port["name"]), len(cards) + 1)
        function = sum(f"0000:{card:02x}:00." in path for path in files if path.endswith("/device"))
        device = top / f"sys/devices/pci0000:00/0000:{card:02x}:00.{function}"
        device.mkdir(parents=True)
        (device / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
        class_directory = f"sys/class/infiniband/{port['name']}"
        (top / class_directory).mkdir(parents=True)
        (top / class_directory / "device").symlink_to(device)
        files[f"sys/bus/pci/devices/{device.name}/vendor"] = "0x15b3\n"
        files[f"sys/bus/pci/devices/{device.name}/device"] = port.get("ca type", "")
        rate = port.get("rate", "")
        contents = {
            "state": port["state"].upper(),
            "phys_state": port["physical state"],
            "link_layer": port["link layer"],
            "rate": f"{rate} Gb/sec" if rate.isdigit() else rate,
        }
        files.update({f"{class_directory}/ports/1/{name}": content for name, content in contents.items()})
    return _run_checks(top, ["rdma"], ExpectedState(), files)


def _judge_ras(entry: Entry, top: Path) -> dict[str, str]:
    files = {"dev/kfd": ""}
    (top / "sys/class/drm").mkdir(parents=True)
    for node, address in {"renderD128": "0000:05:00.0", "renderD129": "0000:9d:00.0"}.items():
        device = f"sys/devices/pci0000:00/{address}"
        files |= {f"dev/dri/{node}": "", f"{device}/vendor": "0x1002\n", f"{device}/drm/{node}/uevent": ""}
        (top / device / "drm" / node).mkdir(parents=True)
        (top / device / "drm" / node / "device").symlink_to("../..")
        (top / "sys/class/drm" / node).symlink_to(f"../../devices/pci0000:00/{address}/drm/{node}")
    for name, content in re.findall(r"^==> (\w+) <==\n((?:(?!==>).*\n)*)", entry.text, re.MULTILINE):
        files[f"sys/devices/pci0000:00/0000:9d:00.0/ras/{name}"] = content
    return _run_checks(top, ["gpu_ecc", "gpu_retired"], ExpectedState(gpus=2), files)


def _judge_collective(entry: Entry, _top: Path) -> dict[str, str]:
    expected = judge.ExpectedRun(entry.options["ranks"], entry.options["nodes"], 60)
    problem = judge.judge_output(parse.parse_text(entry.text), expected, entry.options["status"], False)
    return {"collective": problem.kind if problem else "pass"}


def _judge_perftest(entry: Entry, _top: Path) -> dict[str, str]:
    rate = perftest.parse_bandwidth(entry.text)
    return {"rdma bandwidth": "pass" if rate is not None else "fail"}


def _judge_training(entry: Entry, _top: Path) -> dict[str, str]:
    cause = attribution.attribute_crash([RankEnd(**rank) for rank in entry.options["ranks"]])
    return {"node excluded": "fail" if cause and cause.hardware else "pass"}


JUDGES: Mapping[str, Callable[[Entry, Path], dict[str, str]]] = {
    "kernel log": _judge_kernel_log,
    "nvidia-smi -q": _judge_query,
    "nvidia-smi --query-remapped-rows": _judge_remapped_rows,
    "nvidia-smi --query-gpu=index,gpu_recovery_action": _judge_recovery,
    "nvidia-smi": _judge_failure,
    "nvidia-smi nvlink --status": _judge_nvlink,
    "dcgmi diag -j": _judge_dcgm,
    "RDMA ports": _judge_ports,
    "amdgpu ras": _judge_ras,
    "collective": _judge_collective,
    "perftest": _judge_perftest,
    "training run": _judge_training,
}
#: Statuses of a check that neither drain a node nor fail a test.
_QUIET = ("pass", "skipped")


def _expected_faults(entry: Entry) -> dict[str, str]:
    return {check: status for check, status in entry.expect.items() if status not in _QUIET}


def _is_found(entry: Entry, statuses: Mapping[str, str]) -> bool:
    if ANY_CHECK in entry.expect:
        return not set(statuses.values()) <= set(_QUIET)
    return all(statuses[check] == status for check, status in _expected_faults(entry).items())


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The statuses of each entry, in the order of ENTRIES."""
    with pytest.MonkeyPatch.context() as patch:
        # The second look at clocks and links sees what the first one has seen.
        patch.setattr(run, "_QUERY_PAUSE", 0)
        return [JUDGES[entry.kind](entry, tmp_path_factory.mktemp("host")) for entry in ENTRIES]


@pytest.mark.parametrize("number", range(len(ENTRIES)), ids=[f"{entry.kind}: {entry.name}" for entry in ENTRIES])
def test_entry(statuses: list[dict[str, str]], number: int) -> None:
    entry, actual = ENTRIES[number], statuses[number]
    if entry.fault in MISSED:
        assert not _is_found(entry, actual), "it is found: take it out of the table of missed faults"
    elif ANY_CHECK in entry.expect:
        assert _is_found(entry, actual)
    else:
        assert {check: actual[check] for check in entry.expect} == entry.expect


def test_faults_are_found_without_false_alarms(
    statuses: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = list(zip(ENTRIES, statuses))
    faulty = [(entry, actual) for entry, actual in pairs if entry.fault]
    healthy = [(entry, actual) for entry, actual in pairs if not entry.fault]
    missed = {entry.fault for entry, actual in faulty if not _is_found(entry, actual)}
    found = sum(_is_found(entry, actual) for entry, actual in faulty)
    false_alarms = [entry.name for entry, actual in healthy if not set(actual.values()) <= set(_QUIET)]
    with capsys.disabled():
        print(
            f"\nfaults found: {found} of {len(faulty)}, false alarms: {len(false_alarms)} of {len(healthy)}; "
            f"kinds of fault: {len({entry.fault for entry, _actual in faulty})}, not found: {len(missed)}"
        )
    assert not false_alarms
    assert missed == set(MISSED)


def test_corpus_is_broad_enough() -> None:
    assert len(ENTRIES) >= 200
    assert len({entry.fault for entry in ENTRIES if entry.fault}) >= 40
    assert sum(entry.fault is None for entry in ENTRIES) >= 80
    assert all(bool(_expected_faults(entry)) == bool(entry.fault) for entry in ENTRIES)


def test_no_two_entries_differ_only_in_numbers() -> None:
    number = re.compile(r"\b(?:0x)?[0-9a-fA-F]*[0-9][0-9a-fA-F]*\b")
    alike = Counter((entry.kind, number.sub("0", entry.text)) for entry in ENTRIES)
    assert [text for text, count in alike.items() if count > 1] == []


def test_each_entry_has_its_source() -> None:
    sources = [entry.source for entry in ENTRIES]
    assert [source for source in sources if not re.match(r"(?:constructed from )?https://[\w.-]+/\S+", source)] == []
    assert sum(source.startswith("constructed") for source in sources) <= len(sources) / 10

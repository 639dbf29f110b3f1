# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpumesh-trace, from the directory with traces to its files: the page, the timeline, the figures, and what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from traces import FIRST_STEP, TraceScenario

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import load, program, timeline

TOY = Path(__file__).parent / "fixtures" / "debian-13"
SETTINGS = {"volumes": [], "run_dir": "", "stage_dir": "", "library": ""}


def trace(*arguments: object) -> int:
    return program.main(SETTINGS, [str(argument) for argument in arguments])


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.targets: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect", "line", "path", "circle", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_is_self_contained_and_names_slow_ranks_and_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links = {rank: 92.0 if rank == 1 else 9400.0 for rank in range(4)}
    TraceScenario(extra_other_ms={2: 30.0}, link_rates=links).write(tmp_path)
    assert trace(tmp_path) == 0
    said = capsys.readouterr().out
    assert "  30.0 ms of which are lost because rank 2 on n3 is slower than the others\n" in said
    assert "  slow link: rank 1 → rank 2, 92.0 Mbit/s, round trip 0.20 ms\n" in said
    found = page(tmp_path / "report.html")
    for words in (
        "A step takes 102.0 ms, 30.0 ms of which are lost because rank 2 on n3 is slower than the others",
        "Rank 2 on n3 slows down the others",
        "other work (Python, data loading) takes 30.0 ms longer",
        "The link rank 1 on n2 → rank 2 on n3 is slow",
        "The others carry about 9.4 Gbit/s",
        "No collective ends on a rank before all others have begun it",
    ):
        assert words in found.text, words
    assert all(target.startswith("#") for target in found.targets)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report[0]["slowest"]["ranks"] == [2] and len(report[0]["ranks"]) == 4


def test_drawings_have_no_gaps(tmp_path: Path) -> None:
    """However short the activities of a rank are: 2000 kernels and as many gaps in a step of a thousand pixels."""
    TraceScenario(ranks=2, on_gpu=True, detail_count=2000).write(tmp_path)
    assert trace(tmp_path) == 0
    (drawn,) = re.findall(r'id="timeline".*?(<svg.*?</svg>)', (tmp_path / "report.html").read_text(), re.DOTALL)
    pieces = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v", drawn)
    assert len(pieces) > 200
    for top in {piece[1] for piece in pieces}:
        row = sorted((float(x), float(x) + float(width)) for x, y, width in pieces if y == top)
        assert len(row) <= 1000
        assert all(abs(after[0] - before[1]) < 0.25 for before, after in zip(row, row[1:]))


def test_axes_have_titles(tmp_path: Path) -> None:
    TraceScenario(ranks=2).write(tmp_path)
    assert trace(tmp_path) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    titles = re.findall(r'<text class="axis"[^>]*>([^<]*)</text>', page)
    step = re.search(r"All ranks in (step \d+)", page)
    assert step and titles == ["time per step", f"time since the start of {step[1]}"]


def test_names_from_traces_are_escaped(tmp_path: Path) -> None:
    TraceScenario(ranks=2).write(tmp_path, compress=False)
    evil = "<img src=x onerror=alert(1)>&amp;"
    for rank in range(2):
        path = tmp_path / f"rank-{rank}.trace.json"
        path.write_text(path.read_text(encoding="utf-8").replace("aten::linear", evil), encoding="utf-8")
        described = tmp_path / f"rank-{rank}.json"
        described.write_text(described.read_text(encoding="utf-8").replace('"n', '"<b>n'), encoding="utf-8")
        described.write_text(described.read_text(encoding="utf-8").replace("<b>node", "node"), encoding="utf-8")
        described.write_text(described.read_text(encoding="utf-8").replace("<b>nano", "nano"), encoding="utf-8")
    assert trace(tmp_path) == 0
    found = page(tmp_path / "report.html")
    assert evil in found.text and "rank 0 on <b>n1" in found.text


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    TraceScenario(extra_other_ms={2: 30.0}).write(tmp_path / "a")
    TraceScenario().write(tmp_path / "b")
    assert trace(tmp_path / "a", tmp_path / "b", "--output", tmp_path / "both") == 0
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == [
        "report-2.html",
        "report-2.json",
        "timeline-2.json.gz",
        "timeline.json.gz",
    ]
    text = page(tmp_path / "both" / "report-2.html").text
    assert "are in report-2.json" in text
    assert "A step of b takes 29 % less time than a step of a" in text
    assert "102.0 ms → 72.0 ms −29 %" in text and "a: Rank 2 on n3 slows down the others" in text


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (("a/profile/001", "a/profile/012"), ["a (attempt 1)", "a (attempt 12)"]),
        (("x/a/profile/001", "y/a/profile/001"), ["x/a", "y/a"]),
        (("x/a/b", "y/a/b"), ["x/a/b", "y/a/b"]),
        (("a/profile/001", "b"), ["a", "b"]),
        (("a", "a"), ["a", "a"]),
    ],
)
def test_runs_with_the_same_name_get_distinct_titles(
    tmp_path: Path, folders: tuple[str, str], names: list[str]
) -> None:
    written = [TraceScenario(ranks=2).write(tmp_path / folder) for folder in folders]
    assert trace(*written, "--output", tmp_path / "out") == 0
    report = json.loads((tmp_path / "out" / "report-2.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in report] == names
    assert [one["folder"] for one in report] == [str(folder) for folder in written]
    assert f"A step of {names[1]} takes as long as one of {names[0]}" in page(tmp_path / "out" / "report-2.html").text


def events(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def test_all_ranks_are_on_one_time_line(tmp_path: Path) -> None:
    TraceScenario(clock_offsets={1: 5_000.0, 2: -70.0}, extra_compute_ms={1: 30.0}, on_gpu=True).write(tmp_path)
    assert trace(tmp_path) == 0
    found = events(tmp_path / "timeline.json.gz")
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert names == {rank: f"rank {rank} on n{rank + 1}" for rank in range(4)}
    # The start of each step is the end of the previous exchange plus the ranks' own time, the same on all of them.
    for step in range(2, 7):
        begins = [event["ts"] for event in found if event["name"] == f"ProfilerStep#{step}"]
        assert len(begins) == 4 and max(begins) - min(begins) < 200
    threads = {event["args"]["name"] for event in found if event["name"] == "thread_name"}
    assert threads == {"activity", "thread 1", "GPU 0 stream 7", "GPU 0 stream 20"}
    waits = [event for event in found if event["name"] == "waiting for rank 1"]
    assert sorted(event["pid"] for event in waits) == sorted([0, 2, 3] * 5)
    assert sum(event["dur"] for event in waits) == pytest.approx(3 * 5 * 30_000, rel=0.05)
    states = {event["name"] for event in found if event["ph"] == "X" and event["tid"] == 0}
    assert {"computation", "exposed communication", "other"} <= states
    lines = {rank: [event for event in found if (event["pid"], event.get("tid")) == (rank, 0)] for rank in range(4)}
    for line in lines.values():
        done = [event for event in line if event["ph"] == "X"]
        # The states have no gaps except for rounding.
        for before, after in zip(done, done[1:]):
            assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01)


def test_the_longest_events_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 600)
    TraceScenario(detail_count=100).write(tmp_path)
    assert trace(tmp_path) == 0
    written = events(tmp_path / "timeline.json.gz")
    found = [event for event in written if event["ph"] == "X" and event["tid"]]
    assert 400 <= len(found) <= 450 and len(written) <= 600
    assert {event["name"] for event in found} >= {"ProfilerStep#3", "aten::linear", "gloo:all_reduce"}
    assert "are left out of the timeline" in page(tmp_path / "report.html").text


def test_the_event_limit_holds_with_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including those of the first track, which has no gaps. Each rank has about 60, and may have 16."""
    most = 16_384
    monkeypatch.setattr(timeline, "MAX_EVENTS", most)
    TraceScenario(ranks=1_024, jitter_ms=5.0).write(tmp_path)
    assert trace(tmp_path) == 0
    found = events(tmp_path / "timeline.json.gz")
    assert most * 0.7 < len(found) <= most
    line = [event for event in found if (event["pid"], event.get("tid"), event["ph"]) == (700, 0, "X")]
    for before, after in zip(line, line[1:]):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01)
    whole = next(
        share for share in json.loads((tmp_path / "report.json").read_text())[0]["ranks"] if share["rank"] == 700
    )
    assert sum(event["dur"] for event in line) == pytest.approx(sum(whole["steps_ms"]) * 1e3, rel=0.001)


def test_a_foreign_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    runs, own = tmp_path / "runs", tmp_path / "own"
    TraceScenario(ranks=2).write(runs)
    own.write_text("of whoever reads the traces", encoding="ascii")
    for name in ("timeline.json.gz.new", "timeline.json.gz", "report.html", "report.json"):
        (runs / name).symlink_to(own)
    assert trace(runs) == 0
    assert own.read_text(encoding="ascii") == "of whoever reads the traces"
    assert not (runs / "timeline.json.gz").is_symlink() and events(runs / "timeline.json.gz")


def test_traces_of_another_profiler_are_read(tmp_path: Path) -> None:
    for rank in range(3):
        shutil.copy(TOY / f"rank-{rank}.trace.json.gz", tmp_path / f"worker{2 - rank}.pt.trace.json.gz")
    assert trace(tmp_path) == 0
    (report,) = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    # Traces of torch.profiler contain their rank.
    assert (report["slowest"]["ranks"], report["clocks"][1]["method"]) == ([1], "collectives")
    assert report["slowest"]["cost_ms"] == pytest.approx(60, rel=0.05)
    # The output of gpumesh-trace is not read as a trace.
    assert trace(tmp_path) == 0


def mark(folder: Path) -> str:
    """The kind of the mark at the top of the page."""
    found = re.search(r'<h1><span class="mark (\w+)"', (folder / "report.html").read_text(encoding="utf-8"))
    assert found
    return found[1]


def test_a_report_without_warnings_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceScenario().write(tmp_path)
    assert trace(tmp_path) == 0 and mark(tmp_path) == "pass"
    assert "  clocks agree within 0.05 ms\n" in capsys.readouterr().out


def write_doubtful_report(folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> str:
    """Report on a run in which nothing is slow. The terminal, the headline and the findings must contain ``what``.

    Returns what is printed.
    """
    assert trace(folder) == 0
    said, text = capsys.readouterr().out, page(folder / "report.html").text
    assert f"  {what}" in said and f", but {what}" in text and f"{what[0].upper()}{what[1:]}" in text
    assert mark(folder) == "error" and "no rank slows down the others" not in said + text
    return said


def test_ranks_without_a_trace_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceScenario().write(tmp_path, selected_ranks=range(3))
    assert "clocks agree within" in write_doubtful_report(tmp_path, capsys, "1 rank has no trace")
    assert "These are missing: rank 3." in page(tmp_path / "report.html").text
    # The slow one is among them.
    TraceScenario(ranks=8, extra_other_ms={1: 30.0}).write(tmp_path / "b", selected_ranks=range(2, 8))
    write_doubtful_report(tmp_path / "b", capsys, "2 ranks have no trace")


def test_unknown_clocks_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceScenario(clock_probes=False).write(tmp_path, compress=False)
    for path in tmp_path.glob("*.trace.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("gloo:all_reduce", "gloo:send"), encoding="utf-8")
    assert "clocks agree" not in write_doubtful_report(tmp_path, capsys, "the clocks of 3 ranks are unknown")


def test_a_trace_of_an_earlier_recording_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceScenario().write(tmp_path, compress=False)
    path = tmp_path / "rank-2.trace.json"
    earlier = re.sub(
        r"gpumesh clock (\d+)",
        lambda found: f"gpumesh clock {int(found[1]) - 3_600_000_000_000}",
        path.read_text(encoding="utf-8"),
    )
    path.write_text(earlier, encoding="utf-8")
    assert "clocks agree" not in write_doubtful_report(
        tmp_path, capsys, "a collective ends 3599995 ms before a rank begins it"
    )


def test_damaged_events_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TraceScenario().write(tmp_path, compress=False)
    path = tmp_path / "rank-2.trace.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("aten::addmm", 'a "b"', 2), encoding="utf-8")
    write_doubtful_report(tmp_path, capsys, "2 events could not be read")
    (report,) = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["skipped"] == 2


def test_a_single_rank_is_analysed(tmp_path: Path) -> None:
    TraceScenario(ranks=1).write(tmp_path)
    assert trace(tmp_path) == 0
    assert "no rank slows down the others" in page(tmp_path / "report.html").text


def read_refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert trace(*arguments) == 2
    return capsys.readouterr().err


def test_invalid_requests_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is neither a run nor a directory" in read_refusal(capsys, "nano", "--run-dir", tmp_path)
    assert "There is no trace in" in read_refusal(capsys, tmp_path)
    (tmp_path / "rank-0.qdstrm").touch()
    assert "has reports of Nsight Systems" in read_refusal(capsys, tmp_path)
    folder = TraceScenario(ranks=2).write(tmp_path / "a")
    assert "3 runs cannot be compared" in read_refusal(capsys, folder, folder, folder)
    assert "cannot be written" in read_refusal(capsys, folder, "--output", "/proc/x")
    assert "a has no cycle 2 of the profiler. It has 1" in read_refusal(capsys, folder, "--cycle", 2)
    (folder / "rank-1.json").write_text("{}")
    assert "rank-1.json cannot be read" in read_refusal(capsys, folder)
    (folder / "rank-1.json").unlink()
    (folder / "rank-0.trace.json.gz").write_bytes(b"\x1f\x8bno")
    assert "rank-0.trace.json.gz is damaged" in read_refusal(capsys, folder)


def figures(folder: Path) -> dict[str, Any]:
    (found,) = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return dict(found)


@pytest.mark.parametrize("anew", [False, True], ids=["schedule", "profilers"])
def test_the_last_common_cycle_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str], anew: bool) -> None:
    """The job has ended while the last one was written, and the clock of rank 1 is ahead by more than a cycle."""
    for cycle, (slow, only) in enumerate([({0: 30.0}, None), ({1: 30.0}, None), ({}, range(1, 2))]):
        scene = TraceScenario(
            ranks=2, extra_other_ms=slow, clock_offsets={1: 15_000.0}, cycle_number=cycle, restart_step_numbers=anew
        )
        scene.write_foreign(tmp_path / "nano", only)
    for arguments, cycle, slow, missing in (
        ((), 2, [1], []),
        (("--cycle", 1), 1, [0], []),
        (("--cycle", 3), 3, 0, [0]),
    ):
        assert trace(tmp_path / "nano", *arguments) == 0
        name = f"nano (cycle {cycle} of 3)"
        assert capsys.readouterr().out.startswith(f"{name}: ")
        assert name in page(tmp_path / "nano" / "report.html").text
        found = figures(tmp_path / "nano")
        assert (found["name"], found["missing"]) == (name, missing)
        assert (found["slowest"]["ranks"] if slow else found["slowest"]) == (slow or None)
        assert found["steps"] == [(0 if anew else (cycle - 1) * 7) + step for step in range(2, 7)]
    assert "nano has no cycle 4 of the profiler. It has 3" in read_refusal(capsys, tmp_path / "nano", "--cycle", 4)


def test_the_cycles_of_a_program_without_ranks(tmp_path: Path) -> None:
    for cycle in range(2):
        TraceScenario(ranks=1, cycle_number=cycle).write_foreign(tmp_path)
    for path in tmp_path.iterdir():
        text = gzip.decompress(path.read_bytes()).decode()
        path.write_bytes(gzip.compress(text.replace("distributedInfo", "none").encode()))
    assert trace(tmp_path) == 0
    assert figures(tmp_path)["name"].endswith("(cycle 2 of 2)") and len(figures(tmp_path)["ranks"]) == 1


def create_run(folder: Path, *attempts: int) -> Path:
    """The directory of a run with these attempts."""
    for attempt in attempts:
        TraceScenario(ranks=2).write(folder / "profile" / f"{attempt:03}")
    return folder


def test_an_attempt_without_a_profile_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = create_run(tmp_path / "a", 1, 2), create_run(tmp_path / "b", 1, 12)
    before = sorted(tmp_path.rglob("*"))
    for arguments, names in (
        ((one, other, "--attempt", 2), ("Attempt 2 of", str(other), "It has: 1, 12.")),
        ((one, "--attempt", 8), ("Attempt 8 of", str(one), "It has: 1, 2.")),
        ((one, "--attempt", 8, "--output", tmp_path / "x"), ("Attempt 8 of",)),
        ((one, tmp_path, "--output", tmp_path / "x"), ("There is no trace in",)),
    ):
        assert trace(*arguments) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert all(name in said.err for name in names), said.err
        assert sorted(tmp_path.rglob("*")) == before
    assert trace(one, other, "--output", tmp_path / "x") == 0


def record(folder: Path, ranks: int, recording: str, only: range | None = None) -> None:
    """Write the traces of a recording, over those of an earlier one."""
    TraceScenario(ranks=ranks).write(folder, selected_ranks=only)
    for rank in only or range(ranks):
        path = folder / f"rank-{rank}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "recording": recording}))


def test_traces_of_different_recordings_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "other", 4, "a")
    record(tmp_path / "other", 4, "b", range(3))
    said = read_refusal(capsys, tmp_path / "other")
    assert "different recordings: rank-0.json, rank-1.json, rank-2.json; rank-3.json." in said
    record(tmp_path / "fewer", 4, "")
    record(tmp_path / "fewer", 2, "")
    assert "rank-0.json, rank-1.json; rank-2.json, rank-3.json." in read_refusal(capsys, tmp_path / "fewer")
    # A rank that could not ask for it, and files of earlier versions.
    record(tmp_path / "unknown", 4, "a")
    record(tmp_path / "unknown", 4, "", range(1, 2))
    assert trace(tmp_path / "unknown") == 0


@pytest.mark.parametrize(
    "text", ['{"learning_rate": 3e-4}', '{"traceEvents": []}', '[{"ph": "X", "ts": 1, "dur": 0, "name": "a"}]']
)
def test_a_trace_without_events_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    said = read_refusal(capsys, tmp_path)
    assert f"{tmp_path}/config.json has no event" in said and said.count("\n") == 1


def test_a_killed_reader_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel kills a process when memory is used up."""
    TraceScenario(ranks=2).write(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})
    monkeypatch.setattr(load, "_digest", lambda _source: os.kill(os.getpid(), signal.SIGKILL))
    said = read_refusal(capsys, tmp_path)
    assert "was killed" in said and "taskset" in said and said.count("\n") == 1


def test_steps_that_ranks_do_not_share_are_omitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = TraceScenario(ranks=2).write(tmp_path)
    path = folder / "rank-1.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "first": FIRST_STEP + 3}))
    assert trace(folder) == 0
    (report,) = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["steps"] == [FIRST_STEP + 3, FIRST_STEP + 4]
    path.write_text(json.dumps({**described, "first": FIRST_STEP + 30}))
    assert "have no step in common" in read_refusal(capsys, folder)

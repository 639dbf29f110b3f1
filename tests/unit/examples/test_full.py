# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of examples/full that need no PyTorch: the order of the data, the corpus, checkpoints and the picture."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import resource
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FULL = Path(__file__).parents[3] / "examples" / "full"


@pytest.fixture(name="load", autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules import each other as they do where they are run."""
    monkeypatch.syspath_prepend(str(FULL))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in ("data", "checkpoint", "log", "prepare", "plot"):
        sys.modules.pop(name, None)


def module(name: str) -> ModuleType:
    return __import__(name)


@pytest.fixture(name="corpus")
def _corpus(tmp_path: Path) -> Path:
    raw = bytes(number * 7 % 251 for number in range(10_000))
    module("prepare").write(tmp_path / "corpus", raw, 999)
    return tmp_path / "corpus"


@pytest.mark.parametrize("length", [1, 64, 999, 2500])
def test_samples_are_the_corpus_also_across_shards(corpus: Path, length: int) -> None:
    raw = b"".join(path.read_bytes() for path in sorted(corpus.glob("shard-*")))
    assert len(raw) == 10_000
    found = module("data").Corpus(corpus, length)
    assert found.samples == 9_999 // length
    for number in range(0, found.samples, 1 + found.samples // 50):
        assert found.sample(number) == raw[number * length : (number + 1) * length + 1]


@pytest.mark.parametrize("samples", [1, 2, 7, 12, 97, 360])
def test_each_epoch_has_all_samples_once_in_another_order(samples: int) -> None:
    data = module("data")
    epochs = [[data.sample_at(epoch * samples + place, samples) for place in range(samples)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(samples)) for epoch in epochs)
    if samples > 7:
        assert len({tuple(epoch) for epoch in epochs}) == 4
        assert epochs[0] != list(range(samples))


@pytest.mark.parametrize("batch", [1, 5, 24, 48])
@pytest.mark.parametrize("most", [1, 4, 100])
def test_a_batch_is_the_same_for_any_number_of_ranks(batch: int, most: int) -> None:
    data = module("data")
    for ranks in range(1, 9):
        shares = [data.share(1000, batch, rank, ranks, most) for rank in range(ranks)]
        assert Counter(one for parts in shares for part in parts for one in part) == Counter(range(1000, 1000 + batch))
        # They wait for each other in each part.
        assert len({len(parts) for parts in shares}) == 1
        assert all(len(part) <= most for parts in shares for part in parts)


def test_nothing_is_read_twice_or_left_out_when_the_number_of_ranks_changes() -> None:
    data = module("data")
    read, position = [], 0
    for ranks in (3, 3, 2, 1, 4, 3):
        read += [one for rank in range(ranks) for part in data.share(position, 12, rank, ranks, 4) for one in part]
        position += 12
    assert sorted(read) == list(range(72))
    assert data.fingerprint(read, 30) == data.fingerprint(list(range(72)), 30)
    assert data.fingerprint(read[1:], 30) != data.fingerprint(read, 30) != data.fingerprint([*read[1:], read[1]], 30)
    # A float64, in which the ranks add it up, represents it exactly.
    assert data.fingerprint(list(range(4096)), 30) < 2**53


def test_a_damaged_shard_is_found(corpus: Path) -> None:
    data = module("data")
    data.verify(corpus)
    shard = corpus / "shard-00003.bin"
    raw = bytearray(shard.read_bytes())
    raw[7] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(ValueError, match=r"shard-00003.bin is damaged"):
        data.verify(corpus)
    shard.write_bytes(raw[:-1])
    with pytest.raises(ValueError, match="has 998 bytes instead of 999"):
        data.Corpus(corpus, 64)


def test_the_entropy_of_letters(tmp_path: Path) -> None:
    module("prepare").write(tmp_path / "even", bytes(range(256)) * 8, 500)
    assert module("data").letters(tmp_path / "even") == pytest.approx(math.log(256))
    module("prepare").write(tmp_path / "one", b"x" * 100, 500)
    assert module("data").letters(tmp_path / "one") == 0


def test_the_corpus_has_each_text_once(tmp_path: Path) -> None:
    source = tmp_path / "doc"
    (source / "a").mkdir(parents=True)
    text = "a licence\n" * 100
    (source / "a" / "copyright").write_text(text)
    (source / "again").write_text(text)
    (source / "changelog.gz").write_bytes(gzip.compress(b"a change\n" * 100))
    (source / "short").write_text("x")
    (source / "latin").write_bytes(b"\xe9t\xe9" * 1000)
    (source / "link").symlink_to("again")
    argv = [sys.executable, "-B", str(FULL / "prepare.py"), str(tmp_path / "out"), "--source", str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "2 texts, 0.0 MB in 1 shards" in done.stdout
    raw = (tmp_path / "out" / "shard-00000.bin").read_bytes()
    assert sorted(raw.split(b"\0")) == [b"a change\n" * 100, text.encode()]
    again = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert again.returncode and "already exists" in again.stderr


def test_the_last_checkpoints_are_kept_and_the_newest_is_taken(tmp_path: Path) -> None:
    checkpoint = module("checkpoint")
    assert checkpoint.newest(tmp_path) is None
    for step in range(1, 6):
        checkpoint.write(tmp_path, step * 100, b"state %d" % step, 3)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"step-0000000{step}00.checkpoint" for step in (3, 4, 5)
    ]
    assert checkpoint.newest(tmp_path) == (500, b"state 5")


@pytest.mark.parametrize("damage", ["empty", "short", "bit", "head", "list"])
def test_where_the_newest_is_damaged_the_one_before_is_taken(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = module("checkpoint")
    for step in (1, 2):
        checkpoint.write(tmp_path, step, b"state %d" % step, 3)
    path = tmp_path / "step-0000000002.checkpoint"
    raw = path.read_bytes()
    wrong = {"empty": b"", "short": raw[:-1], "bit": raw[:-1] + b"3", "head": raw[5:], "list": b"[]\n" + raw}
    path.write_bytes(wrong[damage])
    assert checkpoint.newest(tmp_path) == (1, b"state 1")
    assert "step-0000000002.checkpoint is left out" in capsys.readouterr().err
    (tmp_path / "step-0000000001.checkpoint").write_bytes(b"")
    with pytest.raises(ValueError, match="none of the 2 checkpoints"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_checkpoint_that_the_volume_does_not_give_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    checkpoint = module("checkpoint")
    for step in (1, 2):
        checkpoint.write(tmp_path, step, b"state %d" % step, 3)
    read, refused = checkpoint.read, {"step-0000000002.checkpoint"}

    def refuse(path: Path) -> bytes:
        if path.name in refused:
            raise OSError(number, os.strerror(number))
        return read(path)  # type: ignore[no-any-return]

    monkeypatch.setattr(checkpoint, "read", refuse)
    assert checkpoint.newest(tmp_path) == (1, b"state 1")
    refused.add("step-0000000001.checkpoint")
    with pytest.raises(ValueError, match="none of the 2 checkpoints"):
        checkpoint.newest(tmp_path)


def test_all_ranks_go_on_from_the_checkpoint_of_rank_0(tmp_path: Path) -> None:
    """A rank whose volume does not show the newest one yet, or shows it damaged, fails, and takes no other."""
    checkpoint = module("checkpoint")
    first, late = tmp_path / "rank-0", tmp_path / "rank-1"
    told: list[int | None] = []

    def broadcast(step: int | None) -> int | None:
        told.append(step)
        return told[0]

    for folder in (first, late):
        folder.mkdir()
        checkpoint.write(folder, 100, b"state 100", 3)
    assert checkpoint.agreed(first, 0, broadcast) == checkpoint.agreed(late, 1, broadcast) == b"state 100"
    checkpoint.write(first, 200, b"state 200", 3)
    told.clear()
    assert checkpoint.agreed(first, 0, broadcast) == b"state 200"
    with pytest.raises(FileNotFoundError):
        checkpoint.agreed(late, 1, broadcast)
    checkpoint.write(late, 200, b"state 200", 3)
    checkpoint.write(late, 300, b"state 300", 3)
    assert checkpoint.agreed(late, 1, broadcast) == b"state 200"
    (late / "step-0000000200.checkpoint").write_bytes(b"")
    with pytest.raises(ValueError, match="Expecting value"):
        checkpoint.agreed(late, 1, broadcast)
    told[:] = [None]
    assert checkpoint.agreed(late, 1, broadcast) is None


def test_half_a_checkpoint_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = module("checkpoint")
    checkpoint.write(tmp_path, 1, b"state 1", 1)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(tmp_path, 2, b"state 2", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.checkpoint"]
    # The remains of a process that was killed during a write.
    (tmp_path / "step-0000000003.new").write_bytes(b"{")
    assert checkpoint.newest(tmp_path) == (1, b"state 1")
    monkeypatch.undo()
    checkpoint.write(tmp_path, 4, b"state 4", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000004.checkpoint"]


def test_the_training_does_not_wait_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = module("checkpoint")
    goes_on = threading.Event()
    write = checkpoint.write

    def slow(*arguments: object) -> None:
        assert goes_on.wait(240)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write", slow)
    writer = checkpoint.Writer(tmp_path, 3)
    writer.save(1, b"state 1")
    assert writer.saved is None
    goes_on.set()
    writer.finish(240)
    assert writer.saved == 1 and checkpoint.newest(tmp_path) == (1, b"state 1")


def test_a_full_volume_is_tried_again_and_the_last_one_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = module("checkpoint")
    write, full = checkpoint.write, threading.Event()
    full.set()

    def maybe(*arguments: object) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write", maybe)
    monkeypatch.setattr(checkpoint, "_SPACING", 0.05)
    writer = checkpoint.Writer(tmp_path, 3)
    writer.save(1, b"state 1")
    writer.save(2, b"state 2")
    assert writer.saved is None
    full.clear()
    writer.finish(240)
    assert writer.saved == 2
    full.set()
    writer.save(3, b"state 3")
    began = time.monotonic()
    with pytest.raises(OSError, match="No space left"):
        writer.finish(0.2)
    assert time.monotonic() - began < 120
    assert checkpoint.newest(tmp_path) == (2, b"state 2")


def test_the_picture_has_the_loss_and_what_has_ended_attempts(tmp_path: Path) -> None:
    attempts = [
        {"number": 1, "nodes": ["n1", "n2"], "first": 1, "last": 50, "end": 10.0,
         "cause": {"kind": "crash", "rank": 1, "node": "n2", "detail": "SIGKILL & more"}},
        {"number": 2, "nodes": ["n1"], "first": 41, "last": 100, "end": 20.0,
         "cause": {"kind": "finished", "rank": None, "node": "", "detail": ""}},
    ]  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps({"name": "gpt", "attempts": attempts}))
    made = [(1, step) for step in range(1, 51)] + [(2, step) for step in range(41, 101)]
    lines = [json.dumps({"attempt": attempt, "step": step, "loss": 6 / step}) for attempt, step in made]
    # The incomplete last line of a killed rank.
    (tmp_path / "loss.jsonl").write_text("\n".join(lines[:50]) + '\n{"step": 5' + "\n".join(["", *lines[50:]]) + "\n")
    output = tmp_path / "loss.svg"
    subprocess.run([sys.executable, "-B", str(FULL / "plot.py"), str(tmp_path), str(output)], check=True)
    root = ET.fromstring(output.read_text(encoding="utf-8"))
    names = Counter(element.tag.rpartition("}")[2] for element in root.iter())
    assert names["polyline"] == 2
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    assert [text for text in texts if "crash" in text] == ["attempt 1: crash, rank 1 on n2"]
    assert {"training step", "training loss"} <= set(texts)
    (style,) = (element.text or "" for element in root.iter() if element.tag.endswith("style"))
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert re.findall(r"\.line\d", light) == re.findall(r"\.line\d", dark) != []


def test_a_line_that_the_volume_took_half_of_is_completed_later(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = module("log").Log(tmp_path / "loss.jsonl")
    try:
        # Like a full volume, it accepts a part of what is written, and then nothing.
        resource.setrlimit(resource.RLIMIT_FSIZE, (12, before[1]))
        for line in ("first\n", "second\n", "third\n"):
            log.write(line)
        assert (tmp_path / "loss.jsonl").read_bytes() == b"first\nsecond"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.close()
    assert (tmp_path / "loss.jsonl").read_bytes() == b"first\nsecond\nthird\n"


@pytest.mark.parametrize(("last", "code", "said"), [("ending.complete()", 0, "written\n"), ("pass", -6, "written\n")])
def test_a_process_that_is_complete_ends_before_python_takes_itself_apart(last: str, code: int, said: str) -> None:
    text = f"""
import atexit, os, resource
import ending

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

class Tensor:
    def __del__(self):
        os.abort()

tensor = Tensor()
ending.prepare()
atexit.register(print, "written", flush=True)
{last}
"""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=FULL, capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.returncode, done.stdout) == (code, said)


def test_a_process_that_is_not_complete_ends_with_its_error() -> None:
    text = "import ending, sys; ending.prepare(); sys.exit(3)"
    assert subprocess.run([sys.executable, "-c", text], cwd=FULL, check=False, timeout=240).returncode == 3

"""The corpus and the order in which it is read. Nothing here needs PyTorch.

The corpus is a row of bytes in shards. Sample number i is the bytes from i * length on, with one byte more: the last target.
A run reads samples at positions 0, 1, 2 and so on, without an end: after the last sample comes another epoch, in another
order. A step takes the next `batch` positions, whatever the number of ranks is. So all that a checkpoint has to know of the
data is one number, and no sample is repeated or skipped when a run goes on with more or fewer ranks.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
#: Bits of a sample's fingerprint: few enough for a float64 to hold the exact sum of those of a batch.
_BITS = 40


class Corpus:
    """The shards in a folder, as `prepare.py` writes them."""

    def __init__(self, folder: Path, length: int) -> None:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        self.length = length
        self._shards = [_open(folder / shard["name"], shard["bytes"]) for shard in manifest["shards"]]
        self._ends = list(accumulate(len(shard) for shard in self._shards))
        self.samples = (self._ends[-1] - 1) // length
        if self.samples < 1:
            raise ValueError(f"{folder} has {self._ends[-1]} bytes, fewer than a sample of {length + 1}")

    def sample(self, number: int) -> bytes:
        """The inputs and, one byte later, the targets of a sample: `length` + 1 bytes."""
        begin = number * self.length
        end = begin + self.length + 1
        index = bisect_right(self._ends, begin)
        parts = []
        while begin < end:
            offset = self._ends[index] - len(self._shards[index])
            parts.append(self._shards[index][begin - offset : end - offset])
            begin = self._ends[index]
            index += 1
        return b"".join(parts)


def _open(path: Path, size: int) -> Any:
    if path.stat().st_size != size:
        raise ValueError(f"{path} has {path.stat().st_size} bytes instead of {size}: run prepare.py again")
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def verify(folder: Path) -> None:
    """Raise ValueError where a shard is not what was written."""
    for shard in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["shards"]:
        path = folder / shard["name"]
        if hashlib.sha256(path.read_bytes()).hexdigest() != shard["sha256"]:
            raise ValueError(f"{path} is damaged: run prepare.py again")


def sample_at(position: int, samples: int) -> int:
    """The sample at a position. Each epoch has all samples once, in an order of its own."""
    epoch, place = divmod(position, samples)
    random = int.from_bytes(hashlib.sha256(f"epoch {epoch}".encode()).digest()[:8], "big")
    # Multiplying with a number that has no divisor in common with the number of samples puts them in another order.
    factor = random % samples or 1
    while math.gcd(factor, samples) != 1:
        factor += 1
    return (place * factor + random // samples) % samples


def share(position: int, batch: int, rank: int, ranks: int, most: int) -> list[list[int]]:
    """The positions of a batch that a rank has, in parts of at most `most`: each is one pass forward and backward.

    All ranks have the same number of parts, since they wait for each other in each; where a batch cannot be divided evenly,
    one of them may be empty. With fewer ranks there are more parts, and the batch is the same.
    """
    mine = list(range(position + rank, position + batch, ranks))
    parts = math.ceil(math.ceil(batch / ranks) / most)
    return [mine[part::parts] for part in range(parts)]


def fingerprint(positions: list[int], samples: int) -> int:
    """A number that says which samples were read, in any order: the sums of two runs are equal if their samples are."""
    total = 0
    for position in positions:
        digest = hashlib.blake2b(f"{position} {sample_at(position, samples)}".encode(), digest_size=8).digest()
        total += int.from_bytes(digest, "big") >> (64 - _BITS)
    return total


def letters(folder: Path) -> float:
    """The entropy of single bytes, in nats: no model has a lower loss that does not look at what comes before a byte."""
    counts = [0] * 256
    for shard in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["shards"]:
        raw = (folder / shard["name"]).read_bytes()
        for value in range(256):
            counts[value] += raw.count(value)
    total = sum(counts)
    return -sum(count / total * math.log(count / total) for count in counts if count)

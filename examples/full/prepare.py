"""Make the corpus: texts of the Debian packages of this machine, in shards with a manifest.

    python3 prepare.py /mnt/shared/corpus

The texts are in the order of their checksums, so that different ones follow each other. No text is there twice.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from data import MANIFEST

SOURCES = ("/usr/share/common-licenses", "/usr/share/doc")
SMALLEST, LARGEST = 500, 2_000_000


def texts(sources: list[Path]) -> Iterator[bytes]:
    """Every text below the sources, also those that gzip has compressed."""
    for source in sources:
        for path in sorted(source.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
                continue
            raw = path.read_bytes()
            if path.suffix == ".gz":
                raw = gzip.decompress(raw)
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if len(raw) >= SMALLEST and b"\0" not in raw:
                yield raw


def write(folder: Path, raw: bytes, size: int) -> int:
    """Write the shards and their manifest; how many there are. The folder is complete, or it is not there."""
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        shards = []
        for number, begin in enumerate(range(0, len(raw), size)):
            part = raw[begin : begin + size]
            name = f"shard-{number:05}.bin"
            (draft / name).write_bytes(part)
            shards.append({"name": name, "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()})
        (draft / MANIFEST).write_text(json.dumps({"shards": shards}, indent=1) + "\n", encoding="utf-8")
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return len(shards)


def main() -> None:
    """Make the corpus."""
    parser = argparse.ArgumentParser(description="Make shards of the texts of Debian packages.")
    parser.add_argument("folder", type=Path, help="output directory, which must not exist")
    parser.add_argument("--source", type=Path, action="append", help="directory with texts (default: those of Debian)")
    parser.add_argument("--megabytes", type=float, default=64.0, help="maximum amount of text in MB (default: 64)")
    parser.add_argument("--shard", type=float, default=1.0, help="size of a shard in MB (default: 1)")
    given = parser.parse_args()
    if given.folder.exists():
        parser.error(f"{given.folder} already exists")
    found = {hashlib.sha256(text).digest(): text for text in texts(given.source or [Path(one) for one in SOURCES])}
    raw = b"\0".join(found[key] for key in sorted(found))[: int(given.megabytes * 1e6)]
    if not raw:
        parser.error("there are no texts")
    count = write(given.folder, raw, int(given.shard * 1e6))
    print(f"{given.folder}: {len(found)} texts, {len(raw) / 1e6:.1f} MB in {count} shards")


if __name__ == "__main__":
    main()

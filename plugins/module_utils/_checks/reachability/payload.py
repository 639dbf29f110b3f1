# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes to transfer: random, so that nothing on the path can compress them, and generated once for all peers."""

from __future__ import annotations

import hashlib
import os
from typing import Dict, Iterator

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.protocol import CHUNK_SIZE


class Payload:
    """Random bytes and their hash."""

    def __init__(self, size: int) -> None:
        self._random_bytes = memoryview(os.urandom(size))
        self.sha256 = hashlib.sha256(self._random_bytes).hexdigest()

    def iterate_chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in order, CHUNK_SIZE at a time."""
        for chunk_start in range(0, len(self._random_bytes), CHUNK_SIZE):
            yield self._random_bytes[chunk_start : chunk_start + CHUNK_SIZE]


class PayloadCache:
    """The payload of each requested size; the latest one is kept."""

    def __init__(self) -> None:
        self._latest_payload: Dict[int, Payload] = {}

    def get_payload(self, size: int) -> Payload:
        """The payload of ``size`` bytes."""
        if size not in self._latest_payload:
            self._latest_payload = {size: Payload(size)}
        return self._latest_payload[size]

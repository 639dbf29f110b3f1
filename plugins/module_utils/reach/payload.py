# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes to transfer: random, so that nothing on the path can compress them, and generated once for all peers."""

from __future__ import annotations

import hashlib
import os
from typing import Dict, Iterator

from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.protocol import CHUNK


class Payload:
    """``size`` random bytes and their hash."""

    def __init__(self, size: int) -> None:
        self._data = memoryview(os.urandom(size))
        self.sha256 = hashlib.sha256(self._data).hexdigest()

    def pieces(self) -> Iterator[memoryview]:
        """The bytes in order, CHUNK at a time."""
        for begin in range(0, len(self._data), CHUNK):
            yield self._data[begin : begin + CHUNK]


class Payloads:
    """The payload of each requested size; the latest one is kept."""

    def __init__(self) -> None:
        self._latest: Dict[int, Payload] = {}

    def of(self, size: int) -> Payload:
        """The payload of ``size`` bytes."""
        if size not in self._latest:
            self._latest = {size: Payload(size)}
        return self._latest[size]

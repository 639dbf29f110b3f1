# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that modules install: hosts are given digests, and the sources for which they ask."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import content_digest

#: The sources of programs by file name.
ProgramSources = Mapping[str, bytes]


def encode_source(source: bytes) -> str:
    """Encode a source as text, for the module."""
    return base64.b64encode(zlib.compress(source)).decode()


def source_digests(sources: ProgramSources) -> dict[str, str]:
    """Return the option by which a module finds out which sources it needs."""
    return {name: content_digest(source) for name, source in sources.items()}

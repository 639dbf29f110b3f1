# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that modules install: hosts are given digests, and the contents that they ask for."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils.supplied import digest

#: The contents of files by name.
Contents = Mapping[str, bytes]


def packed(content: bytes) -> str:
    """A content as text, for the module."""
    return base64.b64encode(zlib.compress(content)).decode()


def digests(contents: Contents) -> dict[str, str]:
    """The option of a module by which it finds out what it needs."""
    return {name: digest(content) for name, content in contents.items()}

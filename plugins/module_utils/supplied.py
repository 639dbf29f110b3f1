# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs and modules whose sources the controller sends only to hosts on which they differ.

A module that imported a program to install it would be sent with all its sources, which Ansible parses and the host
compiles, in each run. Instead, the action gives the digests of the sources, and runs the module again with those that
it reports as outdated.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zlib
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils import package
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part

#: The options of a module that are for its action only, by the names of the files.
OPTIONS: Dict[str, Any] = {
    "digests": {"type": "dict", "default": {}},
    # They are not secret, but too long for the log of the host and for the result: hundreds of kilobytes.
    "contents": {"type": "dict", "default": {}, "no_log": True},
}


def digest(content: bytes) -> str:
    """What tells contents apart."""
    return hashlib.sha256(content).hexdigest()


def program_part(params: Mapping[str, Any], path: str, entry: str, settings: Mapping[str, Any]) -> Part:
    """The desired program, from the parameters of the module.

    If only the settings differ, or the host's Python, the sources in the present one are used.
    """
    name = os.path.basename(path)
    files = package.bundled(package.current(path, package.MODE))
    if digest(package.rebundled(files)) != params["digests"].get(name):
        sent = _sent(params, name)
        if sent is None:
            return package.lacking_part(path, package.MODE, name)
        files = package.bundled(sent)
    return package.part(path, package.assemble(sys.executable, entry, settings, files))


def file_part(params: Mapping[str, Any], path: str) -> Part:
    """The desired file of a program, which everybody may read, from the parameters of the module."""
    name = os.path.basename(path)
    content: Optional[bytes] = package.current(path, package.FILE_MODE)
    if digest(content or b"") != params["digests"].get(name):
        content = _sent(params, name)
    return package.lacking_part(path, package.FILE_MODE, name) if content is None else package.file_part(path, content)


def outdated(parts: Iterable[Part]) -> List[str]:
    """The names of the contents without which the parts cannot be applied."""
    return [part.lacks for part in parts if part.lacks]


def _sent(params: Mapping[str, Any], name: str) -> Optional[bytes]:
    """A content that the action has sent; None if it has not."""
    text = params.get("contents", {}).get(name)
    return None if text is None else zlib.decompress(base64.b64decode(text))

# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push the sources of programs and modules only to hosts on which they differ.

A module that imported a program to install it would be sent with all its sources, which Ansible parses and the host
compiles, in each run. Instead, the action sends the digests of the sources, and runs the module again with the contents
that the module reports as outdated.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zlib
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange

#: These options of a module are for its action only. Their keys are the names of the files.
PUSH_OPTIONS: Dict[str, Any] = {
    "digests": {"type": "dict", "default": {}},
    # The contents are not secret, but too long for the log of the host and for the result: hundreds of kilobytes.
    "contents": {"type": "dict", "default": {}, "no_log": True},
}


def content_digest(content: bytes) -> str:
    """Return the digest that identifies a content."""
    return hashlib.sha256(content).hexdigest()


def program_change(params: Mapping[str, Any], path: str, entry_module: str, settings: Mapping[str, Any]) -> LayerChange:
    """Return the change to the desired program, from the parameters of the module.

    If only the settings or the Python of the host differ, the sources in the current program are used.
    """
    file_name = os.path.basename(path)
    sources_by_path = program_archive.unpack_sources(program_archive.read_current(path, program_archive.PROGRAM_MODE))
    if content_digest(program_archive.pack_sources(sources_by_path)) != params["digests"].get(file_name):
        pushed_content = _pushed_content(params, file_name)
        if pushed_content is None:
            return program_archive.missing_content_change(path, program_archive.PROGRAM_MODE, file_name)
        sources_by_path = program_archive.unpack_sources(pushed_content)
    return program_archive.zipapp_change(
        path, program_archive.assemble_zipapp(sys.executable, entry_module, settings, sources_by_path)
    )


def pushed_file_change(params: Mapping[str, Any], path: str) -> LayerChange:
    """Return the change to the desired file of a program, from the parameters of the module. Everybody may read it."""
    file_name = os.path.basename(path)
    content: Optional[bytes] = program_archive.read_current(path, program_archive.FILE_MODE)
    if content_digest(content or b"") != params["digests"].get(file_name):
        content = _pushed_content(params, file_name)
    return (
        program_archive.missing_content_change(path, program_archive.FILE_MODE, file_name)
        if content is None
        else program_archive.file_change(path, content)
    )


def missing_contents(layer_changes: Iterable[LayerChange]) -> List[str]:
    """Return the names of the contents without which the changes cannot be applied."""
    return [layer_change.missing_content for layer_change in layer_changes if layer_change.missing_content]


def _pushed_content(params: Mapping[str, Any], file_name: str) -> Optional[bytes]:
    """Return a content that the action has pushed; None if it has not."""
    encoded_content = params.get("contents", {}).get(file_name)
    return None if encoded_content is None else zlib.decompress(base64.b64decode(encoded_content))

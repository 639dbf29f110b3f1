# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push the sources of programs only to hosts on which they differ. All programs that are installed come this way.

A module that imported a program to install it would be sent with all its sources, which Ansible parses and the host
compiles, in each run. Instead, the action sends the digests of the sources, and runs the module again with the contents
that the module reports as outdated. Modules change nothing before they have all contents.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zlib
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange

#: These options of a module are for its action only. Their keys are the names of the contents.
PUSH_OPTIONS: Dict[str, Any] = {
    "digests": {"type": "dict", "default": {}},
    # The contents are not secret, but too long for the log of the host and for the result: hundreds of kilobytes.
    "contents": {"type": "dict", "default": {}, "no_log": True},
}


def content_digest(content: bytes) -> str:
    """Return the digest that identifies a content."""
    return hashlib.sha256(content).hexdigest()


def encode_content(content: bytes) -> str:
    """Encode a content as text, to send it."""
    return base64.b64encode(zlib.compress(content)).decode()


def decode_content(encoded_content: str) -> bytes:
    """Decode what ``encode_content`` has encoded."""
    return zlib.decompress(base64.b64decode(encoded_content))


def program_change(
    params: Mapping[str, Any], content_name: str, path: str, entry_module: str, settings: Mapping[str, Any]
) -> LayerChange:
    """Return the change to the desired program, from the parameters of the module.

    If only the settings or the Python of the host differ, the sources in the current program are used.
    """
    current_program = program_archive.read_current(path, program_archive.PROGRAM_MODE)
    # The usual case, in which the archive is read and built once instead of three times.
    if program_archive.is_installed(
        current_program,
        sys.executable,
        entry_module,
        settings,
        lambda bundle: content_digest(bundle) == params["digests"].get(content_name),
    ):
        return LayerChange(False, "", "", lambda: None)
    sources_by_path = program_archive.unpack_sources(current_program)
    bundle = desired_content(params, content_name, program_archive.pack_sources(sources_by_path))
    if bundle is None:
        return program_archive.missing_content_change(path, program_archive.PROGRAM_MODE, content_name)
    sources_by_path = program_archive.unpack_sources(bundle)
    return program_archive.zipapp_change(
        path, program_archive.assemble_zipapp(sys.executable, entry_module, settings, sources_by_path)
    )


def pushed_file_change(
    params: Mapping[str, Any], content_name: str, path: str, mode: int = program_archive.FILE_MODE
) -> LayerChange:
    """Return the change to the desired file of a program, from the parameters of the module."""
    content = desired_content(params, content_name, program_archive.read_current(path, mode))
    return (
        program_archive.missing_content_change(path, mode, content_name)
        if content is None
        else program_archive.file_change(path, content, mode)
    )


def desired_content(params: Mapping[str, Any], content_name: str, current_content: bytes) -> Optional[bytes]:
    """Return the desired content, from the host or from the action; None if neither has it."""
    if content_digest(current_content) == params["digests"].get(content_name):
        return current_content
    encoded_content = params.get("contents", {}).get(content_name)
    return None if encoded_content is None else decode_content(encoded_content)


def missing_contents(layer_changes: Iterable[LayerChange]) -> List[str]:
    """Return the names of the contents without which the changes cannot be applied."""
    return [layer_change.missing_content for layer_change in layer_changes if layer_change.missing_content]

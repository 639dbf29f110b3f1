# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are either the old or the new content, whatever happens in between."""

from __future__ import annotations

import os
import tempfile
from typing import Optional, Tuple, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError


def read_text(path: str) -> Optional[str]:
    """The text of a file, or None where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure


def write_atomic(
    path: str, content: Union[str, bytes], mode: int = 0o600, owner: Optional[Tuple[int, int]] = None
) -> None:
    """Replace ``path`` by ``content`` in one step that outlives a power cut.

    The new text goes to a temporary file in the same folder with its final mode and, where given, its ``owner``
    (user and group id), is synced to disk and renamed; then the folder is synced, since the rename itself lives there.
    """
    folder = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            if owner is not None:
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        # Also on a signal: a temporary file that may hold a key must not stay behind.
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    folder_handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_handle)
    finally:
        os.close(folder_handle)


def remove_file(path: str) -> bool:
    """Delete ``path``; True when there was one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True

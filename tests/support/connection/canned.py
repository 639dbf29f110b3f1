# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection to no host: notes how many bytes each would receive, and answers with given results of modules."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = r"""
name: canned
short_description: Answers with given results of modules
description:
  - The folder in the environment variable C(GPUMESH_CANNED) has C(answers.json), with the result of each module. What
    would be sent is appended to C(sent) in it, a line with the module, the host and the number of bytes each time.
author: the gpumesh authors
"""

MODULE_PATTERN = re.compile(rb"gpumesh[./]cluster[./]plugins[./]modules[./](\w+)")


class Connection(ConnectionBase):
    """Hosts that are as the answers say, whatever they are sent."""

    transport = "canned"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Answer with the result of the module that is sent."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        module_match = MODULE_PATTERN.search(in_data or b"")
        if not module_match:
            return 1, b"", f"no module of the collection: {cmd[:200]}".encode()
        folder, module_name = Path(os.environ["GPUMESH_CANNED"]), module_match[1].decode()
        line = f"{module_name} {self._play_context.remote_addr} {len(cmd.encode()) + len(in_data or b'')}\n"
        # One short write to a file that is only appended to is whole, whatever other workers write.
        with (folder / "sent").open("ab", buffering=0) as stream:
            stream.write(line.encode())
        answers: dict[str, Any] = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
        return 0, json.dumps({"changed": False, **answers[module_name]}).encode(), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        """Refuse files: an unchanged host receives none."""
        raise NotImplementedError(f"{in_path} would be sent")

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Refuse files: an unchanged host sends none."""
        raise NotImplementedError(f"{in_path} would be fetched")

    def close(self) -> None:
        """There is nothing to close."""
        self._connected = False

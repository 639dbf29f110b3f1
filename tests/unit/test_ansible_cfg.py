# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people see who run the playbooks where the guides have them do it, with real runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAYBOOK = """
- name: Say hello
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Say it
      ansible.builtin.debug: {msg: hello}
"""


@pytest.mark.parametrize("directory", [".", "inventories/lan", "inventories/rented"])
def test_playbooks_show_their_progress(directory: str, tmp_path: Path) -> None:
    playbook = tmp_path / "hello.yml"
    playbook.write_text(PLAYBOOK)
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_STDOUT_CALLBACK"}
    completed = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(playbook)],
        cwd=ROOT / directory,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "✓ Say hello" in completed.stdout
    assert "Nothing to change." in completed.stdout
    assert "PLAY RECAP" not in completed.stdout

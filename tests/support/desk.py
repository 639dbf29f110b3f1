# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user who follows the guides, with the archive of the collection and the machines of a lab."""

from __future__ import annotations

import json
import shlex
import time

import yaml
from lab_hosts import Lab, Run

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed
from ansible_collections.gpumesh.cluster.tests.publication.guides import console_lines

GUIDES = ROOT / "docs" / "guides"
#: The network in the guides.
NETWORK = "192.168.1."


class Desk:
    """The working directory of a user who follows the guides, and the commands that were typed."""

    def __init__(self, installed: Installed, lab: Lab, network: str) -> None:
        """Log in to the lab. ``network`` is that of the machines, and replaces that of the guides."""
        self.lab = lab
        self.typed: set[str] = set()
        self._network = network
        login = yaml.safe_load(lab.inventory.read_text())["lab"]["vars"]
        # A user who has logged in before has the key in an agent, and the host keys in known_hosts.
        mine = {
            "ANSIBLE_PRIVATE_KEY_FILE": login["ansible_ssh_private_key_file"],
            "ANSIBLE_SSH_COMMON_ARGS": login["ansible_ssh_common_args"],
            "PWD": str(installed.folder),
        }
        self.installed = installed._replace(environment={**installed.environment, **mine})

    def write(self, name: str, text: str) -> None:
        path = self.installed.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(NETWORK, self._network))

    def type(self, guide: str, line: str) -> list[str]:
        """Return the arguments of a command in the guide. ``line`` must be the whole line."""
        assert line in console_lines(GUIDES / f"{guide}.md"), f"{guide}.md does not contain {line}"
        self.typed.add(line)
        return shlex.split(line.replace(NETWORK, self._network))

    def play(self, guide: str, line: str) -> Run:
        """Type a command of Ansible, which must succeed."""
        run = self.run(*self.type(guide, line))
        assert run.code == 0, f"$ {line}\n{run.output}"
        return run

    def run(self, program: str, *arguments: str) -> Run:
        """Run a program of Ansible that no guide types, or that may fail, in the working directory."""
        started = time.monotonic()
        done = self.installed.run(program, *arguments, timeout=1800)
        return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - started)

    def on(self, machine: str, guide: str, line: str) -> str:
        """Type a command on a machine."""
        return self.lab.run(machine, *self.type(guide, line))

    def log_in(self, machine: str, user: str, folder: str, guide: str, line: str, now: str = "") -> str:
        """Type a line in a directory, in a user's shell.

        ``replacement``: the line to run instead, where the guide has an example.
        """
        self.type(guide, line)
        return self.lab.run(machine, "su", "-", user, "-c", f"cd {folder} && {now or line}", timeout=600)

    def members(self, asked: str) -> list[str]:
        """Return the members in the record of a machine."""
        record = json.loads(self.lab.read(asked, "/var/lib/gpumesh/clusters/lan.json"))
        return sorted(member["machine"] for member in record["members"])

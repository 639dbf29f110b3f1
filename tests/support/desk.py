# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user who follows the guides, with the archive of the collection and the machines of a lab."""

from __future__ import annotations

import json
import shlex
import time

import yaml
from lab_hosts import AnsibleRun, Lab

from ansible_collections.gpumesh.cluster.tests.publication.archive import ROOT, Installed
from ansible_collections.gpumesh.cluster.tests.publication.guides import console_lines

GUIDES_DIRECTORY = ROOT / "docs" / "guides"
#: The network in the guides.
GUIDE_NETWORK = "192.168.1."


class GuideRunner:
    """The working directory of a user who follows the guides, and the commands that were typed."""

    def __init__(self, installed: Installed, lab: Lab, network: str) -> None:
        """Log in to the lab. ``network`` is that of the machines, and replaces that of the guides."""
        self.lab = lab
        self.typed_lines: set[str] = set()
        self._network = network
        login_vars = yaml.safe_load(lab.inventory.read_text())["lab"]["vars"]
        # A user who has logged in before has the key in an agent, and the host keys in known_hosts.
        user_environment = {
            "ANSIBLE_PRIVATE_KEY_FILE": login_vars["ansible_ssh_private_key_file"],
            "ANSIBLE_SSH_COMMON_ARGS": login_vars["ansible_ssh_common_args"],
            "PWD": str(installed.folder),
            # What the tests read, instead of the guide's own ansible.cfg.
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        }
        self.installed = installed._replace(environment={**installed.environment, **user_environment})

    def write(self, name: str, text: str) -> None:
        path = self.installed.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(GUIDE_NETWORK, self._network))

    def type_line(self, guide: str, line: str) -> list[str]:
        """Return the arguments of a command in the guide. ``line`` must be the whole line."""
        assert line in console_lines(GUIDES_DIRECTORY / f"{guide}.md"), f"{guide}.md does not contain {line}"
        self.typed_lines.add(line)
        return shlex.split(line.replace(GUIDE_NETWORK, self._network))

    def run_playbook(self, guide: str, line: str) -> AnsibleRun:
        """Type a command of Ansible, which must succeed."""
        playbook_result = self.run_ansible(*self.type_line(guide, line))
        assert playbook_result.exit_status == 0, f"$ {line}\n{playbook_result.output}"
        return playbook_result

    def run_ansible(self, program: str, *arguments: str) -> AnsibleRun:
        """Run a program of Ansible that no guide types, or that may fail, in the working directory."""
        started_at = time.monotonic()
        completed = self.installed.run(program, *arguments, timeout=1800)
        return AnsibleRun(completed.returncode, completed.stdout + completed.stderr, time.monotonic() - started_at)

    def type_on_machine(self, machine: str, guide: str, line: str) -> str:
        """Type a command on a machine."""
        return self.lab.run(machine, *self.type_line(guide, line))

    def type_as_user(
        self, machine: str, user: str, directory: str, guide: str, line: str, replacement: str = ""
    ) -> str:
        """Type a line in a directory, in a user's shell.

        ``replacement``: the line to run instead, where the guide has an example.
        """
        self.type_line(guide, line)
        return self.lab.run(machine, "su", "-", user, "-c", f"cd {directory} && {replacement or line}", timeout=600)

    def recorded_members(self, machine: str) -> list[str]:
        """Return the members in the record of a machine."""
        record = json.loads(self.lab.read(machine, "/var/lib/gpumesh/clusters/lan.json"))
        return sorted(member["machine"] for member in record["members"])

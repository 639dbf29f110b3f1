# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab as tests see it: commands on its hosts, playbooks with its inventory, hosts that stop and start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import waiting
from lab_commands import run_command

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
RECAP_PATTERN = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
TASK_PATTERN = re.compile(r"^TASK \[(.*?)\] \**$", re.MULTILINE)
#: The characters at the end of an output that are shown if it failed.
OUTPUT_TAIL_LENGTH = 4000
#: The output of a failed task about a host: a line, and those that are indented below it.
FAILURE_PATTERN = re.compile(r"^(?:fatal|failed): \[.*(?:\n[ \t]+.*)*", re.MULTILINE)

#: Seconds for a node to return to service without intervention: Slurm waits for its steps (UnkillableStepTimeout), then
#: its health program runs.
RECOVERY_TIMEOUT = 180.0 + 300.0 + 120.0
#: Seconds to allow on a busy machine for what usually takes a few.
WAIT_TIMEOUT = 300.0
#: Files that change on a running host on their own, or at a login.
VOLATILE_PATHS = (
    "/root/.ansible/",
    "/var/log/",
    "/var/lib/systemd/",
    "/var/lib/apt/",
    "/var/cache/apt/",
    "/var/cache/gpumesh-lab/",
    "/var/lib/lastlog/",
    # Timers of Debian, at midnight.
    "/var/backups/",
    "/var/lib/logrotate/",
)


def flatten_output(output: str) -> str:
    """Return the output of a playbook with each message on one line, as it was written.

    ansible-core 2.18 prints messages as YAML alone, which wraps them and doubles their quotation marks.
    """
    return " ".join(output.split()).replace("''", "'")


def split_by_task(output: str) -> Iterator[tuple[str, str]]:
    """Return an iterator of the name of each task in a playbook's output, and what it printed."""
    parts = TASK_PATTERN.split(output)
    return zip(parts[1::2], parts[2::2])


def summarize_failures(output: str) -> str:
    """Return what went wrong in a playbook's run: each failed task by its name, then the end of the output.

    A failed host often ends long before the others, and then the end of the output has only its count.
    """
    failed_tasks = [
        f"{task}: {text}"
        for task, task_output in split_by_task(output)
        for text in FAILURE_PATTERN.findall(task_output)
    ]
    return "\n".join([*failed_tasks, output[-OUTPUT_TAIL_LENGTH:]])


class AnsibleRun(NamedTuple):
    """A playbook run that has ended. ``output`` is its stdout and stderr in order, ``changed`` the recap by host."""

    exit_status: int
    output: str
    seconds: float

    @property
    def flat_output(self) -> str:
        """The output as ``flatten_output`` has it."""
        return flatten_output(self.output)

    @property
    def failure_report(self) -> str:
        """The failed tasks, and the end of the output."""
        return summarize_failures(self.output)

    @property
    def changed(self) -> dict[str, int]:
        return {match[1]: int(match[3]) for match in RECAP_PATTERN.finditer(self.output)}

    @property
    def changes(self) -> list[str]:
        """Each change, by its task and host."""
        return [
            f"{task}: {line}"
            for task, text in split_by_task(self.output)
            for line in re.findall(r"^changed: \[(.*)$", text, re.MULTILINE)
        ]

    @property
    def shown_clusters(self) -> list[dict[str, Any]]:
        """The clusters as the playbook show prints them with show_output=json, on one line."""
        (clusters,) = (json.loads(line) for line in self.output.splitlines() if line.startswith("[{"))
        return list(clusters)

    @property
    def play_count(self) -> int:
        return len(re.findall(r"^PLAY \[", self.output, re.MULTILINE))


def run_ansible(program: str, *arguments: str, cwd: Path = ROOT, prefix: Sequence[str] = ()) -> AnsibleRun:
    """Run a program of Ansible from this Python environment, whether it succeeds or not. ``prefix`` starts the command."""
    started_at = time.monotonic()
    completed = subprocess.run(
        [*prefix, str(BIN / program), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=3600,
        # Molecule forces colours for its own output, and so for all child processes.
        env={
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_PIPELINING": "1",
            **os.environ,
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_NOCOLOR": "1",
        },
    )
    return AnsibleRun(completed.returncode, completed.stdout, time.monotonic() - started_at)


def run_lab_playbook(name: str, description: Path, settings: Mapping[str, Any]) -> None:
    """Run lab/up.yml or lab/down.yml for the hosts of a description, with these settings. Raises AssertionError."""
    os.environ["LAB"] = str(description)
    playbook_run = run_ansible("ansible-playbook", "-i", "localhost,", f"lab/{name}.yml", "-e", json.dumps(settings))
    assert playbook_run.exit_status == 0, (
        f"lab/{name}.yml ended with {playbook_run.exit_status}:\n{playbook_run.failure_report}"
    )


def run_chaos(part: str, *options: str, **environment: str) -> None:
    """Run a part of `make chaos`. Its output is printed, since it has the seed with which the run can be repeated."""
    completed = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "chaos" / f"{part}.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    print(completed.stdout)
    assert completed.returncode == 0, f"{part}.py ended with {completed.returncode}; its output is below"


class Lab:
    """The running lab with this name; see lab/lab.yml."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inventory = ROOT / ".lab" / name / "hosts.yml"

    def run(self, host: str, *argv: str, check: bool = True, timeout: float = WAIT_TIMEOUT) -> str:
        """Run a command on the host, as root and without Ansible. Returns its stdout, whatever bytes that has."""
        completed = self.run_unchecked(host, *argv, timeout=timeout)
        assert not check or completed.returncode == 0, f"{host}: {' '.join(argv)}: {completed.stdout}{completed.stderr}"
        return completed.stdout

    def run_unchecked(self, host: str, *argv: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command on the host as `run` does, whether it succeeds or not."""
        completed = run_command(self._container_name(host), argv, timeout)
        stdout, stderr = (text.decode(errors="replace") for text in (completed.stdout, completed.stderr))
        return subprocess.CompletedProcess(completed.args, completed.returncode, stdout, stderr)

    def start_command(self, host: str, *argv: str) -> subprocess.Popen[str]:
        """Start a command on the host without waiting for it; its stdout and stderr are combined."""
        return subprocess.Popen(
            ["docker", "exec", self._container_name(host), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def copy(self, directory: Path, host: str, path: str) -> None:
        """Copy a directory of this machine to a host, where ``path`` must not exist yet."""
        argv = ["docker", "cp", str(directory), f"{self._container_name(host)}:{path}"]
        subprocess.run(argv, check=True, capture_output=True)

    def read(self, host: str, path: str) -> bytes:
        """Return the content of a file on the host."""
        completed = run_command(self._container_name(host), ["cat", path], 60)
        completed.check_returncode()
        return completed.stdout

    def run_playbook(self, playbook: str, *arguments: str, inventories: Sequence[Path] = ()) -> AnsibleRun:
        """Run a playbook against the lab, whether it succeeds or not."""
        inventory_options = [text for path in (self.inventory, *inventories) for text in ("-i", str(path))]
        return run_ansible("ansible-playbook", *inventory_options, playbook, *arguments)

    def run_module(
        self, hosts: str, name: str, /, extra_vars: dict[str, object] | None = None, **options: object
    ) -> AnsibleRun:
        """Run a module on the hosts that match the pattern, with one line of output for each."""
        # A module would take an empty text for raw parameters, and reject it, so none is passed without options.
        argument_options = ("--args", json.dumps(options)) if options else ()
        argument_options = (
            (*argument_options, "--extra-vars", json.dumps(extra_vars)) if extra_vars else argument_options
        )
        return run_ansible(
            "ansible", "-i", str(self.inventory), hosts, "--module-name", name, *argument_options, "--one-line"
        )

    def measure_ping(self) -> float:
        """Return the seconds that one `ansible -m ping` of all members takes."""
        ping_run = run_ansible("ansible", "-i", str(self.inventory), "cluster", "-m", "ansible.builtin.ping")
        assert ping_run.exit_status == 0, ping_run.output
        return ping_run.seconds

    def stop(self, host: str) -> None:
        self._run_engine("stop", host)

    def kill(self, *hosts: str) -> None:
        """Cut the power of the hosts."""
        self._run_engine("kill", *hosts)

    def start(self, host: str) -> None:
        """Start the host and wait for its services."""
        self.power_on(host)
        self.await_boot(host)

    def power_on(self, *hosts: str) -> None:
        """Restore the power of the hosts."""
        self._run_engine("start", *hosts)

    def await_boot(self, host: str, supervisord: str = "") -> None:
        """Wait until the host has booted. Where nothing else does, start supervisord with this configuration, if it
        exists.
        """
        if not supervisord:
            booted_states = {"running", "degraded"}
            self.wait_until(
                f"{host} has booted",
                lambda: self.run(host, "systemctl", "is-system-running", check=False).strip() in booted_states,
            )
            return
        self.wait_until(f"{host} answers", lambda: bool(self.run(host, "pgrep", "-x", "sshd", check=False)))
        start_command = "test ! -e $1 || pgrep -x supervisord || exec supervisord -c $1"
        self.run(host, "sh", "-c", start_command, "-", supervisord)

    def wait_until(self, description: str, condition, seconds: float = WAIT_TIMEOUT, spacing: float = 1.0) -> None:
        """Wait until ``condition`` returns true. Raises AssertionError after ``seconds``."""
        waiting.wait_until(description, condition, seconds, spacing)

    def await_idle(self, manager: str) -> None:
        """Wait until all nodes are idle."""
        states_command = ("sinfo", "--noheader", "--format=%T")
        self.wait_until(
            "all nodes are idle", lambda: self.run(manager, *states_command).split() == ["idle"], RECOVERY_TIMEOUT
        )

    def mark_time(self, hosts: Sequence[str]) -> None:
        """Start watching for changes; see `find_changed_files`."""
        for host in hosts:
            self.run(host, "touch", "/run/gpumesh-lab-mark")
        # The times of a file are those of the kernel's clock tick.
        time.sleep(0.1)

    def find_changed_files(self, host: str) -> list[str]:
        """Return the files that were created or changed since `mark_time`, except those that change on their own."""
        # A file that disappears during the search is no error.
        argv = ("find", "/", "-ignore_readdir_race", "-xdev", "!", "-type", "d", "-cnewer", "/run/gpumesh-lab-mark")
        changed_paths = self.run(host, *argv).splitlines()
        return [path for path in changed_paths if not path.startswith(VOLATILE_PATHS)]

    def _run_engine(self, verb: str, *hosts: str) -> None:
        """Let the engine stop, kill or start hosts."""
        argv = ["docker", verb, *map(self._container_name, hosts)]
        subprocess.run(argv, check=True, capture_output=True, timeout=WAIT_TIMEOUT)

    def _container_name(self, host: str) -> str:
        return f"gpumesh-{self.name}-{host}"

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

from lab_commands import run_command

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
TASK = re.compile(r"^TASK \[(.*?)\] \**$", re.MULTILINE)
#: The characters at the end of an output that are shown if it failed.
END = 4000
#: The output of a failed task about a host: a line, and those that are indented below it.
FAILURE = re.compile(r"^(?:fatal|failed): \[.*(?:\n[ \t]+.*)*", re.MULTILINE)

#: Seconds for a node to return to service without intervention: Slurm waits for its steps (UnkillableStepTimeout), then
#: its health program runs.
RECOVERY = 180.0 + 300.0 + 120.0
#: Seconds to allow on a busy machine for what usually takes a few.
PATIENCE = 300.0
#: Files that change on a running host on their own, or at a login.
RESTLESS = (
    "/root/.ansible/",
    "/var/log/",
    "/var/lib/systemd/",
    "/var/lib/apt/",
    "/var/cache/apt/",
    "/var/lib/lastlog/",
    # Timers of Debian, at midnight.
    "/var/backups/",
    "/var/lib/logrotate/",
)


def plain(output: str) -> str:
    """Return the output of a playbook with each message on one line, as it was written.

    ansible-core 2.18 prints messages as YAML alone, which wraps them and doubles their quotation marks.
    """
    return " ".join(output.split()).replace("''", "'")


def by_task(output: str) -> Iterator[tuple[str, str]]:
    """Return an iterator of the name of each task in a playbook's output, and what it printed."""
    parts = TASK.split(output)
    return zip(parts[1::2], parts[2::2])


def report(output: str) -> str:
    """Return what went wrong in a playbook's run: each failed task by its name, then the end of the output.

    A failed host often ends long before the others, and then the end of the output has only its count.
    """
    failed = [f"{task}: {text}" for task, said in by_task(output) for text in FAILURE.findall(said)]
    return "\n".join([*failed, output[-END:]])


class Run(NamedTuple):
    """A playbook run that has ended. ``output`` is its stdout and stderr in order, ``changed`` the recap by host."""

    code: int
    output: str
    seconds: float

    @property
    def words(self) -> str:
        """The output as ``flatten_output`` has it."""
        return plain(self.output)

    @property
    def report(self) -> str:
        """The failed tasks, and the end of the output."""
        return report(self.output)

    @property
    def changed(self) -> dict[str, int]:
        return {match[1]: int(match[3]) for match in RECAP.finditer(self.output)}

    @property
    def changes(self) -> list[str]:
        """Each change, by its task and host."""
        return [
            f"{task}: {line}"
            for task, text in by_task(self.output)
            for line in re.findall(r"^changed: \[(.*)$", text, re.MULTILINE)
        ]

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The clusters as the playbook show prints them with show_output=json, on one line."""
        (clusters,) = (json.loads(line) for line in self.output.splitlines() if line.startswith("[{"))
        return list(clusters)

    @property
    def plays(self) -> int:
        return len(re.findall(r"^PLAY \[", self.output, re.MULTILINE))


def ansible(program: str, *arguments: str, cwd: Path = ROOT, prefix: Sequence[str] = ()) -> Run:
    """Run a program of Ansible from this Python environment, whether it succeeds or not. ``prefix`` starts the command."""
    started = time.monotonic()
    done = subprocess.run(
        [*prefix, str(BIN / program), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=3600,
        # Molecule forces colours for its own output, and so for all child processes.
        env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"},
    )
    return Run(done.returncode, done.stdout, time.monotonic() - started)


def lab_playbook(name: str, description: Path, settings: Mapping[str, Any]) -> None:
    """Run lab/up.yml or lab/down.yml for the hosts of a description, with these settings. Raises AssertionError."""
    os.environ["LAB"] = str(description)
    done = ansible("ansible-playbook", "-i", "localhost,", f"lab/{name}.yml", "-e", json.dumps(settings))
    assert done.code == 0, f"lab/{name}.yml ended with {done.code}:\n{done.report}"


def chaos(part: str, *options: str, **environment: str) -> None:
    """Run a part of `make chaos`. Its output is printed, since it has the seed with which the run can be repeated."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "chaos" / f"{part}.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    print(done.stdout)
    assert done.returncode == 0, f"{part}.py ended with {done.returncode}; its output is below"


class Lab:
    """The running lab with this name; see lab/lab.yml."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inventory = ROOT / ".lab" / name / "hosts.yml"

    def run(self, host: str, *argv: str, check: bool = True, timeout: float = PATIENCE) -> str:
        """Run a command on the host, as root and without Ansible. Returns its stdout, whatever bytes that has."""
        done = self.complete(host, *argv, timeout=timeout)
        assert not check or done.returncode == 0, f"{host}: {' '.join(argv)}: {done.stdout}{done.stderr}"
        return done.stdout

    def complete(self, host: str, *argv: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command on the host as `run` does, whether it succeeds or not."""
        done = run_command(self._container(host), argv, timeout)
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def begin_command(self, host: str, *argv: str) -> subprocess.Popen[str]:
        """Start a command on the host without waiting for it; its stdout and stderr are combined."""
        return subprocess.Popen(
            ["docker", "exec", self._container(host), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def copy(self, folder: Path, host: str, path: str) -> None:
        """Copy a directory of this machine to a host, where ``path`` must not exist yet."""
        argv = ["docker", "cp", str(folder), f"{self._container(host)}:{path}"]
        subprocess.run(argv, check=True, capture_output=True)

    def read(self, host: str, path: str) -> bytes:
        """Return the content of a file on the host."""
        done = run_command(self._container(host), ["cat", path], 60)
        done.check_returncode()
        return done.stdout

    def play(self, playbook: str, *arguments: str, inventories: Sequence[Path] = ()) -> Run:
        """Run a playbook against the lab, whether it succeeds or not."""
        sources = [text for path in (self.inventory, *inventories) for text in ("-i", str(path))]
        return ansible("ansible-playbook", *sources, playbook, *arguments)

    def module(self, hosts: str, name: str, /, extra_vars: dict[str, object] | None = None, **options: object) -> Run:
        """Run a module on the hosts that match the pattern, with one line of output for each."""
        # A module would take an empty text for raw parameters, and reject it, so none is passed without options.
        given = ("--args", json.dumps(options)) if options else ()
        given = (*given, "--extra-vars", json.dumps(extra_vars)) if extra_vars else given
        return ansible("ansible", "-i", str(self.inventory), hosts, "--module-name", name, *given, "--one-line")

    def ping_seconds(self) -> float:
        """Return the seconds that one `ansible -m ping` of all members takes."""
        run = ansible("ansible", "-i", str(self.inventory), "cluster", "-m", "ansible.builtin.ping")
        assert run.code == 0, run.output
        return run.seconds

    def stop(self, host: str) -> None:
        self._engine("stop", host)

    def kill(self, *hosts: str) -> None:
        """Cut the power of the hosts."""
        self._engine("kill", *hosts)

    def start(self, host: str) -> None:
        """Start the host and wait for its services."""
        self.power_on(host)
        self.await_boot(host)

    def power_on(self, *hosts: str) -> None:
        """Restore the power of the hosts."""
        self._engine("start", *hosts)

    def await_boot(self, host: str, supervisord: str = "") -> None:
        """Wait until the host has booted. Where nothing else does, start supervisord with this configuration, if it
        exists.
        """
        if not supervisord:
            words = {"running", "degraded"}
            self.wait(
                f"{host} has booted",
                lambda: self.run(host, "systemctl", "is-system-running", check=False).strip() in words,
            )
            return
        self.wait(f"{host} answers", lambda: bool(self.run(host, "pgrep", "-x", "sshd", check=False)))
        started = "test ! -e $1 || pgrep -x supervisord || exec supervisord -c $1"
        self.run(host, "sh", "-c", started, "-", supervisord)

    def wait(self, what: str, holds, seconds: float = PATIENCE, spacing: float = 1.0) -> None:
        """Wait until ``condition`` returns true. Raises AssertionError after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
            time.sleep(spacing)

    def await_idle(self, manager: str) -> None:
        """Wait until all nodes are idle."""
        states = ("sinfo", "--noheader", "--format=%T")
        self.wait("all nodes are idle", lambda: self.run(manager, *states).split() == ["idle"], RECOVERY)

    def mark(self, hosts: Sequence[str]) -> None:
        """Start watching for changes; see `find_changed_files`."""
        for host in hosts:
            self.run(host, "touch", "/run/gpumesh-lab-mark")
        # The times of a file are those of the kernel's clock tick.
        time.sleep(0.1)

    def changes(self, host: str) -> list[str]:
        """Return the files that were created or changed since `mark_time`, except those that change on their own."""
        # A file that disappears during the search is no error.
        argv = ("find", "/", "-ignore_readdir_race", "-xdev", "!", "-type", "d", "-cnewer", "/run/gpumesh-lab-mark")
        found = self.run(host, *argv).splitlines()
        return [path for path in found if not path.startswith(RESTLESS)]

    def _engine(self, verb: str, *hosts: str) -> None:
        """Let the engine stop, kill or start hosts."""
        argv = ["docker", verb, *map(self._container, hosts)]
        subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE)

    def _container(self, host: str) -> str:
        return f"gpumesh-{self.name}-{host}"

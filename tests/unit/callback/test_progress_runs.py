# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The callbacks in real runs of ansible-playbook on local hosts, through a pipe and through a terminal."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.tally import PlaybookRun

PLAYBOOK = shutil.which("ansible-playbook", path=os.path.dirname(sys.executable))

INVENTORY = """
all:
  vars: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  hosts: {n1: {}, n2: {}}
"""

#: Its tasks run on the controller: what a module does on a host is of no interest here, and takes most of a run's time.
PLAY = """
- name: First phase
  hosts: all
  gather_facts: false
  tasks:
    - name: Quiet task
      ansible.builtin.assert: {that: true}
    - name: Loud task
      ansible.builtin.set_fact: {loud: true}
      changed_when: true
    - name: Also changed
      ansible.builtin.set_fact: {also: true}
      changed_when: true
    - name: Print
      gpumesh.cluster.print_text: {text: "text of a plugin"}
      run_once: true
- name: Second phase
  hosts: all
  gather_facts: false
  tasks:
    - name: Secret failure
      ansible.builtin.set_fact: {secret: pass1word}
      no_log: true
      changed_when: true
      failed_when: inventory_hostname == 'n2'
    - name: Last
      ansible.builtin.fail: {msg: "The message, in full."}
"""
WRITTEN = """
- name: First phase
  hosts: all
  gather_facts: false
  tasks:
    - name: Loud task
      ansible.builtin.set_fact: {loud: true}
      changed_when: true
      when: not ansible_check_mode
    - name: Would change
      ansible.builtin.copy: {content: "x{{ inventory_hostname }}", dest: "{{ target }}.{{ inventory_hostname }}", mode: "0600"}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yml").write_text(INVENTORY, encoding="utf-8")
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    return tmp_path


def command(files: Path, *more: str) -> list[str]:
    assert PLAYBOOK, "ansible-playbook is not beside the Python that runs the tests"
    return [PLAYBOOK, "-i", f"{files}/inventory.yml", f"{files}/play.yml", "-e", f"target={files}/made", *more]


def environment(**more: str) -> dict[str, str]:
    inherited_variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "NO_COLOR", "CI"))
    }
    return {
        **inherited_variables,
        "ANSIBLE_STDOUT_CALLBACK": "gpumesh.cluster.progress",
        "TERM": "xterm-256color",
        **more,
    }


def run_in_pipe(files: Path, *more: str, **variables: str) -> str:
    done = subprocess.run(
        command(files, *more),
        env=environment(**variables),
        cwd=files,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def run_in_terminal(files: Path, *more: str, **variables: str) -> str:
    """Return the output that a terminal with 100 columns receives."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        command(files, *more),
        env=environment(COLUMNS="100", **variables),
        cwd=files,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    ) as process:
        os.close(follower)
        received = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                break  # Linux reports this when the other end is closed.
            if not chunk:
                break
            received += chunk
        process.wait(timeout=240)
    os.close(leader)
    return received.decode("utf-8", "replace")


def test_plain_lines_in_a_pipe(files: Path) -> None:
    text = run_in_pipe(files)
    assert "\x1b" not in text and "\r" not in text
    assert re.search(r"^  First phase\n    changed  Loud task: n1, n2", text, re.MULTILINE)
    # The task has no line of its own. The table of phases names the task if it was slow.
    assert "Quiet task:" not in text and ": Quiet task" not in text
    assert "text of a plugin\n" in text
    assert "✕ n1: Last\n    The message, in full." in text
    assert re.search(r"play\.yml:\d+", text)
    assert "Failed on n1, n2" in text
    assert "pass1word" not in text
    assert re.search(r"^  n1 +5 +3 +1 +0", text, re.MULTILINE), text


REFUSED = """
- name: Phase {number}
  hosts: n2,{hosts}
  gather_facts: false
  tasks:
    - name: Refuse
      ansible.builtin.fail: {{msg: "The same of {whom}."}}
      no_log: {hidden}
      when: inventory_hostname != 'n2'
"""


def test_the_same_error_of_many_hosts_is_printed_once(files: Path) -> None:
    """Each phase has other hosts, since a failed host is in no later phase, and n2, which does not fail."""
    (files / "inventory.yml").write_text(INVENTORY.replace("n1: {}", "a1: {}, a2: {}, b1: {}, b2: {}, c1: {}, c2: {}"))
    phases = [
        REFUSED.format(number=1, hosts="a1,a2", whom="all", hidden=False),
        REFUSED.format(number=2, hosts="b1,b2", whom="{{ inventory_hostname }}", hidden=False),
        REFUSED.format(number=3, hosts="c1,c2", whom="all", hidden=True),
    ]
    (files / "play.yml").write_text("".join(phases), encoding="utf-8")
    text = run_in_pipe(files)
    assert text.count("The same of all.") == 1
    assert re.search(r"✕ (a[12]): Refuse\n(    .*\n)+  ✕ a[12]: the same as on \1\n", text), text
    assert text.count("the same as") == 1
    for phase in "bc":
        assert len(re.findall(rf"✕ {phase}[12]: Refuse\n    ", text)) == 2, text
    assert "Failed on a1, a2, b1, b2, c1, c2 after" in text


def test_run_without_hosts_is_reported(files: Path) -> None:
    (files / "play.yml").write_text("[{name: Phase, hosts: cluster, tasks: []}]", encoding="utf-8")
    assert (
        "  – no host matches; skipped\nNothing was done: no play had a host, or the tags exclude all tasks.\n"
        in run_in_pipe(files)
    )


def test_check_mode_says_would_and_the_diff_is_shown_below_the_phase(files: Path) -> None:
    (files / "play.yml").write_text(WRITTEN, encoding="utf-8")
    text = run_in_pipe(files, "--check", "--diff")
    assert "(check mode)" in text
    assert "would change  Would change: n1, n2" in text
    assert "Check mode: nothing was changed." in text
    assert not list(files.glob("made*"))
    assert "First phase" in text.partition("+xn1")[0] and "+xn1" in text
    assert "Loud task" not in text


def test_verbose_prints_results_like_the_default(files: Path) -> None:
    text = run_in_pipe(files, "-v")
    assert "TASK [Quiet task]" in text
    assert "ok: [n1] =>" in text
    assert "PLAY RECAP" in text
    assert "pass1word" not in text


@pytest.mark.parametrize(("variables", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_live_line_on_a_terminal_and_no_color(files: Path, variables: dict[str, str], colours: bool) -> None:
    text = run_in_terminal(files, **variables)
    assert "\r\x1b[K" in text
    assert "task 1: Quiet task" in text
    assert bool(re.search("\x1b\\[[0-9;]*m", text)) is colours
    # The output of other plugins starts on a line of its own.
    assert re.search("(\n|\x1b\\[K)text of a plugin\r?\n", text), text
    for part in re.findall("\x1b\\[K([^\r\n]*)", text):
        assert len(re.sub("\x1b\\[[0-9;]*m", "", part)) < 100


def test_nothing_is_redrawn_under_a_ci_server(files: Path) -> None:
    assert "\x1b[K" not in run_in_terminal(files, CI="true")


def test_summary_beside_another_callback(files: Path) -> None:
    text = run_in_pipe(
        files,
        ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
        ANSIBLE_CALLBACKS_ENABLED="gpumesh.cluster.progress_summary",
    )
    assert "SUMMARY *" in text
    assert re.search(r"^First phase +4 ", text, re.MULTILINE), text


RESCUED = """
- name: Look before it leaps
  hosts: n1
  gather_facts: false
  tasks:
    - name: Try, and help oneself
      rescue:
        - name: Do it another way
          ansible.builtin.assert: {that: true}
      block:
        - name: Around
          block:
            - name: Included
              ansible.builtin.include_tasks: attempt.yml
"""
BEYOND_RESCUE = """
- name: Nothing helps
  hosts: n1
  gather_facts: false
  tasks:
    - name: Try, and fail twice
      block:
        - name: Attempt
          ansible.builtin.fail: {msg: "The first trouble."}
      rescue:
        - name: Last resort
          ansible.builtin.fail: {msg: "The second trouble."}
"""


def test_rescued_task_is_not_a_failure(files: Path) -> None:
    (files / "play.yml").write_text(RESCUED, encoding="utf-8")
    (files / "attempt.yml").write_text(
        "- name: Attempt\n  ansible.builtin.fail: {msg: 'It is not there.'}\n", encoding="utf-8"
    )
    shown = run_in_pipe(files)
    assert "✕" not in shown and "1 failed" not in shown, shown
    assert "rescued  n1: It is not there." in shown
    assert "✓ Look before it leaps" in shown
    assert "Nothing to change" in shown


LOST_HOST_PLAY = """
- name: Phase {host}
  hosts: {host},n2
  gather_facts: false
  tasks:
    - name: Before
      ansible.builtin.assert: {{that: true}}
    - name: Include
      {include}
      when: inventory_hostname == '{host}'
    - name: After
      ansible.builtin.assert: {{that: true}}
"""
ONLY_LOST = """
- name: Phase d1
  hosts: d1
  gather_facts: false
  tasks:
    - name: Include
      ansible.builtin.include_tasks: gone.yml
"""


def test_failed_include_is_a_failure(files: Path) -> None:
    """The phase may contain nothing else."""
    hosts = ("a1", "b1", "c1", "d1")
    (files / "inventory.yml").write_text(INVENTORY.replace("n1: {}", ", ".join(f"{host}: {{}}" for host in hosts)))
    includes = [
        'ansible.builtin.include_tasks: "{{ nothere }}"',
        "ansible.builtin.include_tasks: gone.yml",
        "ansible.builtin.include_role: {name: gone}",
    ]
    phases = [LOST_HOST_PLAY.format(host=host, include=include) for host, include in zip(hosts, includes)]
    (files / "play.yml").write_text("".join([*phases, ONLY_LOST]), encoding="utf-8")
    shown = run_in_pipe(files)
    for host in hosts:
        assert f"✕ {host}: Include" in shown, shown
        assert re.search(rf"^✕ Phase {host} .*1 failed", shown, re.MULTILINE), shown
    assert "✓" not in shown


def test_host_lost_at_an_include_is_not_counted_afterwards() -> None:
    run = PlaybookRun()
    run.begin_phase("one", ["n1", "n2"])
    run.begin_task("first")
    run.lose_host("n1", "failed")
    assert run.begin_task("second").host_count == 1
    assert run.begin_phase("two", ["n1", "n2"]).host_count == 1
    assert [phase.count_outcomes("failed") for phase in run.phases] == [1, 0]


def test_failed_rescue_is_a_failure(files: Path) -> None:
    (files / "play.yml").write_text(BEYOND_RESCUE, encoding="utf-8")
    shown = run_in_pipe(files)
    assert "rescued  n1: The first trouble." in shown
    assert "✕ n1: Last resort" in shown and "1 failed" in shown
    assert "Failed on n1" in shown


UNREACHABLE_INVENTORY = """
all:
  vars: {ansible_connection: local, ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  hosts: {n1: {}, n2: {}, n3: {ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 1}}
"""
RUN_ONCE_PLAY = """
- name: Phase
  hosts: n1,n2
  gather_facts: false
  tasks:
    - name: Ask another host
      ansible.builtin.ping:
      delegate_to: n3
      run_once: true
      ignore_unreachable: true
      {more}
    - name: Ask more hosts
      ansible.builtin.ping:
      loop: [{label: one, machine: n2}, {label: two, machine: n3}]
      loop_control: {label: "{{ item.label }}"}
      delegate_to: "{{ item.machine }}"
      run_once: true
      ignore_unreachable: true
      ignore_errors: true
    - name: After
      ansible.builtin.command: "true"
"""


def test_run_ended_by_an_ignored_unreachable_host_has_failed(files: Path) -> None:
    """Ansible then ends all hosts with a status other than 0, and counts no failure."""
    (files / "inventory.yml").write_text(UNREACHABLE_INVENTORY, encoding="utf-8")
    (files / "play.yml").write_text(RUN_ONCE_PLAY.replace("{more}", ""), encoding="utf-8")
    shown = run_in_pipe(files)
    assert "After" not in shown
    assert "Done" not in shown and "Nothing to change" not in shown
    assert re.search(r"✕ n1 → n3: Ask another host\n    .*\n    .*port 1", shown), shown
    assert re.search(r"^✕ Phase .*1 unreachable", shown, re.MULTILINE), shown
    assert "Failed on n1 after" in shown


def test_ignored_unreachable_host_is_named_with_its_reason(files: Path) -> None:
    (files / "inventory.yml").write_text(UNREACHABLE_INVENTORY, encoding="utf-8")
    (files / "play.yml").write_text(RUN_ONCE_PLAY.replace("{more}", "ignore_errors: true"), encoding="utf-8")
    shown = run_in_pipe(files)
    assert len(re.findall(r"^    no answer  n1 → n3: [^✓]*?port 1:\s+Connection refused", shown, re.MULTILINE)) == 2, (
        shown
    )
    assert "changed  After: n1, n2" in shown
    assert "Done in" in shown


def test_delegated_host_is_named(files: Path) -> None:
    (files / "play.yml").write_text(
        """
- name: Phase
  hosts: all
  gather_facts: false
  tasks:
    - name: Delegate
      ansible.builtin.command: "true"
      delegate_to: n2
      run_once: true
    - name: Delegate each
      ansible.builtin.command: "true"
      loop: [n1, n2]
      delegate_to: "{{ item }}"
      run_once: true
      changed_when: item == 'n2'
    - name: Fail elsewhere
      ansible.builtin.fail: {msg: "Not here."}
      delegate_to: n2
      run_once: true
""",
        encoding="utf-8",
    )
    shown = run_in_pipe(files)
    # The duration follows the name if it was long.
    for task in ("Delegate", "Delegate each"):
        assert re.search(rf"^    changed  {task}: n1 → n2(  \(|$)", shown, re.MULTILINE), shown
    assert "✕ n1 → n2: Fail elsewhere\n" in shown, shown

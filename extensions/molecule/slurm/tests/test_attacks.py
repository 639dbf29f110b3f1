# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What root on a member, or on a former manager, can do to the other members through Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_hosts import Lab
from slurm_members import LAB, WAIT_TIMEOUT

#: The file that an attack would create, in a folder that slurmdbd's account can write to. Other attacks change data
#: outside the accounting database.
OWNED = "/var/lib/slurm/owned"
#: By what it uses: MariaDB's client, then its server.
ATTACKS = {
    "shell": f"\\! touch {OWNED}",
    "system": f"system touch {OWNED};",
    "shell within another delimiter": f"delimiter //\n\\! touch {OWNED}\n//",
    "source": "source /var/lib/slurm/slurmctld/more.sql",
    "tee": f"tee {OWNED}\nselect 1;",
    "a file of the server's": f"select 1 into outfile '{OWNED}';",
    "a file of the client's": "create table stolen (t text); load data local infile '/etc/hostname' into table stolen;",
    "an account": "insert into mysql.global_priv values ('%', 'owned', '{\"access\": 1}');",
    "a setting": "set global general_log_file = 'owned';",
}
FOLDER = "/var/lib/slurm/slurmctld"
PREPARE = f"""
import json, os, pwd, sys
for name, text in json.loads(sys.argv[1]).items():
    with open(f"{FOLDER}/{{name}}.sql", "w") as stream:
        os.fchown(stream.fileno(), pwd.getpwnam("slurm").pw_uid, -1)
        stream.write(text)
"""
#: Loads each attack as the role loads the accounting of a former manager.
PLAY = """
- hosts: s1
  become: true
  gather_facts: false
  tasks:
    - gpumesh.cluster.slurm_database: {state: loaded, database: owned, path: "{{ folder }}/{{ item }}.sql"}
      loop: "{{ range(attacks) | list }}"
      register: loaded
      failed_when: "'ERROR' not in loaded.msg | default('')"
"""


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    return LAB


@pytest.fixture(name="cleaned_up")
def _cleaned_up(lab: Lab) -> Iterator[None]:
    yield
    lab.run("s1", "sh", "-c", f"rm -f {OWNED} {FOLDER}/*.sql")
    lab.run("s1", "mariadb", "-e", "drop database owned; revoke all on owned.* from slurm@localhost")


@pytest.mark.usefixtures("cleaned_up")
def test_the_accounting_of_a_former_manager_is_sql_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    attacks = {str(number): text for number, text in enumerate(ATTACKS.values())}
    lab.run("s1", "python3", "-c", PREPARE, json.dumps({**attacks, "more": f"\\! touch {OWNED}"}))
    lab.run("s1", "mariadb", "-e", "create database owned; grant all on owned.* to slurm@localhost")
    play = tmp_path / "play.yml"
    play.write_text(PLAY)
    run = lab.run_playbook(str(play), "-e", json.dumps({"attacks": len(attacks), "folder": FOLDER}))
    assert run.exit_status == 0, run.output
    assert lab.run("s1", "sh", "-c", f"ls {OWNED} /var/lib/mysql/owned.log", check=False) == ""
    ask = (
        "select user from mysql.global_priv where user = 'owned'; select * from owned.stolen; select @@general_log_file"
    )
    assert "owned" not in lab.run("s1", "mariadb", "--batch", "--skip-column-names", "-e", ask).replace("owned.log", "")


# In Slurm 22.05, srun knows the addresses of nodes that have joined at run time only from the controller.
def test_root_of_a_member_is_root_of_all_as_the_guide_says(lab: Lab) -> None:
    """Only the controller enforces DisableRootJobs, and whoever has the munge key can bypass the controller."""
    keep, settings = "/root/slurm.conf.keep", "/etc/slurm/slurm.conf"
    lab.run("s1", "cp", "--preserve", settings, keep)
    try:
        lab.run("s1", "sed", "-i", "1a DisableRootJobs=YES", settings)
        lab.run("s1", "scontrol", "reconfigure")
        lab.wait_until(
            "root may run no job",
            lambda: "srun" in lab.run("s2", "sh", "-c", "srun -ws3 true 2>&1 || true"),
            WAIT_TIMEOUT,
        )
        # The controller has its new settings before slurmd, which replaces itself, listens again.
        bypass = ("srun", "--no-allocate", "--nodelist=s3", "id", "-un")
        lab.wait_until(
            "root runs one without asking the controller",
            lambda: "root" in lab.run("s2", *bypass, check=False, timeout=WAIT_TIMEOUT).split(),
            WAIT_TIMEOUT,
        )
    finally:
        lab.run("s1", "mv", keep, settings)
        lab.run("s1", "scontrol", "reconfigure")


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd", "munged"])
def test_a_crash_writes_no_secret_to_the_disk(lab: Lab, daemon: str) -> None:
    # The controller of the test before may just be replacing itself.
    limits = lab.run("s1", "sh", "-c", f"until cat /proc/$(pidof -s {daemon})/limits; do sleep 0.2; done")
    (core,) = (line.split() for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core[4:6] == ["0", "0"]

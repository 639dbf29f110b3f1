# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A dump replaces the database only when it is complete, wherever the load is interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import postgres

CLUSTER = postgres.PostgresCluster("17", "main", 5432, "/var/lib/postgresql/17/main")
NAME = "gpumesh_tracking"


class PowerCutError(Exception):
    """The run ends here."""


class Postgres:
    """Executes the statements of this module on databases that are only a name and their content.

    ``cut``: the command before which, or ``after`` which, the run is interrupted.
    """

    def __init__(self, **databases: str) -> None:
        self.databases = dict(databases)
        self.comments: dict[str, str] = {}
        self.roles = {NAME} if databases else set()
        self.refuses = ""
        self.commands = 0
        self.cut: int | None = None
        self.after = False

    def __call__(self, argv: list[str], stdin: str = "", **_more: Any) -> CommandResult:
        self.commands += 1
        if self.commands == self.cut and not self.after:
            raise PowerCutError
        said = self._restore(argv) if argv[0] == "pg_restore" else self._psql(argv, stdin)
        if self.commands == self.cut:
            raise PowerCutError
        return CommandResult(0, said, "")

    def _restore(self, argv: list[str]) -> str:
        if self.refuses:
            raise CommandError(argv, "exited 1", stderr=self.refuses)
        (into,) = (word.partition("=")[2] for word in argv if word.startswith("--dbname="))
        assert self.databases[into] == ""
        self.databases[into] = Path(argv[-1]).read_text(encoding="ascii")
        return ""

    def _psql(self, argv: list[str], stdin: str) -> str:
        names = dict(word[6:].split("=", 1) for word in argv if word.startswith("--set="))
        text = re.sub(r":([\"'])(\w+)\1", lambda found: found[1] + names[found[2]] + found[1], stdin)
        return "".join(f"{row}\n" for line in text.splitlines() for row in self._rows(line))

    def _rows(self, statement: str) -> list[str]:
        quoted = re.findall(r"[\"']([^\"']+)[\"']", statement)
        if statement.startswith("SELECT"):
            return self._query_rows(statement, quoted)
        for begins, change in {
            "DROP DATABASE": self._drop,
            "CREATE DATABASE": lambda name, *_more: self.databases.update({name: ""}),
            "ALTER DATABASE": self._rename,
            "COMMENT ON DATABASE": lambda name, text="": self.comments.update({name: text}),
            "CREATE ROLE": self.roles.add,
            "DROP ROLE": self.roles.remove,
            "REVOKE": lambda *_names: None,
            "BEGIN;": lambda: None,
            "COMMIT;": lambda: None,
        }.items():
            if statement.startswith(begins):
                change(*quoted)
                return []
        raise AssertionError(statement)

    def _query_rows(self, query: str, quoted: list[str]) -> list[str]:
        databases = self.databases
        if "pg_stat_activity" in query:
            return []
        if "pg_database JOIN pg_roles" in query:
            return ["1"] if databases else []
        if "FROM pg_roles" in query:
            return ["1"] if quoted[0] in self.roles else []
        if "shobj_description" in query:
            return [self.comments.get(quoted[1], "")] if quoted[1] in databases else []
        assert "FROM pg_database" in query
        return ["1"] if quoted[0] in databases else []

    def _drop(self, name: str) -> None:
        self.databases.pop(name, None)
        self.comments.pop(name, None)

    def _rename(self, name: str, to: str) -> None:
        assert to not in self.databases
        self.databases[to] = self.databases.pop(name)
        if name in self.comments:
            self.comments[to] = self.comments.pop(name)


@pytest.fixture(name="dump")
def _dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(postgres, "acting_as", lambda _user: contextlib.nullcontext())
    monkeypatch.setattr(postgres, "command_as", lambda _user, argv: argv)
    path = tmp_path / "database.dump"
    path.write_text("the runs of the dump", encoding="ascii")
    return path


def load_dump(server: Postgres, dump: Path) -> str:
    """What the role does, which loads a dump only if there is one."""
    if not dump.exists():
        return ""
    kept = postgres.load_dump(server, CLUSTER, str(dump), lambda _name: None, lambda: None)
    postgres.discard_dump(server, CLUSTER, str(dump))
    return kept


def test_replaced_database_is_kept(dump: Path) -> None:
    server = Postgres(gpumesh_tracking="years of runs")
    kept = load_dump(server, dump)
    assert re.fullmatch(r"gpumesh_tracking_before_\d{8}_\d{6}", kept)
    assert server.databases == {NAME: "the runs of the dump", kept: "years of runs"}
    assert not dump.exists()
    server = Postgres()
    dump.write_text("the runs of the dump", encoding="ascii")
    assert load_dump(server, dump) == "" and server.databases == {NAME: "the runs of the dump"}


@pytest.mark.parametrize(
    ("stderr", "present", "remedy"),
    [
        ("could not read from input file: end of file", "years of runs", "Replace it by a complete dump, or remove it"),
        ("could not read from input file: end of file", "", "Replace it by a complete dump."),
        ("unsupported version (1.16) in file header", "", "Choose a server whose PostgreSQL is as new as that of"),
    ],
)
def test_failed_load_changes_nothing(dump: Path, stderr: str, present: str, remedy: str) -> None:
    server = Postgres(**({NAME: present} if present else {}))
    server.refuses = stderr
    stopped: list[bool] = []
    before = dict(server.databases)
    with pytest.raises(HostStateError, match="cannot be loaded into PostgreSQL 17") as refused:
        postgres.load_dump(server, CLUSTER, str(dump), lambda _name: None, lambda: stopped.append(True))
    assert stderr in refused.value.message and refused.value.remedy.startswith(remedy)
    assert server.databases == before and dump.exists() and not stopped


@pytest.mark.parametrize("present", [{}, {NAME: "years of runs"}])
@pytest.mark.parametrize("after", [False, True])
def test_interrupted_load_can_be_repeated(dump: Path, present: dict[str, str], after: bool) -> None:
    whole = Postgres(**present)
    load_dump(whole, dump)
    assert whole.commands > 8
    for cut in range(1, whole.commands + 1):
        dump.write_text("the runs of the dump", encoding="ascii")
        server = Postgres(**present)
        server.cut, server.after = cut, after
        with pytest.raises(PowerCutError):
            load_dump(server, dump)
        load_dump(server, dump)
        kept = {name: content for name, content in server.databases.items() if name != NAME}
        assert server.databases[NAME] == "the runs of the dump" and not dump.exists()
        assert list(kept.values()) == list(present.values()), f"interrupted at command {cut}"


def test_rejected_dump_changes_nothing(dump: Path) -> None:
    server = Postgres(gpumesh_tracking="years of runs")
    offered: list[str] = []

    def refuse(name: str) -> None:
        offered.append(server.databases[name])
        raise HostStateError("The schema is newer.")

    with pytest.raises(HostStateError, match="The schema is newer"):
        postgres.load_dump(server, CLUSTER, str(dump), refuse, lambda: pytest.fail("the server was stopped"))
    assert offered == ["the runs of the dump"]
    assert server.databases == {NAME: "years of runs"} and dump.exists()


def test_handed_over_database_is_renamed(dump: Path) -> None:
    server = Postgres(gpumesh_tracking="years of runs", gpumesh_tracking_new="half a dump")
    kept = postgres.set_aside_database(server, CLUSTER)
    assert re.fullmatch(r"gpumesh_tracking_moved_\d{8}_\d{6}", kept)
    assert server.databases == {kept: "years of runs"} and server.roles == {NAME}
    assert postgres.set_aside_database(server, CLUSTER) == "" and server.databases == {kept: "years of runs"}


def test_digest_is_noted_before_the_dump_is_renamed(monkeypatch: pytest.MonkeyPatch, dump: Path) -> None:
    account = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(postgres, "ACCOUNT", account)
    dump.unlink()
    noted: list[str] = []

    def run(argv: list[str], **_more: Any) -> CommandResult:
        (draft,) = (word.partition("=")[2] for word in argv if word.startswith("--file="))
        Path(draft).write_bytes(b"the runs")
        return CommandResult(0, "", "")

    def note(digest: str) -> None:
        assert not dump.exists()
        noted.append(digest)

    postgres.save_database(run, CLUSTER, str(dump), note)
    assert noted == [hashlib.sha256(b"the runs").hexdigest()] == [postgres.dump_digest(str(dump))]
    assert [path.name for path in dump.parent.iterdir()] == [dump.name]
    with pytest.raises(HostStateError, match="nowhere cannot be read: No such file"):
        postgres.dump_digest(str(dump.parent / "nowhere"))

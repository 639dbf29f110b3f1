# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tracking server on its host: the contents of its files, early refusals, its database and its users."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from module_runs import write_programs

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import (
    confine,
    environment,
    postgres,
    server,
    settings,
    users,
)

#: The paths on a server that tests have elsewhere.
PATH_SETTINGS = (
    "UNIT",
    "AUTHENTICATION",
    "SECRET",
    "PASSPHRASE",
    "PROGRAM",
    "LIBRARY",
    "FOLDER",
    "MOVED",
    "SHARED_TRUST",
)
SERVER = settings.TrackingServer("lab", "n1", "10.0.0.1", 5000, False, "/mnt/shared", 875)
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
COMBINED = f"-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n{CERTIFICATE}"
REQUEST = server.TrackingRequest(SERVER, True, "", None, None, None, None, service.ServicePaths())


@pytest.mark.parametrize(("processors", "workers"), [(1, 1), (3, 1), (4, 2), (64, 2)])
def test_a_small_host_has_a_single_worker(tmp_path: Path, processors: int, workers: int) -> None:
    folder = write_programs(tmp_path / "bin", {"nproc": f"echo {processors}"})
    *_start, count, command = settings.format_program(SERVER, "/x", 5433).splitlines()
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    script = f"set -eu\nworkers=1\n{count}\necho {shlex.split(command)[-1]}"
    completed = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert completed.stdout == f"--workers={workers}\n"


def test_program_listens_on_the_cluster_address_without_secrets() -> None:
    text = settings.format_program(SERVER, "/usr/local/lib/gpumesh/mlflow/x", 5433)
    words = shlex.split(text.splitlines()[-1])
    assert {"--host=10.0.0.1", "--port=5000", "--app-name=gpumesh", "--memory=2048"} <= set(words)
    assert "--artifacts-destination=/mnt/shared/mlflow-lab/artifacts" in words
    assert any(word.endswith("?host=/run/postgresql&port=5433") for word in words)
    assert "--cors-allowed-origins=http://10.0.0.1:5000,http://n1:5000" in words
    assert "--uvicorn-opts=--timeout-worker-healthcheck 300" in words
    assert "ssl" not in text and "--unconfined" not in text
    launcher = words[: words.index("--")]
    assert launcher[1:5] == [
        "/usr/local/lib/gpumesh/mlflow/x/bin/python",
        "-I",
        settings.LAUNCHER_PATH,
        "--read=" + settings.AUTHENTICATION,
    ]
    assert "--unconfined" in settings.format_program(SERVER._replace(unconfined=True), "/x", 5432)
    assert "--ssl-keyfile /etc/gpumesh/tracking/tls.key" in settings.format_program(
        SERVER._replace(tls=True), "/x", 5432
    )


def test_app_entry_point_and_memory_limit_of_the_unit(tmp_path: Path) -> None:
    for path, text in settings.plugin_files(str(tmp_path), "3.13").items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    (packages,) = tmp_path.glob("lib/python3.13/site-packages")
    (found,) = [
        point
        for distribution in importlib.metadata.distributions(path=[str(packages)])
        for point in distribution.entry_points
    ]
    assert (found.group, found.name, found.value) == ("mlflow.app", settings.APP_NAME, "gpumesh_limits:create_app")
    written = {one["path"] for one in settings.list_files(SERVER, str(tmp_path), "3.13", 5432, True)}
    assert {
        *settings.plugin_files(str(tmp_path), "3.13"),
        *(str(path) for path in packages.glob("*.dist-info")),
    } < written
    assert "\nMemoryMax=4096M\n" in settings.format_unit(SERVER)


@pytest.mark.parametrize("mount_point", ["/mnt/shared", "/mnt/mlflow-x/artifacts", "/mnt/it's"])
def test_program_names_its_cluster(mount_point: str) -> None:
    for cluster in ("lab", "a-b_2"):
        wanted = SERVER._replace(cluster=cluster, mount_point=mount_point, tls=True)
        assert settings.parse_cluster(settings.format_program(wanted, "/x", 5432)) == cluster
    assert settings.parse_cluster("") == settings.parse_cluster("exec something\n") == ""


@pytest.fixture(name="host")
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host in the clusters lab and other, with the server of other."""
    for name in PATH_SETTINGS:
        monkeypatch.setattr(settings, name, str(tmp_path / "etc" / name))
    monkeypatch.setattr(settings, "trust_path", lambda cluster: str(tmp_path / "etc" / f"trust-{cluster}"))
    monkeypatch.setattr(server, "_RECORD_DIRECTORY", str(tmp_path / "clusters"))
    monkeypatch.setattr(server, "refuse_account", lambda _uid: None)
    (tmp_path / "etc").mkdir()
    (tmp_path / "clusters").mkdir(mode=0o700)
    for cluster in ("lab", "other"):
        # A damaged record is one, too.
        (tmp_path / "clusters" / f"{cluster}.json").write_text("{")
    text = settings.format_program(SERVER._replace(cluster="other"), "/x", 5432)
    (tmp_path / "etc" / "PROGRAM").write_text(text)
    return tmp_path


def no_command(*argv: Any, **_more: Any) -> CommandResult:
    raise AssertionError(argv)


@pytest.mark.parametrize("keep_data", [True, False])
def test_server_of_another_cluster_is_not_removed(host: Path, keep_data: bool) -> None:
    for name in ("SHARED_TRUST", "trust-other", "trust-lab"):
        (host / "etc" / name).write_text(CERTIFICATE)
    member = REQUEST._replace(serves=False)
    assert server.has_leftovers(member), "it has a certificate of its own"
    assert server.retire_server(no_command, member, keep_data)
    assert sorted(path.name for path in (host / "etc").iterdir()) == ["PROGRAM", "SHARED_TRUST", "trust-other"]
    assert not server.has_leftovers(member) and server.describe_differences(no_command, member) == []
    assert not server.retire_server(no_command, member, keep_data)
    # Another member would start with an empty database, instead of the one that both clusters use here.
    with pytest.raises(HostStateError, match="the tracking server of cluster 'other'"):
        server.save_database(no_command, member)
    # Only its own cluster removes the server.
    own = member._replace(server=SERVER._replace(cluster="other"))
    assert server.has_leftovers(own) and server.describe_differences(no_command, own) == [server.STILL_HERE]


def test_second_cluster_on_the_same_host_is_refused(host: Path) -> None:
    with pytest.raises(HostStateError, match=r"runs the tracking server of cluster 'other'.*Set tracking_server to"):
        server.refuse_server(REQUEST)
    assert server.describe_differences(no_command, REQUEST) == ["the server of cluster 'other' is here"]
    server.refuse_server(REQUEST._replace(server=SERVER._replace(cluster="other", mount_point=str(host))))
    # The host is not in that cluster any more.
    (host / "clusters" / "other.json").unlink()
    server.refuse_server(REQUEST._replace(server=SERVER._replace(mount_point=str(host))))
    assert server.has_leftovers(REQUEST._replace(serves=False))


def test_each_cluster_has_its_own_trust_file(host: Path) -> None:
    member = REQUEST._replace(serves=False, server=SERVER._replace(tls=True))
    with pytest.raises(InputError, match="there is no .*/trust-lab"):
        server.refuse_member(member)
    shared, own = host / "etc" / "SHARED_TRUST", host / "etc" / "trust-lab"
    shared.write_text(f"a comment\n{CERTIFICATE}")
    server.refuse_member(member)
    assert server.describe_differences(no_command, member) == [f"{own} is missing"]
    assert server.apply_request(no_command, member).messages == [f"{own} written"]
    assert own.read_text() == CERTIFICATE and own.stat().st_mode & 0o777 == 0o644
    assert "a comment" in shared.read_text(), "jobs that run still read it"
    assert server.apply_request(no_command, member).messages == []
    assert server.apply_request(no_command, member._replace(trust=CERTIFICATE)).messages == []
    assert server.apply_request(no_command, member._replace(trust=CERTIFICATE * 2)).messages == [f"{own} written"]


def test_last_cluster_removes_the_shared_trust_file(host: Path) -> None:
    (host / "etc" / "SHARED_TRUST").write_text(CERTIFICATE)
    member = REQUEST._replace(serves=False)
    assert not server.has_leftovers(member)
    (host / "clusters" / "other.json").unlink()
    (host / "etc" / "PROGRAM").unlink()
    assert server.has_leftovers(member) and server.retire_server(no_command, member, True)
    assert not (host / "etc").exists()


def test_private_key_in_the_shared_trust_file_is_removed(host: Path) -> None:
    shared, own = host / "etc" / "SHARED_TRUST", host / "etc" / "trust-lab"
    shared.write_text(COMBINED)
    member = REQUEST._replace(serves=False, server=SERVER._replace(tls=True))
    assert server.apply_request(no_command, member).messages == [f"{own} written", f"{shared} written"]
    assert shared.read_text() == own.read_text() == CERTIFICATE
    own.write_text(COMBINED)
    assert server.apply_request(no_command, member._replace(trust=COMBINED)).messages == [f"{own} written"]
    assert own.read_text() == CERTIFICATE


def test_authentication_file_is_valid_ini() -> None:
    read = configparser.ConfigParser()
    read.read_string(settings.format_authentication(5432, "a-secret"))
    assert read["mlflow"]["admin_username"] == "gpumesh" and read["mlflow"]["admin_password"] == "a-secret"
    assert read["mlflow"]["database_uri"] == settings.database_url(5432)
    assert read["mlflow"]["authorization_function"] == "gpumesh_locations:authenticate"


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root has files that others cannot read")
def test_password_readable_by_the_server_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SECRET", "PASSPHRASE", "AUTHENTICATION", "CHECKER_PASSWORD"):
        monkeypatch.setattr(settings, name, str(tmp_path / name))
    monkeypatch.setattr(settings, "ACCOUNT", "games")
    (tmp_path / "AUTHENTICATION").write_text(settings.format_authentication(5432, "a-valid-one"))
    assert server.checker_password() is None
    server.write_secrets(server.secret_files(REQUEST, 5432))
    password = server.checker_password()
    text = (tmp_path / "AUTHENTICATION").read_text()
    assert password and password not in text and "a-valid-one" not in text
    assert server.secret_files(REQUEST, 5432) == []


def test_environment_depends_on_python_and_packages() -> None:
    paths = {settings.environment_path(*given) for given in (("a==1", "3.13"), ("a==2", "3.13"), ("a==1", "3.11"))}
    assert len(paths) == 3


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, None),
        ({"user": ("gpumesh_tracking", 875), "group": ("gpumesh_tracking", 875)}, None),
        ({"user": ("other", 875)}, "The ID 875 for the user gpumesh_tracking belongs to 'other'"),
        ({"group": ("other", 875)}, "The ID 875 for the group gpumesh_tracking belongs to 'other'"),
        ({"user": ("gpumesh_tracking", 99)}, "The user gpumesh_tracking has the ID 99 on this host, not 875"),
    ],
)
def test_uid_of_another_account_is_refused(
    monkeypatch: pytest.MonkeyPatch, entries: dict[str, tuple[str, int]], words: str | None
) -> None:
    def looked_up(kind: str, field: int) -> Any:
        def find(key: object) -> tuple[str, str, int]:
            if kind in entries and entries[kind][field] == key:
                return (entries[kind][0], "x", entries[kind][1])
            raise KeyError(key)

        return find

    monkeypatch.setattr(server.pwd, "getpwnam", looked_up("user", 0))
    monkeypatch.setattr(server.pwd, "getpwuid", looked_up("user", 1))
    monkeypatch.setattr(server.grp, "getgrnam", looked_up("group", 0))
    monkeypatch.setattr(server.grp, "getgrgid", looked_up("group", 1))
    if words is None:
        server.refuse_account(875)
        return
    with pytest.raises(HostStateError, match=words):
        server.refuse_account(875)


def test_missing_volume_or_certificate_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "refuse_account", lambda _uid: None)
    with pytest.raises(HostStateError, match="/mnt/nowhere, where the artifacts belong, does not exist"):
        server.refuse_server(REQUEST._replace(server=SERVER._replace(mount_point="/mnt/nowhere")))
    secure = SERVER._replace(mount_point=str(tmp_path), tls=True)
    with pytest.raises(InputError, match="Set tracking_certificate_file again"):
        server.refuse_server(REQUEST._replace(server=secure))
    server.refuse_server(REQUEST._replace(server=secure, certificate="x", key="y"))
    monkeypatch.setattr(server.confine, "landlock_version", lambda: 0)
    here = SERVER._replace(mount_point=str(tmp_path))
    with pytest.raises(HostStateError, match=r"has no Landlock.*could not be confined.*tracking_unconfined=true"):
        server.refuse_server(REQUEST._replace(server=here))
    server.refuse_server(REQUEST._replace(server=here._replace(unconfined=True)))
    with pytest.raises(InputError, match="or tracking_ca_file, again"):
        server.refuse_member(REQUEST._replace(server=secure))


def test_newest_postgresql_cluster_is_used() -> None:
    text = (
        "9.6 main 5431 down postgres /var/lib/postgresql/9.6/main /var/log/x\n"
        "17  main    5433 online,recovery postgres /var/lib/postgresql/17/main /var/log/y\n"
        "17  other   5434 online postgres /var/lib/postgresql/17/other /var/log/z\n"
    )
    found = postgres.find_cluster(lambda *_argv, **_more: CommandResult(0, text, ""), None)
    assert (found.version, found.port, found.unit_name) == ("17", 5433, "postgresql@17-main")
    assert found.socket_path == "/run/postgresql/.s.PGSQL.5433"
    with pytest.raises(HostStateError, match="has no cluster 'main'"):
        postgres.find_cluster(lambda *_argv, **_more: CommandResult(0, "", ""), None)


@pytest.mark.parametrize(
    ("old", "has_it", "port", "found"),
    [
        # The server knows where its database is.
        ("online", [], 5432, "15"),
        # pg_upgradecluster has exchanged the ports.
        ("down", [], 5433, "17"),
        ("down", [], 5432, "PostgreSQL 15, which has the database of the experiments, is down"),
        ("down,binaries_missing", [], 5432, "or upgrade it as the manual of pg_upgradecluster says"),
        # A database that was kept when tracking was switched off, or whose port has changed.
        ("online", [5432], None, "15"),
        ("online", [5432], 6000, "15"),
        ("online", [5432, 5433], None, "17"),
        ("online", [], 6000, "was in PostgreSQL on port 6000, and no running cluster has it"),
        # There is none yet.
        ("online", [], None, "17"),
        ("down", [], None, "17"),
    ],
)
def test_cluster_with_the_database_is_used_after_an_upgrade(
    monkeypatch: pytest.MonkeyPatch, old: str, has_it: list[int], port: int | None, found: str
) -> None:
    text = (
        f"15 main 5432 {old} postgres /var/lib/postgresql/15/main /x\n"
        "17 main 5433 online postgres /var/lib/postgresql/17/main /x\n"
    )
    monkeypatch.setattr(postgres, "database_exists", lambda _run, cluster: cluster.is_online and cluster.port in has_it)

    def run(*_argv: Any, **_more: Any) -> CommandResult:
        return CommandResult(0, text, "")

    if found.isdigit():
        assert postgres.find_cluster(run, port).version == found
        return
    with pytest.raises(HostStateError) as refused:
        postgres.find_cluster(run, port)
    assert found in str(refused.value)


def test_single_cluster_is_used_even_if_down() -> None:
    text = "17 main 5433 down postgres /var/lib/postgresql/17/main /x\n"
    assert postgres.find_cluster(lambda *_argv, **_more: CommandResult(0, text, ""), 5432).port == 5433


def test_postgresql_version_before_and_after_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "pg_lsclusters": "17 main 5433 online postgres /var/lib/postgresql/17/main /x\n",
        "apt-cache": "postgresql:\n  Installed: (none)\n  Candidate: 15+248+deb12u1\n  Version table:\n",
    }

    def run(argv: list[str], **_more: Any) -> CommandResult:
        return CommandResult(0, said[argv[0]], "")

    monkeypatch.setattr(postgres, "find_program", said.get)
    monkeypatch.setattr(server, "is_installed", lambda: False)
    assert server.postgresql_version(run, REQUEST) == "17"
    assert server.postgresql_version(run, REQUEST._replace(serves=False)) == ""
    monkeypatch.setattr(server, "is_installed", lambda: True)
    assert server.postgresql_version(run, REQUEST._replace(serves=False)) == "17"
    del said["pg_lsclusters"]
    assert server.postgresql_version(run, REQUEST) == "15"
    assert postgres.parse_candidate("postgresql:\n  Installed: (none)\n  Candidate: (none)\n") == ""
    said.clear()
    assert server.postgresql_version(run, REQUEST) == ""


def test_database_port_is_read_from_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "AUTHENTICATION", str(tmp_path / "auth.ini"))
    assert server.database_port() is None
    (tmp_path / "auth.ini").write_text(settings.format_authentication(5433, "a-secret"), encoding="ascii")
    assert server.database_port() == 5433


#: For root without privileges on the volume, as with NFS and root_squash.
SQUASHED = """
import os, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import postgres, server, settings
settings.ACCOUNT = postgres.ACCOUNT = sys.argv[1]
volume, settings.HOME = sys.argv[2:]
settings.SCRATCH = f"{settings.HOME}/scratch"
wanted = settings.TrackingServer("lab", "n1", "10.0.0.1", 5000, False, volume, 0)
try:
    print(server.make_directories(wanted), server.make_directories(wanted), postgres.dump_exists(wanted.dump_path))
except HostStateError as failure:
    print(failure.message)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root can be squashed")
@pytest.mark.parametrize(
    ("mode", "ready", "expected_output"),
    [
        (0o1777, False, "True False False"),
        (0o755, True, "True False False"),
        (0o755, False, "/mlflow-lab cannot be created: Permission denied."),
    ],
)
def test_directories_on_a_root_squashing_volume(mode: int, ready: bool, expected_output: str) -> None:
    games, nobody = pwd.getpwnam("games"), pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        volume, home = Path(folder, "volume"), Path(folder, "home")
        for path, owner in ((volume, nobody), (home, pwd.getpwnam("root")), (home / "scratch", games)):
            path.mkdir(0o700 if owner is games else 0o755)
            os.chown(path, owner.pw_uid, owner.pw_gid)
        volume.chmod(mode)
        if ready:
            (volume / "mlflow-lab").mkdir(0o700)
            os.chown(volume / "mlflow-lab", games.pw_uid, games.pw_gid)
        rights = ["dac_override", "dac_read_search", "fowner", "chown"]
        less = ",".join(f"-{right}" for right in rights)
        argv = ["setpriv", f"--bounding-set={less}", f"--inh-caps={less}", sys.executable]
        argv += ["-c", SQUASHED, "games", str(volume), str(home)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
        assert done.stdout.strip().endswith(expected_output)
        if "True" in expected_output:
            for path in (volume / "mlflow-lab", volume / "mlflow-lab" / "artifacts"):
                assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (games.pw_uid, 0o700)


def test_last_output_line_is_parsed() -> None:
    assert environment.parse_last_line('A warning\n\n{"a": "b"}\n') == {"a": "b"}


def test_unsupported_python_is_refused() -> None:
    with pytest.raises(HostStateError, match="cannot run with Python 3.9 of this host"):
        environment.python_version(lambda *_argv, **_more: CommandResult(0, "3.9\n", ""))


class Store:
    """Stands in for MLflow's store."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {"bob": ["old-password", False]}

    def has_user(self, name: str) -> bool:
        return name in self.known

    def authenticate_user(self, name: str, password: str) -> bool:
        return bool(self.known[name][0] == password)

    def get_user(self, name: str) -> Any:
        return type("User", (), {"is_admin": self.known[name][1]})

    def create_user(self, name: str, password: str, is_admin: bool) -> None:
        self.known[name] = [password, is_admin]

    update_user = create_user

    def delete_user(self, name: str) -> None:
        del self.known[name]


def test_users_are_created_changed_and_removed() -> None:
    store = Store()
    store.known["carol"] = ["hers", False]
    wanted: list[dict[str, Any]] = [
        {"name": "bob", "password": "new-password", "administrator": False},
        {"name": "admin", "password": "the-password", "administrator": True},
    ]
    assert users.ensure_users(store, wanted) == ["bob", "admin"]
    assert users.ensure_users(store, wanted) == []
    assert store.known == {"bob": ["new-password", False], "admin": ["the-password", True], "carol": ["hers", False]}
    assert users.ensure_users(store, [{"name": "bob", "password": None, "administrator": False}] * 2) == ["bob"]
    assert "bob" not in store.known


def test_server_is_restarted_after_its_volume_was_remounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel denies it the new directory."""
    account = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(settings, "ACCOUNT", account)
    monkeypatch.setattr(settings, "SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setattr(settings, "ALLOWED_NOTE", str(tmp_path / "scratch" / "allowed"))
    here = SERVER._replace(mount_point=str(tmp_path))
    for path in settings.writable_directories(here):
        Path(path).mkdir(parents=True)
    cluster = postgres.PostgresCluster("17", "main", 5432, "/x")

    def state() -> str:
        return str(server.build_daemons(here, cluster, True)[1][0].state)

    # The server has not been started yet.
    assert state() == "started"
    Path(settings.ALLOWED_NOTE).write_text(confine.directory_identities(settings.writable_directories(here)))
    assert state() == "started"
    # Another file system there has other numbers.
    Path(here.artifact_directory).rename(tmp_path / "before")
    Path(here.artifact_directory).mkdir()
    assert state() == "restarted"
    # Whoever has taken over the server writes the note, or a link.
    Path(settings.ALLOWED_NOTE).unlink()
    Path(settings.ALLOWED_NOTE).symlink_to("/etc/passwd")
    assert state() == "started"


class Experiments:
    """Stands in for MLflow's experiments and the permissions of its users."""

    def __init__(self, **experiments_by_name: Any) -> None:
        self.known = {
            str(number): {"name": name, "tags": {}, **more}
            for number, (name, more) in enumerate(experiments_by_name.items())
        }
        self.grants: dict[tuple[str, str], str] = {}
        self.users: list[str] = []

    def list_users(self) -> list[Any]:
        return [SimpleNamespace(username=name) for name in self.users]

    def list_experiment_permissions(self, user: str) -> list[Any]:
        return [
            SimpleNamespace(experiment_id=number, permission=permission)
            for (name, number), permission in self.grants.items()
            if name == user
        ]

    def grant_user_permission(self, user: str, kind: str, number: str, permission: str) -> None:
        assert kind == "experiment"
        self.grants[user, number] = permission

    def get_experiment_by_name(self, name: str) -> Any:
        for number, one in self.known.items():
            if one["name"] == name:
                stage = one.get("lifecycle_stage", "active")
                return SimpleNamespace(experiment_id=number, tags=one["tags"], lifecycle_stage=stage)
        return None

    def create_experiment(self, name: str, tags: Any) -> str:
        number = str(len(self.known))
        self.known[number] = {"name": name, "tags": dict(tags)}
        return number

    def _changed(self, number: str) -> dict[str, Any]:
        assert self.known[number].get("lifecycle_stage") != "deleted", "MLflow refuses it"
        return self.known[number]

    def rename_experiment(self, number: str, name: str) -> None:
        self._changed(number)["name"] = name

    def set_experiment_tag(self, number: str, tag: tuple[str, str]) -> None:
        self._changed(number)["tags"][tag[0]] = tag[1]

    def restore_experiment(self, number: str) -> None:
        del self.known[number]["lifecycle_stage"]

    def delete_experiment(self, number: str) -> None:
        self.known[number]["lifecycle_stage"] = "deleted"

    def settle(self) -> list[str]:
        changed, failed = users.ensure_experiments(self, self, lambda key, value: (key, value), ["gpumesh"], ValueError)
        assert failed == {}
        return changed


@pytest.mark.parametrize("default", [{}, {"lifecycle_stage": "deleted"}, None])
def test_database_identity_is_visible_to_all_users(default: dict[str, Any] | None) -> None:
    store = Experiments(**({} if default is None else {"Default": default}))

    def settle(identity: str) -> bool:
        return users.ensure_identity(store, lambda key, value: (key, value), identity)

    assert settle("17-1") and not settle("17-1") and settle("17-2")
    (found,) = store.known.values()
    assert found["name"] == "Default" and found["tags"] == {"gpumesh.database": "17-2"}
    assert found.get("lifecycle_stage") == (default or {}).get("lifecycle_stage")


def test_each_user_manages_their_experiment() -> None:
    store = Experiments(old={}, deleted={"lifecycle_stage": "deleted"})
    store.users = ["gpumesh", "alice", "old", "deleted"]
    # As earlier versions of gpumesh_track made it.
    store.grants = {("old", "0"): "MANAGE", ("deleted", "1"): "MANAGE"}
    assert store.settle() == ["alice", "old", "deleted"]
    assert store.settle() == []
    assert [one["name"] for one in store.known.values()] == ["old", "deleted", "alice"]
    assert [one["tags"][users.OWNER_TAG] for one in store.known.values()] == ["old", "deleted", "alice"]
    assert store.grants["alice", "2"] == "MANAGE" and store.known["1"]["lifecycle_stage"] == "deleted"


@pytest.mark.parametrize("more", [{}, {"lifecycle_stage": "deleted"}])
@pytest.mark.parametrize(
    ("owner", "grants"),
    [
        *((owner, {"mallory": "MANAGE"}) for owner in ("mallory", "bob", None)),
        *((owner, {"mallory": "EDIT"}) for owner in ("mallory", "bob", None)),
        *((owner, {"mallory": "READ", "bob": "MANAGE"}) for owner in ("mallory", None)),
    ],
)
def test_experiment_named_after_another_user_is_renamed(
    owner: str | None, grants: dict[str, str], more: dict[str, Any]
) -> None:
    store = Experiments(bob={**more, "tags": {users.OWNER_TAG: owner} if owner else {}})
    store.users = ["bob", "mallory"]
    store.grants = {(user, "0"): permission for user, permission in grants.items()}
    assert store.settle() == ["bob", "mallory"]
    assert store.settle() == []
    assert re.fullmatch(r"bob \(of mallory, [0-9a-f]{8}\)", store.known["0"]["name"])
    assert store.known["0"].get("lifecycle_stage") == more.get("lifecycle_stage")
    assert store.known["1"]["name"] == "bob" and store.known["1"]["tags"][users.OWNER_TAG] == "bob"
    assert store.grants["bob", "1"] == "MANAGE" and ("mallory", "1") not in store.grants


def test_experiment_of_an_unknown_owner_is_renamed_but_not_that_of_a_removed_user() -> None:
    store = Experiments(bob={}, carol={"tags": {users.OWNER_TAG: "carol"}})
    store.users = ["bob", "carol"]
    assert store.settle() == ["bob", "carol"]
    assert store.known["0"]["name"].startswith("bob (of another user, ")
    assert store.grants == {("bob", "2"): "MANAGE", ("carol", "1"): "MANAGE"}


def test_new_experiment_name_is_limited_in_length() -> None:
    long = "b" * 255
    store = Experiments(**{long: {}})
    store.users = [long, *(f"{number}{'m' * 200}" for number in range(9))]
    store.grants = {(user, "0"): "EDIT" for user in store.users[1:]}
    store.settle()
    assert len(store.known["0"]["name"]) <= 256


def test_failed_experiment_does_not_block_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Experiments(alice={})
    store.users = ["alice", "bob"]

    def refuse(_number: str, _name: str) -> None:
        raise ValueError("UNIQUE constraint failed")

    monkeypatch.setattr(store, "rename_experiment", refuse)
    changed, failed = users.ensure_experiments(store, store, lambda key, value: (key, value), [], ValueError)
    assert (changed, failed) == (["bob"], {"alice": "UNIQUE constraint failed"})
    told = {"changed": [], "experiments": changed, "failed": failed, "encrypted": True, "database": False}
    said = json.dumps(told)
    monkeypatch.setattr(server, "write_atomic", lambda *_given, **_more: None)
    monkeypatch.setattr(server, "command_as", lambda _account, argv: argv)
    words = server.ensure_users(
        lambda *_argv, **_more: CommandResult(0, said, ""), "/x", postgres.PostgresCluster("17", "main", 5432, "/x"), []
    )
    assert words == [
        "experiment of user bob created",
        "experiment of user alice not created: UNIQUE constraint failed",
        "keys of the gateway encrypted",
    ]


def test_user_may_share_their_experiment() -> None:
    store = Experiments(bob={"tags": {users.OWNER_TAG: "bob"}})
    store.users = ["bob"]
    store.grants = {("bob", "0"): "MANAGE", ("alice", "0"): "MANAGE"}
    assert store.settle() == []


def test_check_mode_works_before_the_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """systemd does not know a unit that has not been written yet, which is not an error."""
    asked = []

    def run(argv: list[str], **_more: Any) -> CommandResult:
        asked.append(argv)
        if argv[0] == "pg_lsclusters":
            return CommandResult(0, "17 main 5432 online postgres /var/lib/postgresql/17/main /x\n", "")
        if argv[0] == "systemctl":
            known = "postgresql@17-main" in argv[-1]
            state = "loaded\nActiveState=active\nUnitFileState=enabled" if known else "not-found"
            return CommandResult(0, f"LoadState={state}\n", "")
        return CommandResult(0, "3.13\n", "")

    monkeypatch.setattr(server, "missing_packages", list)
    monkeypatch.setattr(server.service, "service_manager", lambda _tree: service.SYSTEMD)
    for name in ("UNIT", "AUTHENTICATION", "SECRET", "PASSPHRASE", "PROGRAM", "LIBRARY", "FOLDER"):
        monkeypatch.setattr(settings, name, str(tmp_path / name))
    words = server.describe_differences(run, REQUEST)
    assert f"{tmp_path}/UNIT is missing" in words and f"{tmp_path}/AUTHENTICATION is missing" in words
    assert not any("gpumesh-tracking.service" in word for argv in asked for word in argv)


class FakeMove:
    """Stands in for PostgreSQL on the servers n1 and n2, whose volume with the dump has real files.

    ``databases``: the content of each server's database. ``kept``: those that have another name now.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.databases: dict[str, str] = {"n1": "years of runs"}
        self.renamed_databases: list[str] = []
        self.stops: list[str] = []
        self.schemas: dict[str, str] = {}
        self.machine = ""
        self.folder, self.patch = folder, monkeypatch
        self.volume = folder / "volume" / "mlflow-lab"
        self.dump, self.moves = self.volume / "database.dump", self.volume / "moves.json"
        self.volume.mkdir(parents=True)
        cluster = postgres.PostgresCluster("17", "main", 5432, "/x")
        account = pwd.getpwuid(os.geteuid()).pw_name
        for module in (settings, postgres):
            monkeypatch.setattr(module, "ACCOUNT", account)
        monkeypatch.setattr(server, "_RECORD_DIRECTORY", str(folder / "clusters"))
        monkeypatch.setattr(server, "find_program", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(server, "_find_cluster", lambda _run: cluster)
        monkeypatch.setattr(server, "_run_daemon", lambda *_given: None)
        monkeypatch.setattr(server, "_stop_mlflow", lambda *_given: self.stops.append(self.machine))
        monkeypatch.setattr(server.service, "service_manager", lambda _tree: service.SYSTEMD)
        monkeypatch.setattr(postgres, "database_exists", lambda _run, _cluster: self.machine in self.databases)
        monkeypatch.setattr(
            postgres, "create_database", lambda _run, _cluster: self.databases.update({self.machine: ""})
        )
        monkeypatch.setattr(postgres, "schema_versions", lambda *_given: self.schemas)
        monkeypatch.setattr(postgres, "load_dump", self._load)
        monkeypatch.setattr(postgres, "discard_dump", lambda _run, _cluster, path: Path(path).unlink())
        monkeypatch.setattr(
            postgres,
            "set_aside_database",
            lambda *_given: self.renamed_databases.append(self.databases.pop(self.machine)),
        )
        monkeypatch.setattr(
            environment,
            "list_revisions",
            lambda _run, _folder: {"alembic_version": ["head", "older"], "alembic_version_auth": ["auth"]},
        )

    def _load(self, _run: Any, _cluster: Any, path: str, accept: Any, stop: Any) -> str:
        accept("gpumesh_tracking_new")
        stop()
        if self.machine in self.databases:
            self.renamed_databases.append(self.databases[self.machine])
        self.databases[self.machine] = Path(path).read_text()
        return ""

    def _pg_dump(self, argv: list[str], **_more: Any) -> CommandResult:
        for word in argv:
            if word.startswith("--file="):
                Path(word.partition("=")[2]).write_text(self.databases[self.machine])
        return CommandResult(0, "", "")

    def on(self, machine: str) -> None:
        """Continue on this machine."""
        self.machine = machine
        own = self.folder / machine
        if not own.exists():
            own.mkdir()
            (own / "AUTHENTICATION").touch()
        for name in PATH_SETTINGS:
            self.patch.setattr(settings, name, str(own / name))
        self.patch.setattr(server, "_remove_directories", lambda: shutil.rmtree(own))

    def request(self, machine: str) -> server.TrackingRequest:
        """Return the request for a record with this server."""
        there = SERVER._replace(mount_point=str(self.volume.parent), machine=machine)
        return REQUEST._replace(server=there, serves=machine == self.machine)

    def save(self, machine: str) -> bool:
        self.on(machine)
        return server.save_database(self._pg_dump, self.request(machine))

    def serve(self, machine: str) -> None:
        self.on(machine)
        heads = {"alembic_version": "head", "alembic_version_auth": "auth", "mlflow": "3.17.2"}
        server._prepare_database(succeed, self.request(machine), True, server._find_cluster(succeed), "/x", heads, [])

    def retire(self, machine: str, new: str) -> None:
        self.on(machine)
        server.retire_server(succeed, self.request(new), False)

    def listed(self) -> list[Any]:
        return list(json.loads(self.moves.read_text()))


def succeed(*_argv: Any, **_more: Any) -> CommandResult:
    return CommandResult(0, "", "")


@pytest.fixture(name="moving")
def _fake_move(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMove:
    return FakeMove(monkeypatch, tmp_path)


def test_taken_over_database_is_renamed(moving: FakeMove) -> None:
    assert moving.save("n1")
    assert not moving.save("n1"), "an interrupted move goes on"
    with pytest.raises(HostStateError, match="has not been taken over yet"):
        moving.retire("n1", "n2")
    moving.serve("n2")
    moving.retire("n1", "n2")
    assert moving.databases == {"n2": "years of runs"} and moving.renamed_databases == ["years of runs"]
    assert not moving.dump.exists() and not (moving.folder / "n1").exists()


def test_vanished_dump_loses_no_data(moving: FakeMove) -> None:
    moving.save("n1")
    moving.dump.unlink()
    with pytest.raises(HostStateError, match="that n1 has saved for this server is missing") as refused:
        moving.serve("n2")
    assert "tracking_server=n1" in refused.value.remedy
    with pytest.raises(HostStateError, match="still on this host") as refused:
        moving.retire("n1", "n2")
    assert "tracking_server=n1" in refused.value.remedy
    assert moving.databases == {"n1": "years of runs"}
    # What that says: back, and once more.
    assert not moving.save("n2")
    moving.serve("n1")
    assert moving.databases == {"n1": "years of runs"} and moving.save("n1")
    moving.serve("n2")
    moving.retire("n1", "n2")
    assert moving.databases == {"n2": "years of runs"}


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '[{"digest": 1}]'])
def test_former_server_keeps_its_database_without_a_receipt(moving: FakeMove, damaged: str) -> None:
    """The whole folder was restored from a snapshot, so that the new server began with an empty database."""
    moving.save("n1")
    moving.dump.unlink()
    moving.moves.unlink()
    moving.serve("n2")
    assert moving.databases["n2"] == ""
    if damaged:
        moving.moves.write_text(damaged)
    stops = len(moving.stops)
    with pytest.raises(HostStateError, match="n2 has not loaded the database") as refused:
        moving.retire("n1", "n2")
    assert f"remove {moving.folder}/n1/MOVED" in refused.value.remedy
    assert moving.databases["n1"] == "years of runs" and len(moving.stops) == stops
    # To go on with that.
    (moving.folder / "n1" / "MOVED").unlink()
    moving.retire("n1", "n2")
    assert moving.databases["n1"] == "years of runs" and not (moving.folder / "n1").exists()


def test_former_server_absent_during_two_moves_is_identified(moving: FakeMove) -> None:
    moving.save("n1")
    moving.serve("n2")
    moving.databases["n2"] = "more runs"
    moving.save("n2")
    moving.serve("n3")
    moving.retire("n1", "n3")
    moving.retire("n2", "n3")
    assert moving.databases == {"n3": "more runs"} and moving.renamed_databases == ["years of runs", "more runs"]
    assert [(one["former"], one["loaded"]) for one in moving.listed()] == [("n1", "n2"), ("n2", "n3")]


def test_failed_move_keeps_the_own_database(moving: FakeMove) -> None:
    """The new one could not be started, so that the record still names the former one."""
    moving.save("n1")
    moving.serve("n1")
    assert moving.databases == {"n1": "years of runs"} and moving.renamed_databases == [] == moving.listed()
    assert not moving.dump.exists() and not (moving.folder / "n1" / "MOVED").exists()
    moving.databases["n1"] = "more runs"
    # The server is lost: another one starts, and nothing is expected from this host.
    moving.serve("n2")
    assert moving.databases["n2"] == ""


def test_returned_server_keeps_its_database_when_it_leaves(moving: FakeMove) -> None:
    """The database was saved for another member, which was lost before this one took part again."""
    moving.save("n1")
    moving.serve("n2")
    moving.serve("n1")
    # Now this member is away, and another one starts with an empty database. Here is the only one with its runs.
    moving.retire("n1", "n3")
    assert moving.databases["n1"] == "years of runs"


def test_restored_backup_does_not_replace_the_present_database_for_good(moving: FakeMove) -> None:
    moving.dump.write_text("the runs of a backup")
    assert not moving.save("n1")
    moving.serve("n2")
    moving.retire("n1", "n2")
    assert moving.databases == {"n1": "years of runs", "n2": "the runs of a backup"}


def test_backup_in_place_of_a_dump_is_no_receipt(moving: FakeMove) -> None:
    moving.save("n1")
    moving.dump.write_text("the runs of a backup")
    moving.serve("n2")
    with pytest.raises(HostStateError, match="n2 has not loaded the database"):
        moving.retire("n1", "n2")
    # The move never completes, which does not stop the new server.
    moving.serve("n2")
    assert moving.databases == {"n1": "years of runs", "n2": "the runs of a backup"}


@pytest.mark.parametrize(
    ("schemas", "said"),
    [
        ({}, None),
        ({"alembic_version": "head", "alembic_version_auth": "auth"}, None),
        ({"alembic_version": "newer", "alembic_version_auth": "auth"}, "has the schema newer .alembic_version., of a"),
        ({"alembic_version": "head", "alembic_version_auth": "auth,later"}, "has the schema later"),
        # A table that this MLflow does not have.
        ({"alembic_version": "head", "another": "x"}, "has the schema x .another."),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_newer_schema_is_refused_before_the_server_is_stopped(
    moving: FakeMove, loaded: bool, schemas: dict[str, str], said: str | None
) -> None:
    moving.schemas = schemas
    if loaded:
        moving.dump.write_text("the runs of a backup")
    if said is None:
        moving.serve("n1")
        return
    with pytest.raises(HostStateError, match=said) as refused:
        moving.serve("n1")
    assert "than 3.17.2" in refused.value.message and "version of this collection" in refused.value.remedy
    assert not moving.stops and moving.databases == {"n1": "years of runs"}


def test_older_mlflow_does_not_overwrite_newer_files(moving: FakeMove, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the newer one has to start again after a reboot."""
    moving.schemas = {"alembic_version": "newer"}
    moving.on("n1")
    for name, result in (
        ("python_version", "3.13"),
        ("read_versions", {"mlflow": "3.17.2"}),
        ("build_environment", "/x"),
    ):
        monkeypatch.setattr(environment, name, lambda *_given, result=result: result)
    for name in ("ensure_account", "make_directories"):
        monkeypatch.setattr(server, name, lambda *_given: False)
    before = sorted((moving.folder / "n1").iterdir())
    with pytest.raises(HostStateError, match="has the schema newer"):
        server.apply_request(succeed, moving.request("n1"))
    assert sorted((moving.folder / "n1").iterdir()) == before and not moving.stops


def test_a_member_with_another_number_for_the_account_is_refused_before_the_server_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The database that is being moved is in that folder: whoever moved it away would start with an empty one."""
    monkeypatch.setattr(server, "refuse_account", lambda _uid: None)
    monkeypatch.setattr(server, "foreign_cluster", lambda _request: "")
    folder = tmp_path / "mlflow-lab"
    folder.mkdir()
    owner = os.geteuid() or 4711
    os.chown(folder, owner, -1)
    here = SERVER._replace(mount_point=str(tmp_path), uid=owner)
    server.refuse_server(REQUEST._replace(server=here))
    with pytest.raises(HostStateError, match=f"mlflow-lab belongs to user {owner}.*has the ID 99") as refused:
        server.refuse_server(REQUEST._replace(server=here._replace(uid=99)))
    assert f"set tracking_uid={owner}" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root can give files away")
def test_files_with_wrong_ownership_or_mode_are_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The account has got another number since, or a backup was put back."""
    paths = {
        name: tmp_path / name
        for name in ("SECRET", "PASSPHRASE", "AUTHENTICATION", "CERTIFICATE", "KEY", "CHECKER_PASSWORD")
    }
    for name, path in paths.items():
        monkeypatch.setattr(settings, name, str(path))
    monkeypatch.setattr(settings, "ACCOUNT", "games")
    secure = REQUEST._replace(server=SERVER._replace(tls=True), certificate=CERTIFICATE, key="a key")
    server.write_secrets(server.secret_files(secure, 5432))
    texts = {name: path.read_text() for name, path in paths.items()}
    later = secure._replace(certificate=None, key=None)
    assert server.secret_files(later, 5432) == []
    for path in paths.values():
        os.chown(path, 4711, -1)
    assert {one.path for one in server.secret_files(later, 5432)} == {str(path) for path in paths.values()}
    server.write_secrets(server.secret_files(later, 5432))
    assert server.secret_files(later, 5432) == []
    assert {name: path.read_text() for name, path in paths.items()} == texts
    paths["KEY"].chmod(0o644)
    assert [one.path for one in server.secret_files(later, 5432)] == [str(paths["KEY"])]
    server.write_secrets(server.secret_files(later, 5432))
    assert paths["CHECKER_PASSWORD"].stat().st_uid == 0 and paths["AUTHENTICATION"].stat().st_uid != 0
    # Before the account is there, it is not known whose they should be.
    monkeypatch.setattr(server, "_account_number", lambda *_given: None)
    os.chown(paths["KEY"], 4711, -1)
    assert server.secret_files(later, 5432) == []


OWN = SERVER._replace(tls=True, own_certificate=True)


def test_own_certificate_needs_no_certificate_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = settings.format_program(OWN, "/x", 5432)
    for path in (settings.OWN_CERTIFICATE, settings.OWN_KEY):
        assert text.count(path) == 2
    assert settings.KEY not in text and "https://10.0.0.1:5000" in text
    monkeypatch.setattr(server, "refuse_account", lambda _uid: None)
    monkeypatch.setattr(server, "foreign_cluster", lambda _request: "")
    here = REQUEST._replace(server=OWN._replace(mount_point=str(tmp_path)))
    server.refuse_server(here)
    server.refuse_member(here)
    with pytest.raises(InputError, match="there is no .*tls.crt"):
        server.refuse_server(here._replace(server=here.server._replace(own_certificate=False)))


def test_members_trust_the_certificates_of_the_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tracking-ca-lab.crt"
    monkeypatch.setattr(settings, "trust_path", lambda _cluster: str(path))
    monkeypatch.setattr(settings, "SHARED_TRUST", str(tmp_path / "none"))
    monkeypatch.setattr(server.store, "scan_directory", lambda _folder: SimpleNamespace(records=[], unreadable=[]))
    path.write_text("an older one", encoding="ascii")
    member = REQUEST._replace(server=OWN, serves=False, trust=CERTIFICATE * 2)
    assert server.apply_request(postgres_is_not_asked, member).messages == [f"{path} written"]
    assert path.read_text() == CERTIFICATE * 2 and server.apply_request(postgres_is_not_asked, member).messages == []
    # In check mode, the record does not have it yet.
    assert server.describe_differences(postgres_is_not_asked, member._replace(trust=None)) == []
    # Without TLS, neither the members nor the server keep it.
    plain = member._replace(server=SERVER, trust=None)
    assert server.describe_differences(postgres_is_not_asked, plain) == [server.STILL_HERE]
    monkeypatch.setattr(server, "_ensure_server", lambda _run, _request, _done: None)
    assert server.apply_request(postgres_is_not_asked, plain._replace(serves=True)).messages == [f"{path} removed"]
    assert not path.exists()


def postgres_is_not_asked(*_arguments: Any, **_more: Any) -> Any:
    raise AssertionError

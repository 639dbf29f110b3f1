#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm
short_description: Run Slurm on a member of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Writes the configuration of a configless Slurm cluster with dynamic nodes, and runs the daemons. Slurm's own parser must
    accept the files first. A daemon is restarted only if it has not read its current settings.
  - The controller serves C(slurm.conf), C(cgroup.conf) and C(gres.conf), which do not contain nodes. So a node can join or
    leave without a changed file or a restart on other hosts. Host-specific settings are in O(directory) below C(node).
  - Detects the cgroup version, the GPUs, the memory and the version of Slurm on the host.
  - Set O(record). The other options are derived from it and from the options of the role P(gpumesh.cluster.slurm#role) in
    the variables of the host. This happens on the controller, which also installs missing packages.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.daemon
  - gpumesh.cluster.internal
attributes:
  idempotent:
    support: partial
    details:
      - With O(restart=true), every run restarts the controller.
options:
  state:
    description:
      - V(present) sets up the host as a node, with its health check and slurmd. If the node has to be deleted from the
        controller first, it stops before slurmd and returns RV(redefined).
      - V(configured) writes the configuration of the controller, V(stored) runs MariaDB, and V(served) runs slurmdbd,
        slurmctld and slurmrestd. These three are for the manager, in this order. With O(record), V(served) includes
        M(gpumesh.cluster.slurm_accounting), and M(gpumesh.cluster.slurm_accounts) with the options of the role.
      - V(absent) removes the configuration.
    type: str
    choices: [present, configured, stored, served, absent]
    default: present
  restart:
    description: Whether the controller has to be restarted, according to RV(reload).
    type: bool
    default: false
  registered:
    description: The names under which results with the version of Slurm on the manager have been registered. The first
      one that has it counts. The same for RV(rest_certificates).
    type: list
    elements: str
    default: []
  forgotten:
    description: Whether the node was deleted from the controller, so that slurmd can register it again.
    type: bool
    default: false
  programs:
    description: The programs that the host needs.
    type: list
    elements: str
    default: []
  health_mount_timeout:
    description: The timeout in seconds for a volume to respond to the health check of the node.
    type: float
    default: 10
  health_rdma_rate_gbps:
    description: The rate in Gbit/s that RDMA ports of the fastest kind must have. V(0) compares ports of a kind only.
    type: float
    default: 0
  health_max_drained_percent:
    description: The percentage of nodes that may be drained for the same fault.
    type: float
    default: 25
  keep_checks:
    description: Whether to keep the health check program if O(health_check) is empty.
    type: bool
    default: true
  controller_name:
    description: The machine of the controller, for messages.
    type: str
    default: ""
  controller_version:
    description: The version of Slurm on the machine of the controller. A node whose installed slurmd, or the one that
      would be installed, does not work with it is refused before anything changes. Empty means that it is not known.
    type: str
    default: ""
  controller_port:
    description: The port of the controller.
    type: int
    default: 6817
  token_key:
    description: The file with the key that signs the tokens of slurmrestd, which is created if missing. Empty for none.
    type: str
    default: ""
  files:
    description: Files to write, as entries for C(module_utils/host_files.py).
    type: list
    elements: dict
    default: []
  withdrawn:
    description: Files and directories of services that are no longer wanted.
    type: list
    elements: str
    default: []
  system_accounts:
    description: The system accounts that O(daemons) need, which are created if missing.
    type: list
    elements: str
    default: []
  certificate:
    description: The certificate that the proxy of slurmrestd makes for itself, and renews. Null for none.
    type: dict
    suboptions:
      folder:
        description: The directory of the certificate and its private key.
        type: path
        required: true
      cluster:
        description: The name of the cluster.
        type: str
        required: true
      service:
        description: The name of the service.
        type: str
        required: true
      machine:
        description: The name of the host.
        type: str
        required: true
      addresses:
        description: The addresses at which clients reach it.
        type: list
        elements: str
        required: true
  rest_certificates:
    description: The certificates that clients of the REST API have to trust, which are written to
      C(/etc/gpumesh/slurm-rest-ca.crt). An empty list removes that file, and null keeps it.
    type: list
    elements: str
  daemons:
    description: The daemons to run, in this order, with options of M(gpumesh.cluster.daemon).
    type: list
    elements: dict
    default: []
  cluster:
    description: The name of the cluster. Required for V(present) and V(configured).
    type: str
  controller:
    description: The address of the controller in the cluster. Required for V(present) and V(configured).
    type: str
  machine:
    description: The node name of this host. Required for V(present) and V(configured).
    type: str
  address:
    description: The address of this host in the cluster. Required for V(present) and V(configured).
    type: str
  serve:
    description: Whether this host runs the controller.
    type: bool
    default: false
  accounting:
    description: Whether the controller uses slurmdbd.
    type: bool
    default: true
  max_nodes:
    description: The maximum number of nodes.
    type: int
    default: 1024
  task_prolog:
    description:
      - A program that runs before each task of a job and can set its environment. Empty means none.
      - Slurm fails a task whose prolog is missing, so an empty program is installed if there is none.
    type: str
    default: ""
  health_check:
    description: A program that slurmd runs every O(health_check_interval) seconds, in any state of the node. Empty
      means none.
    type: str
    default: ""
  health_check_interval:
    description: The interval between two runs of O(health_check) in seconds.
    type: int
    default: 300
  prolog:
    description: A program that runs on each node before a job starts there. If it fails, the job is requeued.
    type: str
    default: ""
  epilog:
    description:
      - A program that runs on each node after a job has ended there. Empty means none.
      - Slurm drains a node whose epilog is missing, so an empty program is installed if there is none.
    type: str
    default: ""
  state_folder:
    description: The directory of the controller's state.
    type: path
    default: /var/lib/slurm/slurmctld
  spool_folder:
    description: The directory of slurmd's state.
    type: path
    default: /var/lib/slurm/slurmd
  log_folder:
    description: The directory of the log files.
    type: path
    default: /var/log/slurm
  settings:
    description:
      - Settings for C(slurm.conf). They take precedence over those of this module; null removes one.
      - C(SlurmctldParameters), C(DebugFlags) and C(SchedulerParameters) keep the words that this module needs, in
        addition to yours. null removes them as well, except C(enable_configless).
    type: dict
    default: {}
  partitions:
    description: The partitions by name, with their parameters.
    type: dict
    default: {cluster: {Nodes: ALL, Default: true, State: UP, MaxTime: INFINITE}}
  nodesets:
    description: Node sets by name, with their parameters, for C(Nodes) of a partition.
    type: dict
    default: {}
  cgroup:
    description: Settings for C(cgroup.conf). They take precedence over those of this module.
    type: dict
    default: {}
  gres:
    description:
      - The GRES of this host by name, such as C(gpu), each a mapping with parameters of C(gres.conf) or a list of
        mappings. C(gpu) replaces the detected GPUs; an empty list means that there are none.
    type: dict
    default: {}
  gres_types:
    description: The names of GRES of other members, which the controller has to know.
    type: list
    elements: str
    default: []
  keep_gres_types:
    description: Whether the controller keeps the names of GRES that it knows, since O(gres_types) may be incomplete.
    type: bool
    default: false
  plugins:
    description: The paths of SPANK plugins that slurmd and srun load, the same on all hosts. Missing ones are skipped.
    type: list
    elements: str
    default: []
  gpus:
    description:
      - The number of GPUs that this host should have. If fewer are found and O(gres) does not list them, the node still
        declares this number, and Slurm takes it out of service with a reason.
    type: int
    default: 0
  node:
    description: Node parameters of this host, such as C(Feature) and C(Weight). They take precedence over those of this
      module.
    type: dict
    default: {}
  directory:
    description: The directory of Slurm's configuration.
    type: path
    default: /etc/slurm
"""

EXAMPLES = r"""
- name: Run the node
  gpumesh.cluster.slurm:
    record: cluster_record
"""

RETURN = r"""
sessions:
  description: Whether the host has the plugin for sessions.
  type: bool
  returned: unless O(state=absent)
missing:
  description: The programs that have to be installed first, such as in check mode.
  type: list
  elements: str
  returned: unless O(state=absent)
reload:
  description: What a running controller needs to apply the changes, V(none), V(reconfigure) or V(restart).
  type: str
  returned: O(state=present) or O(state=configured)
node_changed:
  description: Whether slurmd has to be restarted.
  type: bool
  returned: O(state=present) or O(state=configured)
redefined:
  description: Whether the definition of the node has changed, so that it has to be deleted from the controller first.
  type: bool
  returned: O(state=present) or O(state=configured)
changed_files:
  description: The files that were written or removed.
  type: list
  elements: str
  returned: unless O(state=stored) or O(state=served)
leftover:
  description: Whether this host has the state of a controller although it does not run one, as a former manager.
  type: bool
  returned: O(state=present) or O(state=configured)
definition:
  description: The definition of the node.
  type: str
  returned: O(state=present) or O(state=configured)
  sample: NodeAddr=10.99.0.1 RealMemory=23622 Gres=gpu:2
cgroup:
  description: The cgroup version that Slurm uses on this host, C(v1), C(v2) or C(none), and why.
  type: dict
  returned: O(state=present) or O(state=configured)
  sample: {version: none, why: systemd does not run as PID 1}
slurm_version:
  description: The version of the installed Slurm. Null if it is not installed.
  type: str
  returned: O(state=present) or O(state=configured)
  sample: 24.11.5
validated:
  description: Whether the files were checked by Slurm's parser. They are not if Slurm is not installed, as in check mode.
  type: bool
  returned: O(state=present) or O(state=configured)
socket:
  description: The socket on which MariaDB listens.
  type: str
  returned: O(state=stored)
database:
  description: Whether the database has to be created, or an accounting has to be loaded into it, and MariaDB is
    available for this.
  type: bool
  returned: O(state=stored)
withdrawn:
  description: The existing files of services that are no longer wanted.
  type: list
  elements: str
  returned: O(state=served)
rest_certificates:
  description: The certificates that clients of the REST API have to trust, the current one and possibly the next one. Null
    if there is none yet.
  type: list
  elements: str
  returned: O(state=served)
restarted:
  description: The daemons that were restarted, or would have been.
  type: list
  elements: str
  returned: unless O(state=absent)
"""

import os
import pwd
import secrets
import shlex
import shutil
import string
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon, host_files, own_certificate, package
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_empty, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import program
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import make_account
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, Part, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import PLUGIN
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import config, configure, release, rest
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.host import read_host, running_options
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.tenure import ACCOUNTING, is_there

_PLACES = daemon.Places()
_PROGRAMS = ("/usr/sbin", "/usr/bin")
_CHECKS = "/usr/local/sbin/gpumesh-node-health"
_DATABASE = "/var/lib/mysql/slurm_acct_db"
#: Seconds until the controller has to answer, and until a daemon can be used.
_REACHED = 30.0
_READY = 120.0
_KEY_LENGTH = 64
_LETTERS = string.ascii_letters + string.digits


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    if given["state"] == "absent":
        planned = configure.plan(configure.read_files(given["directory"]), None, False, given["directory"])
        left = _present([rest.TRUST, rest.FOLDER, rest.SOCKET_FOLDER])
        if not module.check_mode:
            configure.apply(given["directory"], planned)
            _remove(left)
            remove_empty(os.path.dirname(rest.TRUST))
        values: Dict[str, Any] = {"changed_files": sorted(planned.write)}
        return Outcome(bool(planned.write or left), values, planned.before, planned.after, given["directory"])
    manager = daemon.service_manager(Tree())
    missing = [
        name for name in given["programs"] if not any(os.path.lexists(f"{folder}/{name}") for folder in _PROGRAMS)
    ]
    if given["state"] != "configured" and daemon.supervisord_missing(manager):
        missing.append("supervisor")
    if given["state"] == "present" and "slurmd" in missing:
        _refuse_release(given, "would be", release.offered(run))
    values = {"missing": missing, "restarted": [], "sessions": os.path.lexists(PLUGIN)}
    if missing and not module.check_mode:
        return Outcome(False, values)
    steps = {"present": _node, "configured": _configured, "stored": _stored, "served": _served}
    done = steps[given["state"]](module, manager, values)
    if not missing:
        return done
    packages = "".join(f"{name}\n" for name in missing)
    return Outcome(True, done.values, done.before, done.after + "## programs to install\n" + packages)


# --- The configuration


def _configured(module: AnsibleModule, _manager: str, values: Dict[str, Any]) -> Outcome:
    """The files of the controller, without the options of its node, which follow with slurmd."""
    return _configure(module, values, leave=[config.OPTIONS])


def _configure(module: AnsibleModule, values: Dict[str, Any], leave: Sequence[str] = ()) -> Outcome:
    given, check_mode = module.params, module.check_mode
    folder = given["directory"]
    configure.refuse_foreign(folder, Tree())
    present = configure.read_files(folder)
    host = read_host(run, Tree())
    if given["state"] == "present":
        _refuse_release(given, "is", host.version)
    request = config.Request(**{name: given[name] for name in config.Request._fields})
    if given["keep_gres_types"]:
        known = config.gres_types_in(present["slurm.conf"])
        request = request._replace(gres_types=[*request.gres_types, *known])
    runs = running_options(Tree(), given["machine"])
    wanted = config.documents(request, host, folder, config.definition_in(present[config.OPTIONS]) or "")
    planned = configure.plan(present, wanted, given["serve"], folder, runs, leave)
    folders = configure.missing_folders(wanted_folders(given))
    missing = configure.missing_programs([given["task_prolog"], given["epilog"]])
    checks = _checks(given)
    values.update(
        definition=wanted.definition,
        arguments=list(wanted.arguments),
        cgroup={"version": host.cgroups.version, "why": host.cgroups.why},
        slurm_version=release.text(host.version) if host.version else None,
        validated=bool(planned.write) and configure.validate(run, wanted, folder),
        reload=planned.reload,
        node_changed=planned.node_changed,
        redefined=planned.redefined,
        leftover=not given["serve"] and is_there(given["state_folder"]),
        changed_files=sorted(planned.write),
    )
    if not check_mode:
        checks.apply()
        configure.make_folders(folders)
        configure.make_programs(missing)
        configure.apply(folder, planned)
    changed = bool(planned.write or folders or missing or checks.changed)
    return Outcome(changed, values, checks.before + planned.before, checks.after + planned.after, folder)


def _refuse_release(given: Mapping[str, Any], verb: str, version: Optional[release.Version]) -> None:
    """Raises HostStateError for a slurmd that does not work with the controller."""
    release.refuse(given["machine"], verb, version, given["controller_name"], given["controller_version"])


def _checks(given: Mapping[str, Any]) -> Part:
    """The program that checks the node."""
    path = given["health_check"]
    if path:
        settings = program.Settings(
            given["cluster"],
            given["machine"],
            rdma_rate_gbps=given["health_rdma_rate_gbps"] or None,
            mount_timeout=given["health_mount_timeout"],
            max_drained_percent=given["health_max_drained_percent"],
        )
        return package.part(path, package.build(sys.executable, program.__name__, settings._asdict()))
    if given["keep_checks"]:
        return Part(False, "", "", lambda: None)
    return package.part(_CHECKS, None)


def wanted_folders(given: Mapping[str, Any]) -> Dict[str, str]:
    """The folders that the daemons need and do not make, with their owners."""
    folders = {given["spool_folder"]: "root", given["log_folder"]: "slurm"}
    if given["serve"]:
        folders[given["state_folder"]] = "slurm"
    return folders


# --- The REST API


def _node(module: AnsibleModule, manager: str, values: Dict[str, Any]) -> Outcome:
    """What clients of the REST API trust, and the node itself."""
    given = module.params
    certificates = given["rest_certificates"]
    steps = host_files.see_to([] if certificates is None else rest.trust_files(certificates), module.check_mode)
    # A manager that is none any more keeps no key.
    left = [] if given["serve"] else _present([rest.FOLDER, rest.SOCKET_FOLDER])
    if not module.check_mode:
        _remove(left)
    before, after = host_files.as_diff(steps)
    done = _run_node(module, manager, values)
    changed = done.changed or bool(steps or left)
    return done._replace(changed=changed, before=before + done.before, after=after + done.after)


def _present(paths: Sequence[str]) -> List[str]:
    return [path for path in paths if os.path.lexists(path)]


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            remove_file(path)


# --- The daemons


def _run_node(module: AnsibleModule, manager: str, values: Dict[str, Any]) -> Outcome:
    """The configuration of the node, then slurmd."""
    given = module.params
    done = _configure(module, values)
    if values["missing"] or (values["redefined"] and not given["forgotten"]):
        return done
    if values["node_changed"] and not module.check_mode:
        _refuse_unreached(given)
    # The other one of the two tasks may have written the files.
    (slurmd,) = given["daemons"]
    words = " ".join(map(shlex.quote, values["arguments"]))
    renewed = values["node_changed"] or given["forgotten"]
    state = "restarted" if renewed else "started"
    plans = _run_daemons(
        module, manager, [{**slurmd, "command": f"{slurmd['command']} {words}", "state": state}], values
    )
    before, after = _shown(plans)
    return Outcome(done.changed or any(one.changed for one in plans), values, done.before + before, done.after + after)


def _refuse_unreached(given: Mapping[str, Any]) -> None:
    """Raises HostStateError where the controller does not answer."""
    address, port, name = given["controller"], given["controller_port"], given["controller_name"]
    try:
        daemon.wait_until_ready("slurmctld", daemon.Ready(address=address, port=port), _REACHED)
    except HostStateError as failure:
        raise HostStateError(
            f"The controller on {name} does not answer at {address}:{port} (TCP).",
            f"See the firewalls between them, and 'systemctl status slurmctld' on {name}.",
        ) from failure


def _stored(module: AnsibleModule, manager: str, values: Dict[str, Any]) -> Outcome:
    """MariaDB, and whether the database has to be made or filled."""
    debian = os.path.exists("/etc/debian_version")
    socket = "/run/mysqld/mysqld.sock" if debian else "/var/lib/mysql/mysql.sock"
    made = os.path.exists(_DATABASE)
    loaded = not os.path.lexists(os.path.join(module.params["state_folder"], ACCOUNTING))
    # In check mode MariaDB may not run yet, and cannot be asked.
    values.update(socket=socket, database=not (made and loaded) and (made or not module.check_mode))
    mariadb = {
        "name": "mariadb",
        "command": "/usr/sbin/mariadbd --user=mysql",
        "user": "mysql",
        "directories": ["/run/mysqld"],
        "ready_path": socket,
    }
    plans = [] if values["missing"] else _run_daemons(module, manager, [mariadb], values)
    changed = any(one.changed for one in plans) or (module.check_mode and not made)
    return Outcome(changed, values, *_shown(plans))


def _served(module: AnsibleModule, manager: str, values: Dict[str, Any]) -> Outcome:
    """The key of the tokens, the configuration of slurmdbd, and the daemons that read them."""
    given, check_mode = module.params, module.check_mode
    values.update(withdrawn=_present(given["withdrawn"]), rest_certificates=None)
    if values["missing"]:
        return Outcome(True, values)
    keyless = bool(given["token_key"]) and not os.path.lexists(given["token_key"])
    if keyless and not check_mode:
        entry = pwd.getpwnam("slurm")
        key = "".join(secrets.choice(_LETTERS) for _number in range(_KEY_LENGTH))
        write_atomic(given["token_key"], key, mode=0o400, owner=(entry.pw_uid, entry.pw_gid))
    renewed = _serve_certificate(given["certificate"], values, check_mode)
    unknown = [name for name in given["system_accounts"] if not _is_account(name)]
    for name in () if check_mode else unknown:
        make_account(run, name)
    steps = host_files.see_to(given["files"], check_mode)
    before, after = host_files.as_diff(steps)
    plans = _run_daemons(module, manager, given["daemons"], values)
    shown = _shown(plans)
    changed = keyless or renewed or bool(unknown or steps) or any(one.changed for one in plans)
    return Outcome(changed, values, before + shown[0], after + shown[1])


def _serve_certificate(about: Optional[Mapping[str, Any]], values: Dict[str, Any], check_mode: bool) -> bool:
    """Make or renew the certificate of the REST API. Returns whether anything changed."""
    if about is None:
        values["rest_certificates"] = []
        return False
    identity = own_certificate.Identity(**about)
    before = own_certificate.present(run, identity)
    found = before if check_mode else own_certificate.settle(run, identity)
    values["rest_certificates"] = found or None
    return found != before or not found


def _is_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _run_daemons(
    module: AnsibleModule, manager: str, daemons: Sequence[Mapping[str, Any]], values: Dict[str, Any]
) -> List[daemon.Plan]:
    """Run them one after the other, each until it can be used."""
    given = module.params
    places = daemon.Places.given(given)
    plans = []
    for one in daemons:
        wanted = daemon.Daemon(**{name: one[name] for name in daemon.Daemon._fields if name in one})
        ready = daemon.Ready(one.get("ready_path"), one.get("ready_address"), one.get("ready_port"))
        plan = daemon.bring_about(run, manager, wanted, places, ready, _READY, module.check_mode)
        values["restarted"] += [wanted.name] if plan.restarts else []
        plans.append(plan)
    return plans


def _shown(plans: Sequence[daemon.Plan]) -> Tuple[str, str]:
    changed = [plan for plan in plans if plan.before != plan.after]
    return (
        "".join(f"## {plan.path}\n{plan.before}" for plan in changed),
        "".join(f"## {plan.path}\n{plan.after}" for plan in changed),
    )


def main() -> None:
    """The module's entry point."""
    partitions = {"cluster": {"Nodes": "ALL", "Default": True, "State": "UP", "MaxTime": "INFINITE"}}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {
                "type": "str",
                "choices": ["present", "configured", "stored", "served", "absent"],
                "default": "present",
            },
            "restart": {"type": "bool", "default": False},
            "registered": {"type": "list", "elements": "str", "default": []},
            "forgotten": {"type": "bool", "default": False},
            "programs": {"type": "list", "elements": "str", "default": []},
            "health_mount_timeout": {"type": "float", "default": 10},
            "health_rdma_rate_gbps": {"type": "float", "default": 0},
            "health_max_drained_percent": {"type": "float", "default": 25},
            "keep_checks": {"type": "bool", "default": True},
            "controller_name": {"type": "str", "default": ""},
            "controller_version": {"type": "str", "default": ""},
            "controller_port": {"type": "int", "default": 6817},
            "token_key": {"type": "str", "default": "", "no_log": False},
            "files": {"type": "list", "elements": "dict", "default": []},
            "withdrawn": {"type": "list", "elements": "str", "default": []},
            "system_accounts": {"type": "list", "elements": "str", "default": []},
            "certificate": {
                "type": "dict",
                "options": {
                    "folder": {"type": "path", "required": True},
                    "cluster": {"type": "str", "required": True},
                    "service": {"type": "str", "required": True},
                    "machine": {"type": "str", "required": True},
                    "addresses": {"type": "list", "elements": "str", "required": True},
                },
            },
            "rest_certificates": {"type": "list", "elements": "str"},
            "daemons": {"type": "list", "elements": "dict", "default": []},
            "supervisor_config": {"type": "path", "default": _PLACES.supervisor_config},
            "supervisor_programs": {"type": "path", "default": _PLACES.supervisor_programs},
            "cluster": {"type": "str"},
            "controller": {"type": "str"},
            "machine": {"type": "str"},
            "address": {"type": "str"},
            "serve": {"type": "bool", "default": False},
            "accounting": {"type": "bool", "default": True},
            "max_nodes": {"type": "int", "default": 1024},
            "task_prolog": {"type": "str", "default": ""},
            "health_check": {"type": "str", "default": ""},
            "health_check_interval": {"type": "int", "default": 300},
            "prolog": {"type": "str", "default": ""},
            "epilog": {"type": "str", "default": ""},
            "state_folder": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "spool_folder": {"type": "path", "default": "/var/lib/slurm/slurmd"},
            "log_folder": {"type": "path", "default": "/var/log/slurm"},
            "settings": {"type": "dict", "default": {}},
            "partitions": {"type": "dict", "default": partitions},
            "nodesets": {"type": "dict", "default": {}},
            "cgroup": {"type": "dict", "default": {}},
            "gres": {"type": "dict", "default": {}},
            "gres_types": {"type": "list", "elements": "str", "default": []},
            "keep_gres_types": {"type": "bool", "default": False},
            "plugins": {"type": "list", "elements": "str", "default": []},
            "gpus": {"type": "int", "default": 0},
            "node": {"type": "dict", "default": {}},
            "directory": {"type": "path", "default": configure.FOLDER},
        },
        required_if=[
            ("state", "present", ("cluster", "controller", "machine", "address")),
            ("state", "configured", ("cluster", "controller", "machine", "address")),
        ],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), host=module.params["machine"])


if __name__ == "__main__":
    main()

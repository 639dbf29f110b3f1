# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the administrator's firewall on this host with what a cluster needs, and remove what firewalld has of it."""

from __future__ import annotations

import os
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.host_firewall import (
    FIREWALLD,
    UFW,
    find_active_firewalls,
    is_running,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import firewalld, ufw
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule

#: A firewall with many rules takes a while to load them again.
_TIMEOUT = 120.0
#: The options with which firewall-cmd lists all objects of a kind.
_LISTING_OPTIONS = {firewalld.ZONE: "--list-all-zones", firewalld.POLICY: "--list-all-policies"}
#: In the file in which NetworkManager keeps the state of a device with a connection of its own.
_NETWORK_MANAGER_CONNECTION = "connection-uuid="
_NO_CHANGES = firewalld.FirewalldPlan([], False)


class HostFirewall(NamedTuple):
    """The firewalls that are active on a host, the changes that a cluster needs, and what prevents them.

    ``stale_files``: those of a cluster that leaves, also where firewalld is not running.
    """

    firewalls: List[str]
    ufw_changes: List[ufw.UfwChange]
    firewalld_plan: firewalld.FirewalldPlan
    obstacles: List[str]
    stale_files: List[str]

    def commands(self) -> List[str]:
        """Return the commands that make the changes."""
        return [
            *(change.command() for change in self.ufw_changes),
            *self.firewalld_plan.commands(),
            *(f"rm {path}" for path in self.stale_files),
        ]

    def to_result(self) -> Dict[str, Any]:
        """Return the result of the module."""
        zone_arguments = [change.zone_arguments() for change in self.firewalld_plan.changes if change.permanent]
        return {
            "firewalls": self.firewalls,
            "commands": self.commands(),
            "obstacles": self.obstacles,
            "ufw": [change.module_arguments() for change in self.ufw_changes],
            "zones": [arguments for arguments in zone_arguments if arguments],
            "applies": bool(self.firewalld_plan.argvs() or self.stale_files),
        }


def compare_host(run: Runner, tree: Tree, cluster: str, rules: Sequence[HostRule]) -> HostFirewall:
    """Compare the firewalls of this host with the rules of a cluster; none if it leaves. Raises GpumeshError.

    Firewalls that are not active need no rules, but those that the cluster has there are found.
    """
    firewalls = [name for name in find_active_firewalls(tree) if name != FIREWALLD or _is_answering(run)]
    has_to_read_ufw = UFW in firewalls if rules else _has_marked_rules(tree) and find_program("ufw")
    added_output = run(["ufw", "show", "added"]).stdout if has_to_read_ufw else ""
    ufw_changes = ufw.plan_changes(added_output, cluster, rules) if has_to_read_ufw else []
    plan, obstacles = _plan_firewalld(run, tree, cluster, rules) if FIREWALLD in firewalls else (_NO_CHANGES, [])
    return HostFirewall(firewalls, ufw_changes, plan, obstacles, [] if rules else _find_object_files(tree, cluster))


def apply_firewalld(run: Runner, tree: Tree, cluster: str, comparison: HostFirewall) -> None:
    """Make the changes that are left after those of the zone's permanent settings. Raises CommandError."""
    for argv in comparison.firewalld_plan.argvs():
        run(argv, timeout=_TIMEOUT)
    if comparison.stale_files:
        # firewalld has made further copies of what it has deleted.
        for path in _find_object_files(tree, cluster):
            remove_file(path)


def _is_answering(run: Runner) -> bool:
    """Whether firewalld runs on this host, and not only in a container that the host sees."""
    return run(["firewall-cmd", "--state"], timeout=_TIMEOUT, check=False).rc == 0


def _has_marked_rules(tree: Tree) -> bool:
    """Whether ufw has rules of clusters, even if it is not active."""
    return any(ufw.ENCODED_MARK in (tree.read("etc", "ufw", name) or "") for name in ("user.rules", "user6.rules"))


def _find_object_files(tree: Tree, cluster: str) -> List[str]:
    """Return the files of the cluster's objects, and the copies that firewalld keeps of removed ones."""
    folders = {firewalld.ZONE: "zones", firewalld.POLICY: "policies"}
    paths = [
        tree.path("etc", "firewalld", folders[kind], f"{name}.xml{suffix}")
        for kind, name in firewalld.object_names(cluster).values()
        for suffix in ("", ".old")
    ]
    return [path for path in paths if tree.exists(path)]


def _plan_firewalld(
    run: Runner, tree: Tree, cluster: str, rules: Sequence[HostRule]
) -> Tuple[firewalld.FirewalldPlan, List[str]]:
    # Each call of firewall-cmd takes a while, and most clusters without a mesh or sessions have never had a zone.
    paths, desired_objects = _find_object_files(tree, cluster), firewalld.desired_objects(cluster, rules)
    zone_names = [
        name
        for kind, name in firewalld.object_names(cluster).values()
        if kind == firewalld.ZONE
        and ((kind, name) in desired_objects or any(f"/zones/{name}.xml" in path for path in paths))
    ]
    permanent, running = (_read_objects(run, options, zone_names) for options in (["--permanent"], []))
    plan = firewalld.plan_changes(cluster, rules, permanent, running)
    if rules and plan != _NO_CHANGES:
        # What only runs is gone after the next boot, and what is only permanent does not count yet.
        running_zones, permanent_zones = (
            _list_objects(run, options, firewalld.ZONE) for options in ([], ["--permanent"])
        )
        zones_at_boot = firewalld.bind_interfaces(permanent_zones, running_zones, _find_rebound_interfaces(tree))
        running_default, default_at_boot = _read_default_zone(run), _read_permanent_default_zone(tree)
        needed_rules = [
            rule
            for rule in rules
            if not firewalld.is_accepted(rule, running_zones, running_default)
            or not firewalld.is_accepted(rule, zones_at_boot, default_at_boot)
        ]
        plan = firewalld.plan_changes(cluster, needed_rules, permanent, running)
    return plan, [
        *_describe_references(firewalld.find_references(cluster, plan.changes, permanent)),
        *_find_obstacles(run, tree, cluster, plan),
    ]


def _describe_references(options_by_policy: Mapping[str, Sequence[str]]) -> List[str]:
    """Return which policies of the administrator prevent that a zone is deleted, with the commands that change them."""
    return [
        f"the policy {policy} of firewalld names a zone that is to be deleted, without which firewalld would not reload. "
        f"Remove it there: {' && '.join(f'firewall-cmd --permanent --policy={policy} {option}' for option in options)}"
        for policy, options in sorted(options_by_policy.items())
    ]


def _read_default_zone(run: Runner) -> str:
    return run(["firewall-cmd", "--get-default-zone"], timeout=_TIMEOUT).stdout.strip()


def _read_permanent_default_zone(tree: Tree) -> str:
    """Return the default zone after a reload or at boot."""
    return firewalld.parse_default_zone(tree.read("etc", "firewalld", "firewalld.conf") or "")


def _list_objects(run: Runner, options: Sequence[str], kind: str) -> Dict[Tuple[str, str], Dict[str, FrozenSet[str]]]:
    """Read all objects of a kind."""
    listing = run(["firewall-cmd", *options, _LISTING_OPTIONS[kind]], timeout=_TIMEOUT)
    return firewalld.parse_objects(kind, listing.stdout)


def _read_objects(
    run: Runner, options: Sequence[str], zone_names: Sequence[str]
) -> Dict[Tuple[str, str], Dict[str, FrozenSet[str]]]:
    """Read the policies, and these zones."""
    objects = _list_objects(run, options, firewalld.POLICY)
    for name in zone_names:
        listing = run(["firewall-cmd", *options, f"--info-zone={name}"], timeout=_TIMEOUT, check=False)
        objects.update(firewalld.parse_objects(firewalld.ZONE, listing.stdout if listing.rc == 0 else ""))
    return objects


def _find_obstacles(run: Runner, tree: Tree, cluster: str, plan: firewalld.FirewalldPlan) -> List[str]:
    """Return why the changes would undo what the administrator has set up."""
    bindings = {
        (change.value, change.name) for change in plan.changes if (change.verb, change.option) == ("add", "interface")
    }
    obstacles = [
        obstacle for interface, own_zone in sorted(bindings) for obstacle in _find_other_zones(run, interface, own_zone)
    ]
    if not plan.reload:
        return obstacles
    permanent, running = (_read_configuration(run, tree, options) for options in (["--permanent"], []))
    effects = firewalld.find_reload_effects(cluster, permanent, running, _find_rebound_interfaces(tree))
    if effects.activated:
        obstacles.append(
            "firewalld has to be reloaded, and would activate permanent settings that are not loaded yet: "
            f"{', '.join(effects.activated)}; review them and run firewall-cmd --reload yourself"
        )
    if effects.lost:
        # That command overwrites the permanent configuration.
        remedy = (
            "Set again with --permanent what you want to keep"
            if effects.activated
            else "Save them (firewall-cmd --runtime-to-permanent)"
        )
        obstacles.append(
            "firewalld has to be reloaded, and would lose settings that are only in its running configuration: "
            f"{', '.join(effects.lost)}. {remedy}, or reload it yourself"
        )
    return obstacles


def _find_other_zones(run: Runner, interface: str, own_zone: str) -> List[str]:
    """Return the zones of the administrator that have an interface, with the commands that remove it from them."""
    commands_by_zone: Dict[str, List[str]] = {}
    for options in (["--permanent"], []):
        command = ["firewall-cmd", *options, f"--get-zone-of-interface={interface}"]
        # Without a zone, it exits non-zero.
        zone = run(command, check=False, timeout=_TIMEOUT).stdout.strip()
        if zone and zone != own_zone:
            removal = ["firewall-cmd", *options, f"--zone={zone}", f"--remove-interface={interface}"]
            commands_by_zone.setdefault(zone, []).append(" ".join(removal))
    return [
        f"{interface} is in the zone {zone} of firewalld. Allow there what comes from the members, or remove it: "
        f"{' && '.join(commands)}"
        for zone, commands in commands_by_zone.items()
    ]


def _find_rebound_interfaces(tree: Tree) -> FrozenSet[str]:
    """Return the interfaces that NetworkManager binds to their zones again after each reload."""
    if not is_running(tree, "NetworkManager"):
        return frozenset()
    return frozenset(
        interface
        for interface in tree.list_names("sys/class/net")
        if _NETWORK_MANAGER_CONNECTION
        in (
            tree.read("run/NetworkManager/devices", tree.read("sys/class/net", interface, "ifindex") or "unknown") or ""
        )
    )


def _read_configuration(
    run: Runner, tree: Tree, options: Sequence[str]
) -> Dict[Tuple[str, str], Dict[str, FrozenSet[str]]]:
    """Read all that a reload of firewalld replaces and that commands can change while it runs."""

    def query(*arguments: str, check: bool = True) -> str:
        return run(["firewall-cmd", *options, *arguments], timeout=_TIMEOUT, check=check).stdout

    default_zone = _read_permanent_default_zone(tree) if options else _read_default_zone(run)
    setting = firewalld.DEFAULT_ZONE_SETTING
    objects: Dict[Tuple[str, str], Dict[str, FrozenSet[str]]] = {
        ("firewalld.conf", setting): {setting: frozenset([default_zone])}
    }
    for kind in _LISTING_OPTIONS:
        objects.update(_list_objects(run, options, kind))
    for name in ("chains", "rules", "passthroughs"):
        objects["direct", name] = {name: frozenset(query("--direct", f"--get-all-{name}").splitlines())}
    for name in query("--get-ipsets").split():
        # firewalld does not know the entries of a set with a timeout.
        entries = query(f"--ipset={name}", "--get-entries", check=False)
        objects["ipset", name] = {"entries": frozenset(entries.split())}
    # Those of the administrator, or which he has changed; the others are the same in both.
    for file_name in tree.list_names("etc", "firewalld", "services"):
        name, extension = os.path.splitext(file_name)
        if extension == ".xml":
            objects.update(firewalld.parse_objects("service", query(f"--info-service={name}", check=False)))
    return objects

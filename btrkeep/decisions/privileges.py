"""Decides what this process cannot do for the lack of a capability. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from btrkeep.decisions.findings import ERROR, WARNING, Finding
from btrkeep.procfs import SYS_ADMIN, Capabilities

CHECK = "privileges"


@dataclass(frozen=True, slots=True)
class Need:
    """A capability, its purpose, and whether no backup can be made without it."""

    capability: str
    purpose: str
    required: bool


NEEDS = (
    Need(SYS_ADMIN, "to delete subvolumes and to read the trees of btrfs", required=True),
    Need("CAP_DAC_OVERRIDE", "to write into folders of other users in a backup", required=True),
    Need("CAP_DAC_READ_SEARCH", "to read files of other users", required=True),
    Need("CAP_CHOWN", "to store the owner of a file", required=True),
    Need("CAP_FOWNER", "to store mode and times of another user's file", required=True),
    Need("CAP_FSETID", "to store setuid and setgid bits", required=False),
    Need("CAP_MKNOD", "to store device files", required=False),
    Need("CAP_SETFCAP", "to store capabilities of programs (security.capability)", required=False),
)


def missing_privileges(known: Capabilities, needs: Collection[Need] = NEEDS) -> tuple[Need, ...]:
    """Returns the needs that the process cannot fulfil."""
    return tuple(need for need in needs if not known.has(need.capability))


def privilege_findings(known: Capabilities | None, *, root: bool) -> Iterator[Finding]:
    """Yields a finding for each missing capability. `root`: the process is root, so that "run this as root" is no advice."""
    if known is None:
        return
    for need in missing_privileges(known):
        level = ERROR if need.required else WARNING
        yield Finding(CHECK, level, privilege_words(need, root=root), privilege_advice(known, need, root=root), subject=CHECK)
    if known.namespace:
        text = "this process is in a user namespace: owners and ids of files are other ones than on the machine"
        yield Finding(CHECK, WARNING, text, "run this on the machine itself", subject=CHECK)


def privilege_words(need: Need, *, root: bool) -> str:
    """Returns which capability is missing and what for."""
    return f"{'root has' if root else 'this process has'} no {need.capability} here, which is needed {need.purpose}"


def privilege_advice(known: Capabilities, need: Need, *, root: bool) -> str:
    """Returns how to get it."""
    if not root:
        return "run this as root"
    if known.namespace:
        return "run this on the machine itself, not in an unprivileged container"
    return f"run this on the machine itself, or give the container or service {need.capability}"

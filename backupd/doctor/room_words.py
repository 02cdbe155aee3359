"""The texts of `backupd doctor --fix room`: its lines, and its errors with hints."""

from collections.abc import Sequence
from pathlib import Path

from backupd.doctor.room_plan import MoveBlockGroup, Refusal, RoomEnd, RoomPlan
from btrkeep.errors import READ_ONLY_HINT, LockHeld, OperatorError, PoolUnusable
from btrkeep.pool.temporary_devices import RECORD, TemporaryDevice, TemporaryRecord, paths_of
from btrkeep.units import counted, format_size

CONTINUE = "`backupd doctor --fix room` continues"
ANOTHER_ROUND = "the data moved back has used the space again: another round starts"
_FEWER = "keep fewer backups, or add a device permanently"
_REASONS = {
    RoomEnd.REACHED: "enough space is unallocated",
    RoomEnd.EXHAUSTED: "no other block group can be moved",
    RoomEnd.NO_GAIN: "moving further block groups frees nothing",
    RoomEnd.NO_SPACE: "the kernel finds no space for further block groups",
    RoomEnd.STUCK: "the temporary device cannot be emptied",
}


def refusal_error(plan: RoomPlan, pool: Path) -> OperatorError:
    """Returns the error for a plan that may not start."""
    details = plan.details
    match plan.refusal:
        case Refusal.READ_ONLY:
            return PoolUnusable(f"{pool} is read-only", READ_ONLY_HINT)
        case Refusal.MISSING:
            hint = "if it is a temporary device: unmount the pool, run `backupd doctor --fix room`, and mount it"
            return PoolUnusable(f"{pool} is mounted without device {details}", hint)
        case Refusal.BUSY:
            hint = "wait for it to end, or end a paused balance: `btrfs balance cancel` with the pool's path"
            return LockHeld(f"{pool} is busy: {details}", hint)
        case Refusal.PROFILE:
            return OperatorError(
                f"{pool} has block groups of the profile {details}: --fix room is only for single, dup and raid1", _FEWER
            )
        case Refusal.DEVICES:
            return OperatorError(f"{pool} has {details} devices: --fix room is only for one or two devices", _FEWER)
        case _:
            free = format_size(plan.gain)
            return OperatorError(
                f"{pool} is full of data: only {free} are free in data block groups, too little to empty one of them", _FEWER
            )


def attached_error(loops: Sequence[Path], pool: Path) -> OperatorError:
    """Returns the remaining steps if the pool was not mounted and its temporary devices are attached again."""
    devices = ", ".join(map(str, loops))
    return PoolUnusable(f"the temporary device is attached again: {devices}", f"mount {pool}, then run `backupd doctor --fix room`")


def state_on_pool_error(state: Path) -> OperatorError:
    """Returns the error for a state folder that cannot hold the record."""
    return OperatorError(
        f"{state} is on the pool itself: the record of a temporary device must be elsewhere",
        "set `state` to a folder on another disk",
    )


def foreign_record_error(state: Path, filesystem: str) -> OperatorError:
    """Returns the error for a record of another filesystem."""
    return OperatorError(
        f"{state / RECORD} records temporary devices of the filesystem {filesystem}", "mount that filesystem, and repair it first"
    )


def begun_error(record: TemporaryRecord) -> OperatorError:
    """Returns the error for --device options that differ from the devices of the started repair."""
    return OperatorError(f"--fix room was started with {paths_of(record.devices)}", "leave --device out to continue")


def number_error(count: int) -> OperatorError:
    """Returns the error for a wrong number of named devices."""
    return OperatorError(
        f"this pool needs {counted(count, 'temporary device')}",
        "give --device " + ("twice: raid1 needs two devices" if count > 1 else "once"),
    )


def stuck_error(record: TemporaryRecord, pool: Path) -> OperatorError:
    """Returns the error for a temporary device that stays in the pool."""
    return OperatorError(
        f"{paths_of(record.devices)} cannot be emptied, and remains part of {pool}: do not remove or detach it",
        "delete backups (`backupd delete`), then run `backupd doctor --fix room` again",
    )


def below_goal_error(unallocated: int, goal: int, reason: RoomEnd) -> OperatorError:
    """Returns the error for a result below the goal; the temporary devices are removed."""
    why = "the data moved back used the rest" if reason is RoomEnd.REACHED else _REASONS[reason]
    return OperatorError(f"{format_size(unallocated)} are unallocated now, less than {format_size(goal)}: {why}", _FEWER)


def plan_lines(plan: RoomPlan, devices: tuple[TemporaryDevice, ...], *, is_left: bool) -> list[str]:
    """Returns the plan as text."""
    state = f"{format_size(plan.unallocated)} are unallocated, the goal is {format_size(plan.goal)}"
    if not devices:
        return [f"room: {state}: there is nothing to do"]
    lines = [f"room: {state}; {format_size(plan.gain)} are free inside data block groups"]
    for device in devices:
        if is_left:
            lines.append(f"  continue with the temporary device {device.path}")
        elif device.is_file:
            lines.append(f"  make a file of {format_size(device.size)}, {device.path}, and add it as a temporary device")
        else:
            lines.append(f"  add {device.path} as a temporary device")
    lines.append("  move data block groups, the least used first, until enough space is unallocated")
    lines.append("  move everything on the temporary device back, and remove it")
    lines.append("  do not restart the machine until this ends: the pool cannot be mounted without the temporary device")
    return lines


def adding(path: Path, device: TemporaryDevice) -> str:
    """Returns the line of a device that is added."""
    return f"adding {path}" + (f" ({device.path})" if device.is_file else "")


def moving(step: MoveBlockGroup) -> str:
    """Returns the line of a block group that is moved."""
    return f"moving {'back ' if step.back else ''}block group {step.vaddr}: {format_size(step.used)}"


def not_moved(step: MoveBlockGroup, error: OSError) -> str:
    """Returns the line of a block group that the kernel did not move."""
    return f"block group {step.vaddr} was not moved: {error.strerror}"


def turning(reason: RoomEnd) -> str:
    """Returns the line for the start of moving data back from the temporary device."""
    return f"{_REASONS[reason]}; moving the data on the temporary device back"


def removing(devid: int) -> str:
    """Returns the line of a device that is removed."""
    return f"removing the temporary device {devid}"

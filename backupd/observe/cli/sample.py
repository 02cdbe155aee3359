"""`backupd sample`: records a sample of the pool for `trend`, `day` and `forecast`."""

import logging
from datetime import datetime
from typing import Any

import click

from backupd.cli.command_context import opened, pass_context
from backupd.health.pool_facts import read_redundancy
from backupd.observe import sampling
from backupd.repo.pool_context import PoolContext
from backupd.repo.publish import publish_copies, publish_referenced_bytes, publish_to_dashboard
from btrkeep.catalogue import CatalogueBusy, Sample
from btrkeep.catalogue.model_pool import read_space_name, split_activities
from btrkeep.cli import json_option, print_answer, print_error
from btrkeep.decisions.pool_health import note_redundancy
from btrkeep.decisions.trend import metadata_share
from btrkeep.errors import Exit, OperatorError, PoolUnusable
from btrkeep.pool.balance_ioctl import missing_devices
from btrkeep.pool.space_by_profile import DEVICE_ERRORS
from btrkeep.units import counted, format_share, format_size, printable

_log = logging.getLogger(__name__)


@click.command("sample")
@json_option
@pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """Record a sample of the pool; run by a timer every five minutes.

    A sample has allocated and used bytes, by type of block group and by device; the number of waiting deleted subvolumes; error
    counters; mount options; and the I/O and pressure since the sample before. `trend`, `day` and `forecast` show them. After two
    weeks one sample per hour is kept, after a year one per day.

    If the catalogue is busy, the sample is skipped. This is not a failure: counters are cumulative, so nothing is lost.
    """
    with opened(ctx) as context:
        context.catalogue.copy_seldom()
        publish_to_dashboard(context.config, context.pool, context.catalogue, context.clock)
        try:
            pool_reading = sampling.read_counters_and_room(context.pool)
        except OSError as error:
            raise PoolUnusable(
                f"{context.pool.path} cannot be read: {error.strerror}", "check the kernel's messages (dmesg)"
            ) from error
        try:
            sample = _keep(context, context.clock.now(), pool_reading)
            missing = missing_devices(context.pool.path)
            note_redundancy(context.catalogue, read_redundancy(context.pool.path, pool_reading.allocation, missing))
            publish_referenced_bytes(context.pool, context.catalogue)
            publish_copies(context.pool, context.catalogue)
        except CatalogueBusy as error:
            print_error(OperatorError(f"this sample was skipped: {error.message}", error.hint))
            return Exit.OK
    return print_answer(_fields(sample), lambda: click.echo(line(sample)), as_json=as_json)


def _keep(context: PoolContext, now: datetime, sample_facts: Any) -> Sample:
    sample = sampling.store_sample(context.catalogue, context.pool, now, sample_facts)
    try:
        sampling.thin_samples(context.catalogue, context.pool.filesystem, now, context.config.pool.zone)
    except CatalogueBusy as error:  # the next sample tries again
        _log.info("%s", printable(error.message))
    return sample


def line(sample: Sample) -> str:
    """Formats a sample as one line."""
    parts = [
        f"{format_size(sample.allocated)} of {format_size(sample.size)} allocated",
        f"{format_size(sample.used)} used ({format_share(metadata_share(sample))} of it metadata)",
        f"{counted(sample.orphans, 'deleted subvolume')} waiting" if sample.orphans is not None else "",
        *(f"device {name}: {words}" for name, words in device_errors(sample).items()),
        printable(sample.activity),
    ]
    if sample.seconds:
        speeds = (format_size(round(value / sample.seconds)) for value in (sample.read, sample.written))
        parts.append("{}/s read, {}/s written".format(*speeds))
    if not sample.counters.get("pressure"):
        parts.append("no pressure stall information in this kernel")
    return "; ".join(filter(None, parts))


def device_errors(sample: Sample) -> dict[str, str]:
    """Returns the error counters by device number, for devices with errors."""
    errors_by_device = {}
    for name, (_, _, *errors) in sample.devices.items():
        words = [f"{count:,} {kind}" for kind, count in zip(DEVICE_ERRORS, errors, strict=False) if count]
        if words:
            errors_by_device[name] = f"errors: {', '.join(words)}"
    return errors_by_device


def _fields(sample: Sample) -> dict[str, Any]:
    is_known = bool(sample.seconds)
    return {
        "filesystem": sample.filesystem,
        "taken": sample.taken,
        "size": sample.size,
        "allocated": sample.allocated,
        "used": sample.used,
        "unallocated": max(sample.size - sample.allocated, 0),
        "metadata_share": round(metadata_share(sample), 4),
        "spaces": [_space(name, values) for name, values in sample.spaces.items()],
        "devices": [_device(name, values) for name, values in sample.devices.items()],
        "orphans": sample.orphans,
        "score": round(sample.score, 3) if sample.score is not None else None,
        "scored": sample.scored,
        "options": sample.options.split(","),
        "activity": list(split_activities(sample.activity)),
        "seconds": round(sample.seconds, 3) if is_known else None,
        "read": sample.read if is_known else None,
        "written": sample.written if is_known else None,
        "pressure": {kind.replace(" ", "_"): value for kind, value in sample.pressure.items()} or None,
    }


def _space(name: str, values: Any) -> dict[str, Any]:
    type_, profile = read_space_name(name)
    allocated, used, factor = values
    return {"type": type_, "profile": profile, "allocated": allocated, "used": used, "factor": factor / 1000}


def _device(name: str, values: Any) -> dict[str, Any]:
    size, allocated, *errors = values
    counted_errors = dict(zip(DEVICE_ERRORS, errors, strict=True)) if errors else None
    return {"devid": int(name), "size": size, "allocated": allocated, "unallocated": size - allocated, "errors": counted_errors}

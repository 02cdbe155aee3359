"""`backupd metrics`: numbers for Prometheus."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from backupd.alarms.alarm_memory import AlarmMemory
from backupd.cli.context import complain_of_faults, load_reporting, pass_context, present
from backupd.health.status_report import StatusReport, opened_catalogue, read_status, status_without_catalogue
from backupd.metrics.report_samples import samples_of
from btrkeep.catalogue import StoredAlarm
from btrkeep.cli import complain, echo_json, json_option
from btrkeep.cli.arguments import GivenPath
from btrkeep.config import ReportingConfig
from btrkeep.decisions.findings import FACT, from_text
from btrkeep.errors import Exit, OperatorError
from btrkeep.fs.output_file import whole_file
from btrkeep.metrics import Metric, MetricSample


@click.command("metrics")
@click.option(
    "--textfile", type=GivenPath(dir_okay=False), metavar="FILE", help="Replace FILE, for node_exporter's textfile collector."
)
@json_option
@pass_context
def command(ctx: click.Context, textfile: str | None, as_json: bool) -> int:
    """Print numbers of the pool and its hosts in the format that Prometheus reads.

    With --textfile they replace FILE as a whole, readable by all; node_exporter wants a name that ends in .prom, in the folder that
    its --collector.textfile.directory names.

    With a broken configuration the last valid one is used, and without a catalogue the metrics of the pool and of the faults are
    printed; exit status 1 then.
    """
    reporting = load_reporting(ctx)
    moment = present(ctx, reporting.config)
    complain_of_faults(reporting.faults)
    seen, alarms, looked = _read(reporting, moment)
    samples = samples_of(seen, alarms, looked)
    if as_json:
        echo_json([_as_json(metric, of_metric) for metric, of_metric in samples.families()])
        return 0
    text = samples.text()
    if textfile is None:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
    else:
        # As a whole, under a name meanwhile that does not end in .prom, which node_exporter would read; and it is another user.
        with whole_file(textfile, mode=0o644) as file:
            file.write(text)
    return 0 if seen.is_catalogue_read and reporting.error is None else Exit.ATTENTION


def _read(reporting: ReportingConfig, now: datetime) -> tuple[StatusReport, list[StoredAlarm], datetime | None]:
    """Returns the report, the alarms, and when they were checked; without a catalogue what is known without it."""
    config, faults = reporting.config, reporting.faults
    if not reporting.is_bare:
        try:
            catalogue, trouble = opened_catalogue(config.pool.state)
            if trouble:
                complain(trouble)
            with catalogue:
                report = read_status(config, catalogue, now, live=False, faults=faults)
                kept = from_text(catalogue.get_fact(FACT))
                return report, AlarmMemory(config, catalogue, trouble).rows(), kept.looked if kept else None
        except OperatorError as error:
            complain(error)
    memory = AlarmMemory(config, None)
    return status_without_catalogue(config, now, faults=faults, is_bare=reporting.is_bare), memory.rows(), None


def _as_json(metric: Metric, samples: Sequence[MetricSample]) -> dict[str, Any]:
    return {
        "name": metric.name,
        "type": metric.kind,
        "help": metric.meaning,
        "samples": [{"labels": dict(sample.labels), "value": sample.value} for sample in samples],
    }

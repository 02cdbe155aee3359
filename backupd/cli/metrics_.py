"""`backupd metrics`: numbers for Prometheus."""

import sys
from typing import Any

import click

from backupd.cli.context import load_config, pass_context, present
from backupd.health.status_report import read_status
from btrkeep.catalogue import Catalogue
from btrkeep.cli import echo_json, json_option
from btrkeep.decisions.findings import FACT, from_text
from btrkeep.fs.output_file import whole_file


@click.command("metrics")
@click.option(
    "--textfile", type=click.Path(dir_okay=False), metavar="FILE", help="Replace FILE, for node_exporter's textfile collector."
)
@json_option
@pass_context
def command(ctx: click.Context, textfile: str | None, as_json: bool) -> int:
    """Print numbers of the pool and its hosts in the format that Prometheus reads.

    With --textfile they replace FILE as a whole, readable by all; node_exporter wants a name that ends in .prom, in the folder that
    its --collector.textfile.directory names.
    """
    config = load_config(ctx)
    moment = present(ctx, config)
    with Catalogue.open(config.pool.state) as catalogue:
        seen, alarms = read_status(config, catalogue, moment, live=False), catalogue.alarms()
        kept = from_text(catalogue.get_fact(FACT))
    looked = kept.looked if kept else None
    from prometheus_client import generate_latest

    from backupd.metrics.families import Registry, families

    if as_json:
        echo_json([_as_json(family) for family in families(seen, alarms, looked)])
        return 0
    text = generate_latest(Registry(seen, alarms, looked))
    if textfile is None:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
    else:
        # As a whole, under a name meanwhile that does not end in .prom, which node_exporter would read; and it is another user.
        with whole_file(textfile, mode=0o644) as file:
            file.write(text)
    return 0


def _as_json(family: Any) -> dict[str, Any]:
    return {
        "name": family.name + ("_total" if family.type == "counter" else ""),
        "type": family.type,
        "help": family.documentation,
        "samples": [{"labels": sample.labels, "value": float(sample.value)} for sample in family.samples],
    }

"""A run of balances from the command line: who watches it, who keeps it, and with which status it ends."""

from contextlib import ExitStack
from pathlib import Path

from balancer.cli.plan_view import report_as_json
from balancer.cli.planning import model_of
from balancer.cli.run_view import BalanceLines, BalanceStatus, warnings_on_stderr
from balancer.planning import require_devices
from balancer.recorder import Recorder
from balancer.run import Balancing
from balancer.run_types import INTENDED, BalanceEvent, Report, RunSettings, StopReason
from balancer.survey import identity
from btrkeep.cli import echo_json
from btrkeep.cli.progress import has_live_terminal
from btrkeep.errors import Exit
from btrkeep.pool.mounts import open_btrfs
from btrkeep.process.cancellation import signal_status
from btrkeep.process.progress import ProgressSink, ProgressSinks, is_service


def balance(path: Path, settings: RunSettings, state: Path | None, *, as_json: bool, quiet: bool) -> int:
    """Balances; the exit status. `state`: the folder of the catalogue that keeps it. Raises OperatorError."""
    with open_btrfs(path):
        filesystem = identity(path)
        require_devices(path if path.is_dir() else path.resolve().parent, settings)
    model = model_of(state, filesystem)
    with ExitStack() as held:
        shown = _sink(held, as_json=as_json, quiet=quiet)
        sinks = [shown]
        if state:
            warn = ProgressSinks(shown).notice
            sinks.insert(0, held.enter_context(Recorder(state, filesystem, path.resolve(), warn)))
        if is_service():
            sinks.append(BalanceStatus())
        balancing = Balancing(path, settings, model, sinks)
        with balancing.cancellation.listening():
            report = balancing.run()
    if as_json:
        echo_json(report_as_json(report, settings))
    return exit_status(report)


def exit_status(report: Report) -> int:
    """Returns the exit status of a finished run. A block group that could not be moved is a problem, unless a swap file keeps
    it in place.
    """
    if report.reason is StopReason.SIGNAL and report.signal:
        return signal_status(report.signal)
    is_well = report.reason in INTENDED and not any(step.is_failure for step in report.steps)
    return Exit.OK if is_well else Exit.ATTENTION


def _sink(held: ExitStack, *, as_json: bool, quiet: bool) -> ProgressSink[BalanceEvent]:
    if as_json:
        return warnings_on_stderr
    if not quiet and has_live_terminal():
        from balancer.cli.live import BalanceDisplay

        live = BalanceDisplay()
        held.callback(live.close)
        return live
    return BalanceLines(quiet=quiet)

"""Which signals ask a command to come to an end."""

import signal


def ending() -> tuple[signal.Signals, ...]:
    """Ctrl-C, SIGTERM, and SIGHUP (the terminal has gone) unless whoever started this process had it ignored, as nohup does."""
    both = (signal.SIGINT, signal.SIGTERM)
    return both if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*both, signal.SIGHUP)

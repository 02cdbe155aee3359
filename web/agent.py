"""What needs root: asked of `backupd serve`, in the name of who is logged in."""

from flask import current_app

from btrkeep.serving.client import Agent
from web.access import viewer


def agent() -> Agent:
    """The root service, for this request. It connects when it is asked something, and raises Absent when nobody listens then."""
    return Agent(current_app.extensions["btrkeep"].socket, viewer().name)

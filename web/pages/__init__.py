"""The pages, a module each with a `blueprint`: what a page shows is in web/data, how it looks in web/templates."""

from importlib import import_module

from flask import Flask

NAMES = (
    "overview",
    "hosts",
    "files",
    "restore",
    "copies",
    "pool",
    "heatmap",
    "balance",
    "expiry",
    "jobs",
    "log",
    "doctor",
    "account",
    "health",
)


def register(app: Flask) -> None:
    """Adds every page to the application."""
    for name in NAMES:
        app.register_blueprint(import_module(f"web.pages.{name}").blueprint)

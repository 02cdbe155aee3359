"""The pages, a module each with a `blueprint`: what a page shows is in web/data, how it looks in web/templates."""

from importlib import import_module

from flask import Flask

from web.navigation import PAGES


def register(app: Flask) -> None:
    """Adds every page to the application."""
    for page in PAGES:
        app.register_blueprint(import_module(f"web.pages.{page.name}").blueprint)

"""The command line."""

from syncguard.cli.commands import app, main

__all__ = ["app", "main"]

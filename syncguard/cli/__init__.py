"""The command line."""

from syncguard.cli.app import app, main

__all__ = ["app", "main"]

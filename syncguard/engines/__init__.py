"""Adapters of engines: each observes one engine and drives its syncs."""

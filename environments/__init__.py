"""Environments: where an agent acts."""

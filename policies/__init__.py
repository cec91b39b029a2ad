"""Policies: who answers."""

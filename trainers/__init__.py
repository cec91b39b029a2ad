"""Trainers: what learns."""

"""What killed runs left on this machine, as `doctor` reports and removes it."""

from __future__ import annotations

from collections import Counter

from agentgym.doctor import Finding
from agentgym.environments import leftovers


def finding() -> Finding:
    """A finding that lists what dead owners left, and the command that removes it."""
    found = leftovers.find()
    kinds = Counter(one.kind for one in found)
    detail = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(kinds.items())) or "none"
    examples = f" ({', '.join(one.name for one in found[:3])}{', ...' if len(found) > 3 else ''})" if found else ""
    remedy = "agentgym doctor --reap" if found else ""
    return Finding(name="leftovers", ok=not found, detail=detail + examples, remedy=remedy, purpose="tidiness")


def reap() -> list[str]:
    """Remove what dead owners left, and say what it was."""
    return [f"{one.kind} {one.name}" for one in leftovers.reap()]

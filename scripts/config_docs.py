"""Makes docs/config.md from the config's schema: `python -m scripts.config_docs`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from agentgym.config import CHOICES, PRESETS, knobs

PAGE = Path(__file__).parents[1] / "docs" / "config.md"
HEAD = """# Config

Made from `agentgym/config.py` by `make docs`: do not edit.

A config is a YAML file with any of these keys; `key=value` arguments on the command line win over it, it wins over the
preset, and the preset over the defaults below. An unknown key or a wrong type is an error.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for section, rows in groupby(knobs(), key=lambda row: row[0].rpartition(".")[0]):
        parts.append(f"\n## {section or 'The run'}\n\n| key | default | what it does |\n| --- | --- | --- |\n")
        parts.extend(_row(*row) for row in rows)
    parts.append("\n## Presets\n\n`algorithm.preset` names a bundle; values not named are the defaults above.\n\n")
    parts.append("| preset | sets |\n| --- | --- |\n")
    parts.extend(f"| `{name}` | {_settings(values)} |\n" for name, values in PRESETS.items())
    return "".join(parts)


def _row(key: str, default: Any, doc: str) -> str:
    missing = [
        str(choice) for choice in CHOICES.get(key, ()) if f"`{choice}`" not in doc and key != "trainer.zero_stage"
    ]
    doc += f" ({', '.join(f'`{choice}`' for choice in missing)})" if missing else ""
    return f"| `{key}` | {_value(default)} | {doc.replace('|', chr(92) + '|')} |\n"


def _value(value: Any) -> str:
    if value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in values.items()) or "nothing"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")

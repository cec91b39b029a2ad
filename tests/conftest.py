"""Golden numbers: `@pytest.mark.golden("name")` runs a test once per case of that name, given as `case`.

`pytest --golden FILE` takes other files of the same form; it may be repeated.
"""

import json
from pathlib import Path
from typing import Any

import pytest

FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="append", type=Path, metavar="FILE", help="a file of golden numbers")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(name): one test per golden case of this name, as the argument `case`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("golden")
    if marker:
        files = metafunc.config.getoption("--golden") or FILES
        found = [case for file in files for case in golden_cases(file, marker.args[0])]
        metafunc.parametrize("case", found, ids=[f"{marker.args[0]}{index}" for index in range(len(found))])


def golden_cases(file: Path, name: str) -> list[dict[str, Any]]:
    """The cases called `name`, in either form: {name: [case, ...]} or {"cases": [{"id": name, ...}, ...]}."""
    content = json.loads(file.read_text())
    return content.get(name, []) + [case for case in content.get("cases", []) if case["id"] == name]

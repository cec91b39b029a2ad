import re
from pathlib import Path


def found(text):
    return re.findall(Path("/app/pattern.txt").read_text().strip(), text)


def test_dates():
    assert found("from 2024-02-28 to 2024-12-31.") == ["2024-02-28", "2024-12-31"]


def test_no_dates():
    assert found("2024-13-01 2024-00-10 2024-01-32 12024-01-01 2024-01-011") == []

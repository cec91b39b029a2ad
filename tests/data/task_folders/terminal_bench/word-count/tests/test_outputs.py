import json
from pathlib import Path


def counts():
    return json.loads(Path("/app/counts.json").read_text())


def test_the_common_words():
    assert counts()["the"] == 4 and counts()["sea"] == 2


def test_nothing_else():
    assert sum(counts().values()) == 15 and all(word.isalpha() and word.islower() for word in counts())

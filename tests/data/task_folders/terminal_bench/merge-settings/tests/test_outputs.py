import json
from pathlib import Path


def merged():
    return json.loads(Path("/app/merged.json").read_text())


def test_top():
    assert merged()["name"] == "mine" and merged()["debug"] is False


def test_nested():
    assert merged()["window"] == {"width": 800, "height": 200, "tabs": ["x"]}

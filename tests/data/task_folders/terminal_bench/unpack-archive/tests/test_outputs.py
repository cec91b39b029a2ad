from pathlib import Path


def test_restored():
    names = sorted(path.name for path in Path("/app/restored").rglob("*.txt"))
    assert names == ["april.txt", "june.txt", "may.txt"]


def test_largest():
    assert Path("/app/largest.txt").read_text().strip() == "may.txt"

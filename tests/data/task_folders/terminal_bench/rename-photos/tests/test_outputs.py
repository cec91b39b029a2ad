from pathlib import Path

PHOTOS = Path("/app/photos")


def test_names():
    assert sorted(path.name for path in PHOTOS.iterdir()) == ["a b.jpg", "beach.jpg", "notes.txt", "town.jpg"]


def test_contents():
    assert (PHOTOS / "a b.jpg").read_text() == "three\n"

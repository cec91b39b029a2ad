from pathlib import Path

FILE = Path("/app/greeting.txt")


def test_it_is_there():
    assert FILE.is_file()


def test_it_greets():
    assert FILE.read_text().strip() == "Good morning, harbour!"

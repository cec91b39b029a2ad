from pathlib import Path


def test_errors():
    assert Path("/app/errors.log").read_text().splitlines() == [
        "2024-05-01T08:00:01 ERROR disk full",
        "2024-05-01T08:30:00 ERROR no answer",
        "2024-05-02T07:15:09 ERROR disk full",
    ]

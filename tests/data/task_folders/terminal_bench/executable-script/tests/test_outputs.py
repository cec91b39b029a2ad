import subprocess


def run(*arguments):
    return subprocess.run(["/app/bin/sumup", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_sums():
    assert run("1", "2", "3") == "6"


def test_negative():
    assert run("10", "-4") == "6"


def test_none():
    assert run() == "0"

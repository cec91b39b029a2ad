from pathlib import Path


def test_patched():
    text = Path("/app/src/hello.c").read_text()
    assert text == 'int puts(const char *);\nint main(void) { return puts("hello, world"); }\n'

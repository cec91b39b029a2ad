"""Trees in and out of a sandbox: the same in every kind."""

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from agentgym.environments.sandbox import Sandbox
from agentgym.errors import SandboxError


def tar_of(*members: tuple[str, str, str | bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for kind, name, what in members:
            info = tarfile.TarInfo(name)
            info.type = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE}[kind]
            info.mode, info.mtime = (0o755 if kind == "d" else 0o640), 1_000_000
            if kind == "f":
                info.size = len(what)
                archive.addfile(info, io.BytesIO(what if isinstance(what, bytes) else what.encode()))
            else:
                info.linkname = str(what)
                archive.addfile(info)
    return made.getvalue()


def listed(tar: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {m.name: m.linkname if m.issym() else f"{m.mode:o} {m.size}" for m in archive}


async def test_a_tar_arrives_with_permissions_times_and_links(sandbox: Sandbox) -> None:
    await sandbox.upload(tar_of(("d", "a", ""), ("f", "a/x", b"\0hi"), ("l", "a/l", "x"), ("h", "a/h", "a/x")), "in")
    assert (await sandbox.run("cd in/a; stat -c '%n %a %Y' x; readlink l; cmp x h; touch mine")).stdout == (
        "x 640 1000000\nx\n"
    )


async def test_what_is_there_comes_out_as_a_tar(sandbox: Sandbox) -> None:
    await sandbox.run("mkdir -p a/b; echo hi > a/b/f; chmod 751 a/b/f; ln -s /etc/passwd a/l; mkfifo a/p")
    assert listed(await sandbox.download("a")) == {"b": "755 0", "b/f": "751 3", "l": "/etc/passwd"}
    assert listed(await sandbox.download("a/b/f")) == {"f": "751 3"}
    assert set(listed(await sandbox.download())) == {"a", "a/b", "a/b/f", "a/l"}
    for absent in ("nosuch", "../x", "a/l/x"):
        with pytest.raises(SandboxError):
            await sandbox.download(absent)


@pytest.mark.parametrize("tar", [tar_of(("f", "../x", "a")), tar_of(("f", "/etc/x", "a")), b"no tar", tar_of(("l", "d", "/tmp"), ("f", "d/x", "a"))])  # fmt: skip
async def test_a_hostile_tar_leads_nowhere(sandbox: Sandbox, tar: bytes) -> None:
    with pytest.raises(SandboxError):
        await sandbox.upload(tar)
    assert not await asyncio.to_thread(Path("/tmp/x").exists)


async def test_a_fork_has_the_files_and_a_life_of_its_own(sandbox: Sandbox) -> None:
    await sandbox.run(
        "mkdir -p d/ro; echo one > d/f; chmod 555 d/ro; ln -s d/f l; truncate -s 60M sparse; touch -d @7 d/f"
    )
    fork = await sandbox.fork()
    try:
        assert (await fork.run("cat l; stat -c %a d/ro; stat -c %s sparse; stat -c %Y d/f")).stdout == (
            "one\n555\n62914560\n7\n"
        )
        await asyncio.gather(fork.run("echo two > d/f; mkdir e"), sandbox.run("echo three > d/g"))
        assert await sandbox.read("d/f") == b"one\n" and await fork.read("d/f") == b"two\n"
        assert "e" not in await sandbox.snapshot() and "d/g" not in await fork.snapshot()
    finally:
        await fork.close()
    assert (await sandbox.run("cat d/f")).stdout == "one\n"


async def test_a_fork_carries_links_and_follows_none(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    await sandbox.run(f"ln -s {tmp_path} out; ln -s {tmp_path}/secret s")
    fork = await sandbox.fork()
    try:
        assert {path: entry.kind for path, entry in (await fork.snapshot()).items()} == {"out": "link", "s": "link"}
        assert b"outside" not in await fork.download()
    finally:
        await fork.close()

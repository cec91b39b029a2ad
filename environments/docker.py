"""A sandbox in a Docker container: the walls of bubblewrap and an image's own system.

A container is made once an episode. Its first process is the owner's hand inside (see `Control`), and a second one, over
the socket of one `docker exec`, is the persistent shell. Ready ones can wait in a pool. Files go in and out as tar,
through a shell of their own: the daemon's copying loses files on a tmpfs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import posixpath
import tarfile
from collections.abc import Callable
from typing import Any

from msgspec import structs

from agentgym.environments import guard
from agentgym.environments.containers import (
    BASH,
    Spec,
    client,
    create,
    failing_as_sandbox,
    first_process,
    labels,
    memory_cgroup,
    oom_kills,
    remove,
)
from agentgym.environments.dockershell import Control, DockerShell, Wire, detach
from agentgym.environments.folder import MAX_FILE_BYTES
from agentgym.environments.images import ensure
from agentgym.environments.leftovers import sweep_once
from agentgym.environments.network import Proxy
from agentgym.environments.owned import owned
from agentgym.environments.pty import ENDED, SHELL, Terminal
from agentgym.environments.sandbox import CommandResult, Sandbox, Snapshot
from agentgym.environments.shell import quote, refusal
from agentgym.environments.tars import checked, entries, inside, prefixes, tidy
from agentgym.environments.warm import pool
from agentgym.errors import SandboxError
from agentgym.types import new_id

MAX_TREE_BYTES = 1 << 30
INLINE_BYTES = 1 << 18  # larger trees go in through an exec of their own
TRANSFER_S = 120.0
NO_LINKS = 'for p in %s; do [ ! -L "$p" ] || exit 9; done'


class DockerSandbox(Sandbox):
    """Commands run in a container of `spec.image`."""

    isolates = True

    def __init__(self, spec: Spec, *, warm: int = 0, waiting: bool = False) -> None:
        self.spec = spec
        self.pool = pool(spec, warm) if warm else None
        self.id = ""  # the container's
        self.digest = ""  # the image's
        self.shell: DockerShell | None = None
        self.courier: DockerShell | None = None
        self.control: Control | None = None
        self.committed = ""  # the image of a fork
        self.cwd = ""
        self.waiting = waiting  # in a pool: nobody uses it yet
        self.proxy: Proxy | None = None
        self.terminal: Terminal | None = None
        self.key = f"docker/{new_id()}"
        self.busy, self.carrying = asyncio.Lock(), asyncio.Lock()

    async def start(self) -> None:
        guard.opened(self.key)
        if self.pool is not None and (ready := await self.pool.take()):
            self._adopt(ready)
            await self._open_network()
            return
        await asyncio.to_thread(sweep_once)
        try:
            image = await asyncio.to_thread(ensure, self.spec.image)
            if self.spec.writable and not self.committed:
                image = await asyncio.to_thread(owned, image, (self.spec.workdir, *self.spec.own), self.spec.user)
            self.id = await asyncio.to_thread(create, structs.replace(self.spec, image=image))
            answer = await asyncio.to_thread(self._attach_and_start)
            self.control = Control(answer)
            if not await self.control.ask("hello"):
                raise SandboxError(f"a container of {self.spec.image!r} did not start: has the image {BASH}?")
            self.group, self.digest = await asyncio.to_thread(self._look)
            self.shell = await self._new_shell(self.spec.limits.output_bytes, self._kill_all)
            if not self.waiting:
                await self._open_network()
        except BaseException:
            await self.close()
            raise

    async def _open_network(self) -> None:
        """Let it reach the hosts of the list; needs to be root on the daemon's machine."""
        if self.spec.allow:
            self.proxy = Proxy(self.spec.allow)
            await self.proxy.listen(await asyncio.to_thread(first_process, self.id))

    def _adopt(self, ready: DockerSandbox) -> None:
        """Take over a container that nobody has used."""
        self.id, self.digest, self.group = ready.id, ready.digest, ready.group
        self.control, self.shell = ready.control, ready.shell
        assert self.shell is not None
        self.shell.kill_all = self._kill_all
        ready.id, ready.control, ready.shell = "", None, None
        guard.closed(ready.key)

    def _attach_and_start(self) -> Any:
        api = client().api
        with failing_as_sandbox("cannot start a container"):
            answer = api.attach_socket(self.id, params={"stdin": 1, "stdout": 1, "stream": 1})
            api.start(self.id)
        return answer

    def _look(self) -> tuple[Any, str]:
        with failing_as_sandbox("cannot look at a container"):
            image = client().api.inspect_container(self.id)["Image"]
        return memory_cgroup(self.id), str(image)

    async def _new_shell(self, limit: int, end: Callable[[], Any], cwd: str = "") -> DockerShell:
        exec_id, answer = await asyncio.to_thread(
            self._exec, [BASH, "-c", 'umask 022; exec "$BASH" --norc --noprofile']
        )

        async def exit_code() -> int:
            return await asyncio.to_thread(self._exit_code, exec_id)

        shell = DockerShell(answer, end, exit_code, limit)
        await shell.open(cwd)
        return shell

    def _exec(self, argv: list[str]) -> tuple[str, Any]:
        api = client().api
        with failing_as_sandbox("cannot run anything in the container"):
            exec_id = api.exec_create(self.id, argv, stdin=True, user=self.spec.user, workdir=self.spec.workdir)["Id"]
            return exec_id, api.exec_start(exec_id, socket=True)

    def _exit_code(self, exec_id: str) -> int:
        with failing_as_sandbox("the container is gone"):
            for _ in range(100):
                said = client().api.exec_inspect(exec_id)
                if not said["Running"] and said["ExitCode"] is not None:
                    return int(said["ExitCode"])
        return 137

    async def open_terminal(self) -> Terminal:
        said = (await self.run("env -0 | base64 -w0")).stdout  # the agent's shell: it may say anything
        environment = ""
        with contextlib.suppress(ValueError):
            environment = base64.b64decode(said, validate=True).decode("utf-8", "replace")
        if self.terminal is not None:
            self.terminal.close()
        answer = await asyncio.to_thread(self._exec_terminal, environment)
        self.terminal = Terminal(detach(answer))
        return self.terminal

    def _exec_terminal(self, environment: str) -> Any:
        api = client().api
        with failing_as_sandbox("no terminal can be had"):
            exec_id = api.exec_create(
                self.id,
                [BASH, "-c", f"({SHELL}); printf %s {quote(ENDED.decode().rstrip())}; echo"],
                stdin=True,
                tty=True,
                user=self.spec.user,
                workdir=self.cwd or self.spec.workdir,
                environment=[one for one in environment.split("\0") if "=" in one],
            )["Id"]
            return api.exec_start(exec_id, socket=True, tty=True)

    async def _kill_all(self) -> None:
        if self.control is None:
            raise SandboxError("the container is gone")
        await self.control.kill_all()
        if self.terminal is not None:
            self.terminal.close()
        if self.courier is not None and not self.carrying.locked():
            self.courier.wire.close()
            self.courier = None

    async def run(self, command: str, timeout_s: float = 20.0) -> CommandResult:
        self._started()
        if refused := refusal(command):
            return refused
        async with self.busy:
            replaced = self.shell is not None and self.shell.ended.done()
            if self.shell is None or self.shell.ended.done():
                self.shell = await self._new_shell(self.spec.limits.output_bytes, self._kill_all, self.cwd)
            ooms = oom_kills(self.group)
            shell = self.shell
            try:
                result = await self._alive(shell.run(command, timeout_s))
            except BaseException:
                self._drop(shell)
                raise
            self.cwd = result.cwd
            if result.shell_replaced:
                self._drop(shell)
            oom = oom_kills(self.group) > ooms
            return structs.replace(result, shell_replaced=result.shell_replaced or replaced, oom=oom)

    def _drop(self, shell: DockerShell) -> None:
        shell.wire.close()
        self.shell = None

    async def _alive(self, work: Any) -> CommandResult:
        """Await a command; a container that died with it is no result."""
        result: CommandResult = await work
        if result.shell_replaced and not result.timed_out:
            assert self.control is not None
            if not await self.control.ask("alive"):
                raise SandboxError("the container died")
        return result

    async def _carry(self, command: str) -> CommandResult:
        """Run a command in the courier, a shell that the agent has never spoken to."""
        self._started()
        async with self.carrying:
            for _ in range(2):  # the agent may have killed the courier
                if self.courier is None or self.courier.ended.done():
                    self.courier = await self._new_shell(MAX_TREE_BYTES, _nothing)
                    self.courier.binary = True
                result = await self.courier.run(f"(cd {quote(self.spec.workdir)} && {command}\n)", TRANSFER_S)
                if not result.shell_replaced:
                    break
                self.courier = None
        if result.exit_code != 0:
            self._started()
            raise SandboxError(f"in the container: {result.stderr.strip()[-300:] or f'exit {result.exit_code}'}")
        return result

    async def upload(self, tar: bytes, path: str = ".") -> None:
        plain = checked(tar)
        unpack = f"mkdir -p -- {quote(path)} && tar -xpf - --no-same-owner -C {quote(path)}"
        if len(plain) <= INLINE_BYTES:
            await self._carry(f"base64 -d <<'END' | ({unpack})\n{base64.b64encode(plain).decode()}\nEND")
        else:
            await self._stream(f"cd {quote(self.spec.workdir)} && {unpack}", plain)

    async def _stream(self, command: str, data: bytes) -> None:
        """Run a command with `data` on its standard input, in an exec of its own."""
        self._started()
        exec_id, answer = await asyncio.to_thread(self._exec, [BASH, "-c", command])
        said, ended = bytearray(), asyncio.Event()
        wire = Wire(answer, lambda number, chunk: said.extend(chunk), ended.set)
        try:
            async with asyncio.timeout(TRANSFER_S):
                await wire.send(data)
                wire.finish()
                await ended.wait()
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"cannot send files to the container: {error}") from error
        finally:
            wire.close()
        if await asyncio.to_thread(self._exit_code, exec_id) != 0:
            raise SandboxError(f"in the container: {said.decode('utf-8', 'replace').strip()[-300:]}")

    async def download(self, path: str = ".") -> bytes:
        if not path.startswith("/") and path != ".":
            inside(path)
            await self._carry(f"({NO_LINKS % ' '.join(map(quote, prefixes(posixpath.dirname(path))))})")
        return await asyncio.to_thread(tidy, await self._pack(path))

    async def _pack(self, path: str) -> bytes:
        """A tar as the container's own program makes it; what its user may not read is missing."""
        parent, name = posixpath.split(posixpath.normpath(path))
        at = quote(path)
        tree = f"tar -cf - --sort=name --format=pax -C {at} ."
        one = f"tar -cf - --format=pax -C {quote(parent or '.')} -- {quote(name)}"
        result = await self._carry(
            f"if [ -d {at} ] && [ ! -L {at} ]; then {tree} 2>/dev/null || :; "
            f"elif [ -e {at} ] || [ -L {at} ]; then {one}; else echo 'no such path' >&2; exit 9; fi"
        )
        if result.stdout_dropped:
            raise SandboxError(f"{path!r} is too large")
        return result.stdout_raw

    async def read(self, path: str) -> bytes:
        inside(path)
        await self._carry(f"({NO_LINKS % ' '.join(map(quote, prefixes(path)))})")
        with tarfile.open(fileobj=io.BytesIO(await self.download(path))) as archive:
            member = next(iter(archive), None)
            file = archive.extractfile(member) if member is not None and member.isreg() else None
            if file is None:
                raise SandboxError(f"{path!r} is not a regular file")
            return file.read(MAX_FILE_BYTES)

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        info = tarfile.TarInfo(posixpath.basename(path))
        info.size, info.mode = len(content), mode
        await self._put(path, info, content)

    async def make_dir(self, path: str, mode: int = 0o755) -> None:
        inside(path)
        await self._carry(f"mkdir -p -- {quote(path)} && chmod {mode:o} -- {quote(path)}")

    async def link(self, path: str, target: str) -> None:
        info = tarfile.TarInfo(posixpath.basename(path))
        info.type, info.linkname = tarfile.SYMTYPE, target
        await self._put(path, info, b"")

    async def _put(self, path: str, info: tarfile.TarInfo, content: bytes) -> None:
        inside(path)
        links = NO_LINKS % " ".join(map(quote, prefixes(path)))
        await self._carry(f"({links}; [ ! -e {quote(path)} ] || [ -f {quote(path)} ] || exit 9)")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(info, io.BytesIO(content))
        await self.upload(made.getvalue(), posixpath.dirname(path) or ".")

    async def snapshot(self) -> Snapshot:
        return await asyncio.to_thread(entries, await self._pack("."))

    async def fork(self) -> DockerSandbox:
        self._started()
        spec, image = structs.replace(self.spec, limits=self.spec.limits.roomier()), ""
        if spec.writable:
            image = await asyncio.to_thread(self._commit)
            spec = structs.replace(spec, image=image)
        made = DockerSandbox(spec)
        made.committed = image
        await made.start()
        try:
            for place in ("/tmp",) if spec.writable else (spec.workdir, "/tmp"):
                await made.upload(await self._pack(place), place)
        except BaseException:
            await made.close()
            raise
        return made

    def _commit(self) -> str:
        changes = [f'LABEL {name}="{value}"' for name, value in labels(self.spec.run_id).items()]
        with failing_as_sandbox("cannot commit the container"):
            return str(client().api.commit(self.id, pause=True, changes=changes)["Id"])

    async def stop(self) -> None:
        self._started()
        async with self.busy:
            await self._kill_all()
            if self.shell is not None:
                self._drop(self.shell)

    async def close(self) -> None:
        container, self.id = self.id, ""
        if self.proxy is not None:
            await self.proxy.close()
        if self.terminal is not None:
            self.terminal.close()
        for shell in (self.shell, self.courier):
            if shell is not None:
                shell.wire.close()
        if self.control is not None:
            await self.control.tell("kill")  # a container with nothing in it goes quickly
            self.control.close()
        self.shell = self.courier = self.control = None
        if container and self.pool is not None:
            self.pool.give_back()
        if container:
            await asyncio.to_thread(remove, container, self.committed)
        guard.closed(self.key)

    def _started(self) -> None:
        if not self.id:
            raise SandboxError("the sandbox is not started, or closed")
        if self.control is None or self.control.ended.done():
            raise SandboxError("the container died")


async def _nothing() -> None:
    """What ends the courier ends nothing else."""

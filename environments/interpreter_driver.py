"""What runs cells, inside the sandbox: the text of this file is given to its Python, and nothing of ours imports it.

Requests come by standard input: a line of JSON {"number", "seconds", "size"}, then the code, `size` bytes. Each is
answered by one line of JSON on standard output. What a cell prints goes into memory, so that no disk can be full; the
time limit is a signal, so that a cell that is interrupted leaves its variables.
"""

from __future__ import annotations

import ast
import ctypes
import json
import linecache
import os
import resource
import signal
import sys
import traceback
import types
from typing import Any

SUBREAPER = 36  # of prctl: orphans become this process's children
AGAIN_S = 0.2  # for a cell that catches its interruption
FRAMES = 12  # of a traceback, the innermost ones
ROOM = 1 << 16  # bytes for an error after endless output


class TimeUp(BaseException):
    """Raised in a cell that has run for too long."""


class Driver:
    """A namespace, and the cells that run in it one after another."""

    def __init__(self, memory_bytes: int, max_chars: int) -> None:
        self.owner = os.getpid()
        self.requests = os.fdopen(os.dup(0), "rb")
        self.wire = os.dup(1)
        self.null = os.open(os.devnull, os.O_RDWR)
        self.out = os.memfd_create("out")
        self.max_chars = max_chars
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        sys.path.insert(0, "")
        self.streams = sys.stdout, sys.stderr
        self.armed = False
        for number in range(3):
            os.dup2(self.null, number)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    def serve(self) -> None:
        """Answer requests until there are no more."""
        while line := self.requests.readline():
            request = json.loads(line)
            code = self.requests.read(request["size"]).decode("utf-8", "replace")
            reply = self.answer(code, request["number"], request["seconds"])
            os.write(self.wire, json.dumps(reply).encode() + b"\n")

    def answer(self, code: str, number: int, seconds: float) -> dict[str, Any]:
        """Run a cell; what it printed and how it ended."""
        os.ftruncate(self.out, 0)
        os.lseek(self.out, 0, os.SEEK_SET)
        for stream in (1, 2):
            os.dup2(self.out, stream)
        sys.stdout, sys.stderr = self.streams
        signal.signal(signal.SIGALRM, self.ring)
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
            state = self.guarded(code, f"<cell {number}>")
            self.armed = False
        except TimeUp:
            state = "timeout"
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != self.owner:  # a child that the cell has forked came all the way back
            os._exit(0)
        text, left_out = self.printed()
        busy = state == "timeout" and self.children()
        return {"number": number, "state": state, "output": text, "left_out": left_out, "busy": busy}

    def guarded(self, code: str, name: str) -> str:
        """Run a cell; an exception is printed, without what is not the cell's own."""
        state, said = "ok", ""
        try:
            self.run(code, name)
        except TimeUp:
            return "timeout"
        except SystemExit as ended:
            said = f"SystemExit: {ended.code}\n"
        except BaseException as error:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != name:
                frames = frames.tb_next
            state, said = "error", "".join(traceback.format_exception(type(error), error, frames, limit=-FRAMES))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # whatever a cell has put there
                continue
        self.tell(said)
        return state

    def run(self, code: str, name: str) -> None:
        """Run a cell; a last expression is shown."""
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        space = self.module.__dict__
        exec(compile(tree, name, "exec"), space)  # noqa: S102 (inside the sandbox)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)  # noqa: S307
            if value is not None:
                space["_"] = value
                print(repr(value))

    def tell(self, text: str) -> None:
        """Print what a cell ended with, also where its output has filled all that there is."""
        try:
            os.write(1, text.encode("utf-8", "replace"))
        except OSError:
            os.ftruncate(self.out, max(0, os.fstat(self.out).st_size - ROOM))
            os.lseek(self.out, 0, os.SEEK_END)
            os.write(self.out, text.encode("utf-8", "replace")[:ROOM])

    def printed(self) -> tuple[str, int]:
        """Head and tail of what was printed, and how many bytes are left out between them."""
        size, half = os.fstat(self.out).st_size, self.max_chars // 2
        if size <= 4 * self.max_chars:
            text = os.pread(self.out, size, 0).decode("utf-8", "replace")
            if len(text) <= self.max_chars:
                return text, 0
        head = os.pread(self.out, 4 * half, 0).decode("utf-8", "replace")[:half]
        tail = os.pread(self.out, 4 * half, max(0, size - 4 * half)).decode("utf-8", "replace")[-half:]
        left_out = size - len(head.encode()) - len(tail.encode())
        return f"{head}\n[... {left_out} bytes left out ...]\n{tail}", left_out

    def children(self) -> bool:
        """Whether something that cells have started still runs."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return False
        return True

    def ring(self, *_: Any) -> None:
        """The time is up."""
        if self.armed and os.getpid() == self.owner:
            raise TimeUp


if __name__ == "__main__":
    Driver(int(sys.argv[1]), int(sys.argv[2])).serve()

"""The process that MLIR and LLVM run in, so that an abort of theirs is an error of ours.

LLVM ends its process where it meets what it cannot compile, and MLIR does where the linker writes nothing.
Here only a worker ends: `lower_apart` starts one on first use, hands it modules as text, and starts another
after a crash. A worker ends when the process that started it does.

Both directions carry a JSON object on a line, then as many bytes as its "bytes" says: requests hold
"target" and "environment" and a module's text, answers "seconds" and an ELF, or "code" and "sentence" of a
Reason and nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from flycc.codegen.errors import CompileError
from flycc.codegen.stages import lower
from flycc.contracts import FlyccError, Reason

#: Seconds after which a compilation is given up.
TIME_LIMIT = 600


def lower_apart(text: str, *, target: str) -> tuple[bytes, dict[str, float]]:
    """The ELF of a traced module, made in the worker, and the seconds each stage took.

    Raises CompileError, also where the worker crashed or took longer than `TIME_LIMIT`.
    """
    with _lock:
        try:
            return _worker().lower(text, target)
        except OSError as error:
            raise CompileError(Reason("codegen.worker", f"cannot run the compiler: {error}")) from error


def start() -> None:
    """Start the worker, which takes a second or two to be ready; errors are left to `lower_apart`."""
    with _lock:
        try:
            _worker()
        except OSError:
            return


@dataclass
class _Worker:
    """A running worker. `log` collects what it writes to its standard error."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    owner: int = field(default_factory=os.getpid)

    @classmethod
    def spawn(cls) -> _Worker:
        log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the worker runs
        # -P: the user's directory must not shadow what the worker imports.
        command = [sys.executable, "-P", "-m", "flycc.codegen.worker"]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
                # A Ctrl-C is for the process that asked; the worker sees its pipe close.
                start_new_session=True,
            )
        except OSError:
            log.close()
            raise
        return cls(process, log)

    def lower(self, text: str, target: str) -> tuple[bytes, dict[str, float]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        started = monotonic()
        late = threading.Timer(TIME_LIMIT, self.process.kill)
        late.daemon = True
        late.start()
        try:
            _send(self.process.stdin, {"target": target, "environment": dict(os.environ)}, text.encode())
            received = _receive(self.process.stdout)
        except BrokenPipeError:
            received = None
        except BaseException:
            # Interrupted half-way: what it would answer is nobody's any more.
            self.end()
            raise
        finally:
            late.cancel()
        if received is None:
            status = self.process.wait()
            said = self._last_words()
            self.end()
            if monotonic() - started >= TIME_LIMIT:
                raise CompileError(Reason("codegen.time", f"the compiler took longer than {TIME_LIMIT} s"))
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise CompileError(Reason("codegen.crash", f"the compiler ended with {how} and said: {said}"))
        answer, elf = received
        if "code" in answer:
            raise CompileError(Reason(answer["code"], answer["sentence"]))
        return elf, answer["seconds"]

    def end(self) -> None:
        """Stop it, if it runs, and give back what it held. A fork's copy only gives back."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            # What a dead worker did not read is lost when its pipe is closed.
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def _last_words(self) -> str:
        """The line of its log that says most: LLVM says what was wrong, then prints a stack of addresses."""
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 4096))
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines()]
        said = next((line for line in lines if "LLVM ERROR" in line or "Assertion" in line), "")
        return (said or next((line for line in reversed(lines) if line), "nothing"))[:200]


_lock = threading.RLock()
_running: _Worker | None = None


@atexit.register
def _end() -> None:
    if _running is not None:
        _running.end()


def _worker() -> _Worker:
    """This process's worker, which a fork does not inherit; a new one if the last one ended."""
    global _running
    if _running is not None and (_running.owner != os.getpid() or _running.process.poll() is not None):
        _running.end()
        _running = None
    if _running is None:
        _running = _Worker.spawn()
    return _running


def _send(stream: IO[bytes], head: dict[str, Any], body: bytes = b"") -> None:
    stream.write(json.dumps(head | {"bytes": len(body)}).encode() + b"\n" + body)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """One message, or None where the stream ended first."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    body = stream.read(head["bytes"])
    return (head, body) if len(body) == head["bytes"] else None


def serve() -> None:
    """Answer requests until there are no more."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Loaded while the first module is still being traced.
    import flydsl.compiler.jit_function  # noqa: F401

    while request := _receive(sys.stdin.buffer):
        head, body = request
        os.environ.clear()
        os.environ.update(head["environment"])
        seconds: dict[str, float] = {}
        try:
            elf = lower(body.decode(), target=head["target"], seconds=seconds)
            assert isinstance(elf, bytes)
            _send(answers, {"seconds": seconds}, elf)
        except FlyccError as error:
            _send(answers, {"code": error.reason.code, "sentence": error.reason.sentence})


if __name__ == "__main__":
    serve()

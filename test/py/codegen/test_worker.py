"""The compiler's own process: its deaths are errors, and the next compilation works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flycc.codegen import CodeObjectCache, CompileError, compile_kernel, worker
from flycc.codegen.stages import lower
from flycc.kernels.common.spec import KernelSpec

#: A kernel that LLVM's instruction selection cannot compile: it ends its process.
UNSELECTABLE = """
gpu.module @kernels [#rocdl.target<O = 2, chip = "gfx950">] {
  llvm.func @gfx12_only(%out: !llvm.ptr<1>) attributes {gpu.kernel, rocdl.kernel} {
    %x = llvm.load %out : !llvm.ptr<1> -> i32
    %no = llvm.mlir.constant(false) : i1
    %y = llvm.call_intrinsic "llvm.amdgcn.permlane16.var"(%x, %x, %x, %no, %no) : (i32, i32, i32, i1, i1) -> i32
    llvm.store %y, %out : i32, !llvm.ptr<1>
    llvm.return
  }
}
"""


@pytest.fixture(scope="module")
def traced(spec: KernelSpec) -> str:
    text = lower(spec, stop_after="fly")
    assert isinstance(text, str)
    return text


def running() -> worker._Worker:
    found = worker._worker()
    assert found.process.poll() is None
    return found


def test_the_bytes_are_those_of_this_process(spec: KernelSpec, traced: str) -> None:
    elf, seconds = worker.lower_apart(traced, target="gfx950")
    assert elf == lower(spec)
    assert {"isa", "hsaco"} <= seconds.keys()


def test_an_error_of_a_stage_is_the_stages_error_and_the_worker_lives_on(traced: str) -> None:
    before = running()
    with pytest.raises(CompileError, match="parse") as caught:
        worker.lower_apart("not a module", target="gfx950")
    assert caught.value.reason.code == "codegen.stage"
    assert running() is before


def test_a_death_is_an_error_with_its_signal_and_the_next_one_works(traced: str) -> None:
    doomed = running()
    os.kill(doomed.process.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (doomed.process.pid, signal.SIGABRT)).start()
    threading.Timer(0.6, os.kill, (doomed.process.pid, signal.SIGCONT)).start()
    with pytest.raises(CompileError, match="SIGABRT") as caught:
        worker.lower_apart(traced, target="gfx950")
    assert caught.value.reason.code == "codegen.crash"
    assert worker.lower_apart(traced, target="gfx950")[0].startswith(b"\x7fELF")


def test_a_compilation_without_end_is_given_up(traced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = running()
    os.kill(stuck.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(worker, "TIME_LIMIT", 0.5)
    with pytest.raises(CompileError, match="longer than") as caught:
        worker.lower_apart(traced, target="gfx950")
    assert caught.value.reason.code == "codegen.time"
    monkeypatch.undo()
    assert worker.lower_apart(traced, target="gfx950")[0].startswith(b"\x7fELF")


def test_what_cannot_be_started_is_an_error(traced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_running", None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    worker.start()
    with pytest.raises(CompileError, match="cannot run the compiler") as caught:
        worker.lower_apart(traced, target="gfx950")
    assert caught.value.reason.code == "codegen.worker"


def test_a_fork_gets_its_own(traced: str) -> None:
    running()
    child = os.fork()
    if not child:
        elf, _ = worker.lower_apart(traced, target="gfx950")
        os._exit(0 if elf.startswith(b"\x7fELF") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.lower_apart(traced, target="gfx950")[0].startswith(b"\x7fELF")


def test_threads_take_turns(spec: KernelSpec, traced: str) -> None:
    elves: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: elves.append(worker.lower_apart(traced, target="gfx950")[0]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(elves) == 4
    assert len(set(elves)) == 1


CHILD = """
import sys
from pathlib import Path
from flycc.codegen import CodeObjectCache, compile_kernel, worker
from flycc.contracts import GemmProblem
from flycc.kernels import gemm
problem = GemmProblem("bf16", 1, 64, 256, trans_b=True)
compile_kernel(gemm.kernel(problem, gemm.choose(problem)), cache=CodeObjectCache(Path(sys.argv[1])))
print(worker._worker().process.pid)
"""


def test_it_ends_with_its_process_and_imports_nothing_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "flydsl.py").write_text("raise ImportError('the wrong one')\n")
    (tmp_path / "json.py").write_text("raise ImportError('the wrong one')\n")
    command = [sys.executable, "-P", "-c", CHILD, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_kernel_that_llvm_gives_up_on_is_refused(cache: CodeObjectCache, spec: KernelSpec) -> None:
    with pytest.raises(CompileError) as caught:
        worker.lower_apart(UNSELECTABLE, target="gfx950")
    assert caught.value.reason.code == "codegen.crash"
    assert "permlane16" in caught.value.reason.sentence
    assert compile_kernel(spec, cache=cache).elf.startswith(b"\x7fELF")

"""When loads take effect: at the wait that requires it, in the order of their counter, and not before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import SEED, SHAPE, A, Operand, S, V, batch, const

from flycc.emulator.isa.instruction import Instruction, OperandKind
from flycc.emulator.semantics import bind
from flycc.emulator.state import M0, Batch, Land, Queue

OFF = Operand(OperandKind.OFF)


def waitcnt(vmcnt: int = 63, lgkmcnt: int = 15) -> Instruction:
    bits = vmcnt & 15 | vmcnt >> 4 << 14 | lgkmcnt << 8 | 7 << 4
    return Instruction(0, 4, "s_waitcnt", "SOPP", (), (), {"simm16": bits})


def run(state: Batch, *instructions: Instruction) -> None:
    """Execute without completing what they start."""
    for inst in instructions:
        bind(state, inst)()


def load_global(register: int, offset: int = 0) -> Instruction:
    sources = (Operand(V, 0), Operand(S, 8, 2))
    return Instruction(
        0, 8, "global_load_dword", "GLOBAL", (Operand(V, register),), sources, {"offset": offset}
    )


def load_lds(register: int, offset: int = 0) -> Instruction:
    return Instruction(
        0, 8, "ds_read_b32", "DS", (Operand(V, register),), (Operand(V, 0),), {"offset": offset}
    )


def load_scalar(register: int, offset: int = 0) -> Instruction:
    sources = (Operand(S, 8, 2), OFF)
    return Instruction(0, 8, "s_load_dword", "SMEM", (Operand(S, register),), sources, {"offset": offset})


def machine() -> tuple[Batch, np.ndarray]:
    """v0 is 4 * lane, s[8:9] the address of 256 random dwords, the first 128 of which are in LDS too."""
    state = batch(groups=2, waves_per_group=1, lds=512)
    data = np.random.default_rng(SEED).integers(1, 2**32, 256, dtype=np.uint32)
    state.sgpr64[:, 4] = state.memory.register(data)
    state.vgpr[0] = 4 * np.arange(64)
    state.lds[:] = np.tile(data[:128], 2).view(np.uint8)
    return state, data


@pytest.mark.parametrize("load", [load_global, load_lds])
def test_vector_loads_land_in_order(load: Callable[[int, int], Instruction]) -> None:
    state, data = machine()
    counter = "vmcnt" if load is load_global else "lgkmcnt"
    run(state, load(2, 0), load(3, 256), load(4, 0))
    assert not state.vgpr[2:5].any()
    for outstanding, landed in ((3, 0), (2, 1), (1, 2), (0, 3)):
        run(state, waitcnt(**{counter: outstanding}))
        for i in range(3):
            expected = (data[:64], data[64:128], data[:64])[i] if i < landed else np.zeros(64)
            np.testing.assert_array_equal(state.vgpr[2 + i], np.broadcast_to(expected, SHAPE))


def test_counters_are_independent() -> None:
    state, _ = machine()
    run(state, load_global(2), load_lds(3), waitcnt(lgkmcnt=0))
    assert not state.vgpr[2].any()
    assert state.vgpr[3].all()
    run(state, waitcnt(vmcnt=0))
    assert state.vgpr[2].all()


def test_scalar_loads_land_only_when_none_is_outstanding() -> None:
    state, data = machine()
    run(state, load_scalar(20), load_scalar(21, 4), load_lds(2), load_lds(3), waitcnt(lgkmcnt=1))
    # Scalar loads return in any order: both may be the one that is outstanding.
    assert not state.sgpr[:, 20:22].any()
    # LDS returns in order: v3 may be the one that is outstanding, v2 may not.
    assert state.vgpr[2].all()
    assert not state.vgpr[3].any()
    run(state, waitcnt(lgkmcnt=0))
    np.testing.assert_array_equal(state.sgpr[:, 20:22], np.broadcast_to(data[:2], (2, 2)))
    assert state.vgpr[3].all()


def test_stores_count() -> None:
    state, _ = machine()
    store = Instruction(
        0,
        8,
        "global_store_dword",
        "GLOBAL",
        (),
        (Operand(V, 0), Operand(V, 5), Operand(S, 8, 2)),
        {"offset": 512},
    )
    run(state, load_global(2), store, waitcnt(vmcnt=2))
    assert not state.vgpr[2].any()
    run(state, waitcnt(vmcnt=1))
    assert state.vgpr[2].all()


def test_memory_is_read_when_the_load_is_issued() -> None:
    state, data = machine()
    before = data[:64].copy()
    write = Instruction(0, 8, "ds_write_b32", "DS", (), (Operand(V, 0), Operand(V, 5)))
    run(state, load_global(2), load_lds(3), write)
    data[:64] = 0
    run(state, waitcnt(0, 0))
    np.testing.assert_array_equal(state.vgpr[2], np.broadcast_to(before, SHAPE))
    np.testing.assert_array_equal(state.vgpr[3], np.broadcast_to(before, SHAPE))


def test_a_load_overwrites_what_was_written_since_it_was_issued() -> None:
    state, data = machine()
    move = Instruction(0, 4, "v_mov_b32", "VOP1", (Operand(V, 2),), (const(7, 135),))
    run(state, load_global(2), move)
    assert (state.vgpr[2] == 7).all()
    run(state, waitcnt(vmcnt=0))
    np.testing.assert_array_equal(state.vgpr[2], np.broadcast_to(data[:64], SHAPE))


def test_lanes_are_those_of_the_issue() -> None:
    state, data = machine()
    lanes = np.random.default_rng([SEED, 1]).integers(0, 2**64, 2, dtype=np.uint64)
    state.sgpr64[:, 63] = lanes
    state.exec_changed()
    run(state, load_global(2))
    state.sgpr64[:, 63] = ~lanes
    state.exec_changed()
    run(state, waitcnt(vmcnt=0))
    on = (lanes[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(bool)
    np.testing.assert_array_equal(state.vgpr[2], np.where(on, data[:64], 0))


def test_waves_wait_on_their_own() -> None:
    state, data = machine()
    run(state, load_global(2))
    state.activate(np.array([False, True]))
    run(state, load_global(3, 256), waitcnt(vmcnt=1))
    assert not state.vgpr[2, 0].any()
    np.testing.assert_array_equal(state.vgpr[2, 1], data[:64])
    assert not state.vgpr[3].any()
    state.activate(np.array([True, False]))
    run(state, waitcnt(vmcnt=0))
    np.testing.assert_array_equal(state.vgpr[2, 0], data[:64])
    assert not state.vgpr[3].any()
    state.activate(np.array([False, True]))
    run(state, waitcnt(vmcnt=0))
    np.testing.assert_array_equal(state.vgpr[3, 1], data[64:128])


def test_a_queue_keeps_the_order_of_every_wave() -> None:
    """Against a list of what is outstanding for each wave, over random operations of random waves."""
    rng = np.random.default_rng([SEED, 2])
    queue, outstanding, landed = Queue(), [[] for _ in range(4)], [[] for _ in range(4)]
    expected: list[list[int]] = [[] for _ in range(4)]

    def note(operation: int, issued: np.ndarray | None) -> Land:
        def land(waves: np.ndarray | None) -> None:
            for wave in range(4):
                if (issued is None or issued[wave]) and (waves is None or waves[wave]):
                    landed[wave].append(operation)

        return land

    for operation in range(400):
        waves = None if rng.random() < 0.3 else rng.integers(0, 2, 4).astype(bool)
        chosen = [wave for wave in range(4) if waves is None or waves[wave]]
        if rng.random() < 0.7:
            queue.push(waves, note(operation, waves))
            for wave in chosen:
                outstanding[wave].append(operation)
            continue
        limit = int(rng.integers(0, 6))
        queue.wait(waves, limit)
        for wave in chosen:
            done = max(0, len(outstanding[wave]) - limit)
            expected[wave] += outstanding[wave][:done]
            del outstanding[wave][:done]
        assert landed == expected
    assert all(expected)


def test_load_to_lds_lands_with_vmcnt() -> None:
    state, data = machine()
    state.sgpr[:, M0] = 256
    to_lds = Instruction(
        0, 8, "global_load_lds_dword", "GLOBAL", (), (Operand(V, 0), Operand(S, 8, 2)), {"offset": 0}
    )
    before = state.lds.copy()
    run(state, to_lds, load_global(2), waitcnt(vmcnt=2, lgkmcnt=0))
    np.testing.assert_array_equal(state.lds, before)
    run(state, waitcnt(vmcnt=1))
    expected = np.tile(np.concatenate([data[:64], data[:64]]), 2).view(np.uint8)
    np.testing.assert_array_equal(state.lds, expected)


def test_lane_permutes_and_atomics_land_with_lgkmcnt() -> None:
    state, data = machine()
    permute = Instruction(0, 8, "ds_bpermute_b32", "DS", (Operand(V, 2),), (Operand(V, 0), Operand(V, 0)))
    atomic = Instruction(0, 8, "ds_add_rtn_u32", "DS", (Operand(V, 3),), (Operand(V, 0), Operand(V, 0)))
    run(state, permute, atomic, waitcnt(lgkmcnt=1))
    np.testing.assert_array_equal(state.vgpr[2], state.vgpr[0])
    assert not state.vgpr[3].any()
    run(state, waitcnt(lgkmcnt=0))
    np.testing.assert_array_equal(state.vgpr[3], np.broadcast_to(data[:64], SHAPE))


def test_clocks_only_go_forward() -> None:
    state, _ = machine()
    last = -1
    for i, name in enumerate(("s_memtime", "s_memrealtime", "s_memtime")):
        run(state, Instruction(0, 8, name, "SMEM", (Operand(S, 20 + 2 * i, 2),), ()))
        assert not state.sgpr64[:, 10 + i].any()
        run(state, waitcnt(lgkmcnt=0))
        assert (state.sgpr64[:, 10 + i] > last).all()
        last = int(state.sgpr64[0, 10 + i])


def test_matrix_operands_that_land_between_two_uses_are_read_again() -> None:
    """Blocks share expanded operands as long as their registers stay as they are, which a wait may end."""
    from flycc.emulator.execute import Landing

    state, _ = machine()
    landing = Landing(state)
    everything = (0, len(state.vgpr))
    assert landing.written_by(waitcnt(vmcnt=63)) == []
    # What was issued before the code may land at its first waits.
    assert landing.written_by(waitcnt(vmcnt=1)) == [everything]
    assert landing.written_by(waitcnt(vmcnt=0)) == [everything]
    assert landing.written_by(waitcnt(vmcnt=0)) == []
    into_accumulator = Instruction(0, 8, "ds_read_b64", "DS", (Operand(A, 2, 2),), (Operand(V, 0),))
    assert landing.written_by(load_global(5)) == []
    assert landing.written_by(into_accumulator) == []
    assert landing.written_by(waitcnt(vmcnt=0)) == [(5, 1)]
    assert landing.written_by(waitcnt(lgkmcnt=3)) == [everything, (state.accum_offset + 2, 2)]


def test_load_to_lds_drops_what_lies_outside() -> None:
    state, data = machine()
    state.lds[:] = 0
    state.sgpr[:, M0] = 0
    to_lds = Instruction(
        0, 8, "global_load_lds_dword", "GLOBAL", (), (Operand(V, 1), Operand(S, 8, 2)), {"offset": -8}
    )
    state.vgpr[1] = 4 * np.arange(64) + 8
    run(state, to_lds, waitcnt(vmcnt=0))
    expected = np.zeros((2, 128), np.uint32)
    expected[:, :62] = data[2:64]
    np.testing.assert_array_equal(state.lds.view(np.uint32).reshape(2, 128), expected)

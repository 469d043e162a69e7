"""flycc::topk as a PyTorch operator: values, every way of giving its operands, and what happens when something fails.

Results are exact, so every comparison is for equality, of indices too: `torch.sort(stable=True)` is the reference.
"""

import os
import warnings
from dataclasses import replace

import pytest
import torch

from flycc.contracts import FlyccError, Reason, TopkProblem
from flycc.runtime import ops, refusals, topk


@pytest.fixture(autouse=True)
def _strict():
    torch.manual_seed(int(os.environ["FLYCC_TEST_SEED"]))
    with refusals.strict():
        yield


def lenient(monkeypatch):
    """Refusals are warnings, each given once."""
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)


def failing_launch(*_):
    raise FlyccError(Reason("device.launch", "planted"))


def check(x, k, **options):
    largest = options.get("largest", True)
    values, indices = torch.ops.flycc.topk(x, k, **options)
    expected, places = torch.sort(x, dim=-1, stable=True, descending=largest)
    assert values.is_contiguous()
    assert indices.is_contiguous()
    assert values.dtype == x.dtype
    assert torch.equal(indices, places[..., :k])
    assert torch.equal(values, expected[..., :k])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((torch.float32, shape) for shape in ((9,), (4, 40), (2, 3, 70), (2, 1, 3, 33))),
        *((torch.bfloat16, (2, 3, 70)), (torch.float16, (4, 40)), (torch.int32, (2, 1, 3, 33))),
    ],
)
def test_dimensions(shape, dtype):
    check((torch.randn(shape) * 8).to(dtype), 3)
    check((torch.randn(shape) * 8).to(dtype), 9, largest=False)


def test_a_scalar_is_one_element():
    values, indices = torch.ops.flycc.topk(torch.tensor(2.5), 1)
    assert values.shape == indices.shape == ()
    assert (values.item(), indices.item()) == (2.5, 0)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[::3, 5:],
        lambda x: x[3:4].expand(6, -1),
        lambda x: x[:, :1].expand(-1, 50),
        lambda x: x.view(6, 4, -1).transpose(0, 1),
        lambda x: x.as_strided((9, 30), (1, 1)),
    ],
)
def test_views(view):
    x = view(torch.randn(24, 36))
    check(x, 7)
    check(x, min(20, x.shape[-1]))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4)])
def test_empty(shape):
    values, indices = torch.ops.flycc.topk(torch.empty(shape), 0)
    assert values.shape == indices.shape == (*shape[:-1], 0)
    if shape[-1]:
        values, indices = torch.ops.flycc.topk(torch.empty(shape), 2)
        assert values.shape == indices.shape == (*shape[:-1], 2)


@pytest.mark.parametrize("k", [-1, 6])
def test_k_out_of_range_is_pytorchs_error(k):
    x = torch.randn(2, 5)
    with pytest.raises(RuntimeError) as pytorchs:
        torch.topk(x, k)
    with pytest.raises(RuntimeError) as ours:
        torch.ops.flycc.topk(x, k)
    assert str(ours.value).splitlines()[0] in str(pytorchs.value)


def test_unsorted_results_are_right():
    x = torch.randn(3, 500)
    for largest in (True, False):
        for k in (4, 200):
            values, indices = torch.ops.flycc.topk(x, k, largest=largest, sorted=False)
            expected = torch.topk(x, k, largest=largest).values
            assert torch.equal(x.gather(-1, indices), values)
            assert torch.equal(values.sort(-1).values, expected.sort(-1).values)


def test_nan_and_zeros_keep_their_bits():
    x = torch.tensor([0.0, -0.0, float("nan"), -float("inf"), float("inf"), 1.0])
    x = torch.cat([x, x.neg()])
    check(x.nan_to_num(), 12)
    for largest in (True, False):
        values, indices = torch.ops.flycc.topk(x, 12, largest=largest)
        assert torch.equal(indices, torch.sort(x, stable=True, descending=largest).indices)
        assert torch.equal(values.view(torch.int32), x[indices].view(torch.int32))


def test_a_vocabulary():
    check(torch.randn(1, 128256).bfloat16(), 50)


def test_the_operator_is_legal():
    x = torch.randn(3, 40)
    torch.library.opcheck(torch.ops.flycc.topk.default, (x, 5), {"largest": False})


def test_dynamic_sizes_keep_one_graph():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda x, k: torch.ops.flycc.topk(x, k)[0], backend=backend, dynamic=True, fullgraph=True
    )
    for rows, columns, k in ((3, 40, 5), (4, 50, 6), (5, 60, 7)):
        x = torch.randn(rows, columns)
        assert torch.equal(compiled(x, k), torch.topk(x, k).values)
    assert len(graphs) == 1


def test_a_failed_launch_gives_pytorchs_result_one_warning_and_a_reason(monkeypatch):
    monkeypatch.setattr(topk, "launch", failing_launch)
    lenient(monkeypatch)
    x = torch.randint(0, 9, (4, 30)).float()
    heard = []
    with refusals.listening(heard.append), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            values, indices = torch.ops.flycc.topk(x, 8)
            assert torch.equal(values, torch.topk(x, 8).values)
            assert torch.equal(indices, torch.sort(x, stable=True, descending=True).indices[:, :8])
    assert [reason.code for reason in heard] == ["device.launch"] * 3
    assert len(caught) == 1


def test_other_dtypes_go_to_pytorch(monkeypatch):
    lenient(monkeypatch)
    x = torch.randn(3, 20, dtype=torch.float64)
    with pytest.warns(
        RuntimeWarning, match=r"topk\.dtype: x is torch\.float64: the kernels take torch\.float32"
    ):
        values, indices = torch.ops.flycc.topk(x, 4)
    assert torch.equal(values, torch.topk(x, 4).values)
    assert torch.equal(x.gather(-1, indices), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_too_far_apart_for_32_bit_offsets(dtype):
    # Two rows, at least 2 GiB apart; the memory between them is never touched.
    x = torch.empty_strided((2, 41), (1 << 30, 1), dtype=dtype)
    x.copy_(torch.randn(2, 41))
    check(x, 4)


def test_what_goes_to_pytorch_has_the_strides_of_a_new_tensor(monkeypatch):
    lenient(monkeypatch)
    x = torch.randn(3, 20, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match=r"topk\.dtype"):
        values, indices = torch.ops.flycc.topk(x[:1], 1)
    assert values.stride() == indices.stride() == (1, 1)


def test_serve_answers_for_symbolic_sizes_and_refuses_what_no_kernel_takes():
    problem = TopkProblem("f32", "s0", "s1", 8)
    cpu = torch.device("cpu")
    assert ops.serve(problem, cpu) is None
    assert ops.serve(replace(problem, k="s2"), cpu) is None
    assert ops.serve(replace(problem, columns=4), cpu).code == "topk.size"
    assert ops.serve(replace(problem, dtype="f64"), cpu).code == "topk.dtype"

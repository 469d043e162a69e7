"""Operands: what the kernel is told (addresses, strides, layouts) describes exactly the logical matmul."""

import pytest
import torch

from flycc.runtime.operands import GemmOperands, Matrix


def logical(matrix: Matrix) -> torch.Tensor:
    """Rebuild the logical [batch, rows, columns] operand from the numbers that the kernel gets."""
    stored = matrix.tensor
    read = torch.as_strided(
        stored, stored.shape, (matrix.batch_stride, matrix.row_stride, 1), stored.storage_offset()
    )
    return read.transpose(1, 2) if matrix.transposed else read


def check(a, b, bias=None):
    out = torch.empty(torch.matmul(a.double(), b.double()).shape, dtype=a.dtype)
    operands = GemmOperands.of(a, b, bias, out)
    result = logical(operands.a).double() @ logical(operands.b).double()
    if operands.bias is not None:
        result = result + operands.bias.double()
    expected = torch.matmul(a.double(), b.double())
    if bias is not None:
        expected = expected + bias.double()
    torch.testing.assert_close(result.view(out.shape), expected)
    assert operands.out.shape == result.shape
    return operands


def rand(*shape):
    return torch.randint(-4, 5, shape).to(torch.bfloat16)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_layouts_are_read_from_strides(trans_a, trans_b):
    a = rand(5, 7).t() if trans_a else rand(7, 5)
    b = rand(9, 5).t() if trans_b else rand(5, 9)
    operands = check(a, b)
    assert (operands.a.transposed, operands.b.transposed) == (trans_a, trans_b)
    # Nothing was copied.
    assert operands.a.tensor.data_ptr() == a.data_ptr()
    assert operands.b.tensor.data_ptr() == b.data_ptr()


def test_linear_folds_the_batch_into_rows():
    operands = check(rand(2, 3, 4, 5), rand(6, 5).t(), rand(6))
    assert operands.out.shape == (1, 24, 6)


def test_padded_rows_and_offsets():
    operands = check(rand(8, 32)[1:, 3:20], rand(17, 40)[:, 5:13])
    assert operands.a.row_stride == 32
    assert operands.problem().align_a == 2


def test_batches_broadcast_without_a_copy():
    a, b = rand(4, 3, 5), rand(1, 5, 6)
    operands = check(a, b)
    assert operands.b.batch_stride == 0
    assert operands.b.tensor.data_ptr() == b.data_ptr()


def test_two_batch_dimensions_that_do_not_collapse():
    check(rand(2, 7, 3, 5).transpose(1, 2), rand(2, 3, 5, 4))


def test_column_major_batch_with_a_shared_weight():
    check(rand(3, 5, 4).transpose(1, 2), rand(5, 6))


def test_expanded_operands_and_no_unit_stride():
    check(rand(1, 5).expand(7, 5), rand(5, 1).expand(5, 9))
    check(rand(14, 10)[::2, ::2], rand(10, 18)[::2, ::2])


@pytest.mark.parametrize("shape", [(9,), (1, 9), (7, 9), (7, 1), (1,), ()])
def test_bias_forms(shape):
    check(rand(7, 5), rand(5, 9), rand(*shape))


@pytest.mark.parametrize("shape", [(9,), (3, 1, 9), (1, 7, 9), (3, 7, 1), (2, 3, 7, 9), (2, 1, 1, 1)])
def test_batched_bias_forms(shape):
    check(rand(2, 3, 7, 5), rand(2, 3, 5, 9), rand(*shape))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 9, 5), (7, 1, 5), (7, 9, 1), (1, 1, 5)])
def test_sizes_of_one_whose_strides_mean_nothing(m, n, k):
    check(rand(m, k).as_strided((m, k), (1 if m == 1 else k, 1)), rand(n, k).t())


def test_alignment_is_that_of_every_row():
    base = torch.zeros(4096, dtype=torch.bfloat16)
    start = -base.data_ptr() // 2 % 8
    for offset, pitch, expected in [(0, 16, 16), (0, 12, 8), (0, 10, 4), (0, 9, 2), (4, 16, 8), (1, 16, 2)]:
        view = base.as_strided((1, 3, 8), (64, pitch, 1), start + offset)
        assert Matrix.of(view).align == expected

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from flycc.contracts import FlyccError
from flycc.runtime import choice, hip_library, hip_standin
from flycc.runtime.hip import HipDevice


@pytest.fixture(autouse=True)
def own_choice() -> Iterator[None]:
    """The kernels' own choice of configurations, whoever has imported a tuner before."""
    with patch.object(choice, "_providers", []):
        choice.changed()
        yield
    choice.changed()


@pytest.fixture
def standin(request: pytest.FixtureRequest) -> Iterator[hip_standin.HipStandin]:
    """The stand-in with two GPUs and 64 MiB that work only when something waits for them.

    `@pytest.mark.parametrize("standin", [Settings(...)], indirect=True)` has others.
    """
    settings = getattr(request, "param", hip_standin.Settings(devices=2, memory_bytes=64 << 20))
    try:
        with hip_standin.installed(settings, deferred=True) as standin:
            yield standin
    except FlyccError as error:
        if error.reason.code != "standin.loaded":
            raise
        pytest.skip(f"this process has a real HIP library: {error}")


@pytest.fixture
def raw(standin: hip_standin.HipStandin) -> ctypes.CDLL:
    """The library, to call as C programs do."""
    return hip_library.library().raw


@pytest.fixture
def device(standin: hip_standin.HipStandin) -> HipDevice:
    """GPU 0, on the null stream."""
    return HipDevice(0, stream=lambda: 0)


def on_device(device: HipDevice, tensor: Tensor) -> Tensor:
    """A contiguous copy of a CPU tensor in memory of `device`; a GPU's tensor stands behind PyTorch's CPU ones."""
    nbytes = tensor.numel() * tensor.element_size()
    address = device.allocate(nbytes)
    device.copy_to(address, tensor.contiguous().view(torch.uint8).numpy().tobytes())
    memory = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)

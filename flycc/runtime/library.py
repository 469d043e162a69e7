"""The library that holds `torch.ops.flycc.*` as the runtime defines them."""

from __future__ import annotations

import torch

#: Each family defines and implements its operators here, in its own file.
LIBRARY = torch.library.Library("flycc", "FRAGMENT")

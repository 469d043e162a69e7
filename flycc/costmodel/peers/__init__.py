"""Modelled times of the implementations that others publish: what our kernels are compared with.

    predict(BY_KEY["gemm/flydsl/bf16"], Product((512,), 4096, 4096)).time    # modelled 28.3 us [26.2, 30.6]

Analytic: `tiled` has the one equation of products, `products` the classes and how each chooses its tile, `rms_norm` and
`topk` the others. Constants are data, fitted to published times by benchmarks/costmodel_fit.py, never to a shape;
docs/costmodel-validation.md says how well.
"""

from flycc.costmodel.peers import rms_norm, topk
from flycc.costmodel.peers.kernel_names import NamedKernel, named
from flycc.costmodel.peers.products import BY_KEY, PEERS, Peer, PeerPrediction, Product, predict

__all__ = [
    "BY_KEY",
    "PEERS",
    "NamedKernel",
    "Peer",
    "PeerPrediction",
    "Product",
    "named",
    "predict",
    "rms_norm",
    "topk",
]

"""Proofs of the bounds of `flycc.scales` by SMT solvers, and their counterexamples replayed in float32."""

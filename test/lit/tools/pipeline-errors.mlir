// A pipeline that is no pipeline is one error that names what is wrong, before anything runs.
// RUN: not flycc-opt %s --pass-pipeline=match-gem 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not flycc-opt %s --pass-pipeline='func.func(match-gemm)' 2>&1 | filecheck %s --check-prefix=ANCHOR
// RUN: not flycc-opt %s --pass-pipeline='match-gemm,,cse' 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not flycc-opt %s --pass-pipeline='func.func(cse' 2>&1 | filecheck %s --check-prefix=BRACKETS
// RUN: not flycc-opt %s --pass-pipeline=cse --match-gemm 2>&1 | filecheck %s --check-prefix=BOTH

// UNKNOWN: flycc-opt: error: argument --pass-pipeline: 'match-gem' does not refer to a registered pass or pass pipeline (nor is it one of flycc's: match-sdpa, match-gemm, match-grouped-gemm, match-scaled-gemm, match-scaled-grouped-gemm, fuse-epilogue, match-rms-norm, match-topk, fuse-cast, flycc-dce, place-scales, match-mx){{$}}
// ANCHOR: flycc-opt: error: argument --pass-pipeline: match-gemm runs on builtin.module without options, not as in 'func.func(match-gemm)'{{$}}
// EMPTY: flycc-opt: error: argument --pass-pipeline: empty pass name at column 12 of 'match-gemm,,cse'
// BRACKETS: flycc-opt: error: argument --pass-pipeline: brackets do not match in 'func.func(cse'
// BOTH: error: argument --pass-pipeline: not allowed with --match-gemm
module {}

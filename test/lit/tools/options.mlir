// Options that name nothing, files that cannot be read or written, and the list of passes.
// RUN: not flycc-opt %s --emit=ptx 2>&1 | filecheck %s --check-prefix=STAGE
// RUN: not flycc-opt %s --start-after=fly 2>&1 | filecheck %s --check-prefix=START
// RUN: not flycc-opt %s --start-after=fly --emit=isa --match-gemm 2>&1 | filecheck %s --check-prefix=PASSES
// RUN: not flycc-opt %s.absent 2>&1 | filecheck %s --check-prefix=ABSENT
// RUN: not flycc-opt %s -o %t.absent/out 2>&1 | filecheck %s --check-prefix=OUTPUT
// RUN: printf '\377' > %t.elf && not flycc-opt %t.elf 2>&1 | filecheck %s --check-prefix=BINARY
// RUN: not flycc-opt < %t.elf 2>&1 | filecheck %s --check-prefix=BINARY-STDIN
// RUN: flycc-opt --list-passes | filecheck %s --check-prefix=LIST

// STAGE: error: argument --emit: unknown stage 'ptx'; the stages are torch, flycc, fly, {{.*}}, rocdl, llvm, isa, hsaco
// START: error: argument --start-after: it and --emit must name stages of a kernel, from fly on
// PASSES: error: argument --start-after: passes run on graphs, not on kernels
// ABSENT: flycc-opt: {{.*}}options.mlir.absent: No such file or directory
// OUTPUT: flycc-opt: {{.*}}.absent/out: No such file or directory
// BINARY: flycc-opt: {{.*}}.elf: not UTF-8 text
// BINARY-STDIN: flycc-opt: <stdin>: not UTF-8 text
// LIST: match-gemm {{.*}}Raises matrix products to `flycc.gemm`
// LIST-NEXT: match-grouped-gemm {{.*}}Raises `torch._grouped_mm` {{.*}} to `flycc.grouped_gemm`, folding transposes.
// LIST-NEXT: match-scaled-gemm {{.*}}Raises `torch.nn.functional.scaled_mm` {{.*}} to `flycc.scaled_gemm`, folding transposes.
// LIST-NEXT: match-scaled-grouped-gemm Raises `torch.nn.functional.scaled_grouped_mm` to `flycc.scaled_grouped_gemm`, folding transposes.
// LIST-NEXT: fuse-epilogue {{.*}}Folds pointwise users into `flycc.gemm`
// LIST-NEXT: match-rms-norm {{.*}}Raises RMS norms over the last dimension to `flycc.rms_norm`
// LIST-NEXT: match-topk {{.*}}Raises `topk`, {{.*}}, to `flycc.topk`.
// LIST-NEXT: fuse-cast {{.*}}Folds casts of products to f32 that no op of another family took
// LIST-NEXT: flycc-dce {{.*}}Removes ops whose results nobody uses.
module {}

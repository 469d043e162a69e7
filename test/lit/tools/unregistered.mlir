// Unknown dialects are accepted where asked for, and from standard input.
// RUN: flycc-opt --allow-unregistered-dialect --match-gemm < %s | filecheck %s
// RUN: not flycc-opt < %s 2>&1 | filecheck %s --check-prefix=REFUSED
// CHECK: "mine.op"() : () -> ()
// REFUSED: <stdin>:6:{{[0-9]+}}: error: operation being parsed with an unregistered dialect
"mine.op"() : () -> ()

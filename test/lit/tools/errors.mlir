// An error in the input is told with file, line and column, also behind `// -----`, and is one line.
// RUN: not flycc-opt %s --split-input-file 2>&1 >/dev/null | filecheck %s
// CHECK: errors.mlir:8:{{[0-9]+}}: error: expected '->' in function type
// CHECK-NEXT: errors.mlir:15:{{[0-9]+}}: error: 'torch.aten.mm' op expected 2 operands, but found 1
// CHECK-NEXT: errors.mlir:22:{{[0-9]+}}: error: operation being parsed with an unregistered dialect
// CHECK-NOT: note
func.func @parse() {
  %0 = "torch.constant.none"() : () > !torch.none
  return
}

// -----

func.func @verify(%a: !torch.vtensor<[4,8],bf16>) {
  %0 = "torch.aten.mm"(%a) : (!torch.vtensor<[4,8],bf16>) -> !torch.vtensor<[4,8],bf16>
  return
}

// -----

func.func @unregistered() {
  "mine.op"() : () -> ()
  return
}

// -----

func.func @fine() {
  return
}

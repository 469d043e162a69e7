// What cannot be lowered says why, with the place where there is one.
// RUN: not flycc-opt %s --emit=isa 2>&1 | filecheck %s
// RUN: not flycc-opt %s --pass-pipeline=cse --emit=fly 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not flycc-opt %s --start-after=fly --emit=isa 2>&1 | filecheck %s --check-prefix=PARSE

// CHECK: errors.mlir:10:{{[0-9]+}}: error: m = 2147483648: {{.*}} takes 1 to
// NONE: errors.mlir:1:1: error: --emit=fly: no flycc op in the module needs a kernel
// PARSE: errors.mlir:9:{{[0-9]+}}: error: {{.*}}torch
func.func @too_many_rows(%a: !torch.vtensor<[2147483648,64],bf16>, %b: !torch.vtensor<[64,64],bf16>) -> !torch.vtensor<[2147483648,64],bf16> {
  %0 = torch.aten.mm %a, %b : !torch.vtensor<[2147483648,64],bf16>, !torch.vtensor<[64,64],bf16> -> !torch.vtensor<[2147483648,64],bf16>
  return %0 : !torch.vtensor<[2147483648,64],bf16>
}

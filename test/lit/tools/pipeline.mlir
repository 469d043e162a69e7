// A pipeline of our passes and MLIR's, nested and not, and the module after each of them.
// RUN: flycc-opt %s --pass-pipeline='builtin.module(match-gemm, func.func(cse)),flycc-dce,canonicalize{max-iterations=1}' --print-ir-after-all 2>&1 | filecheck %s

// CHECK: // IR after match-gemm
// CHECK: torch.aten.t %arg1
// CHECK: "flycc.gemm"(%arg0, %arg1)
// CHECK: "flycc.gemm"(%arg0, %arg1)
// CHECK: // IR after func.func(cse)
// CHECK: torch.aten.t %arg1
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1)
// CHECK-NEXT: return %[[Y]], %[[Y]]
// CHECK: // IR after flycc-dce
// CHECK: func.func
// CHECK-NEXT: "flycc.gemm"(%arg0, %arg1)
// CHECK-NEXT: return
// CHECK: // IR after canonicalize{max-iterations=1}
func.func @main(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>) {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %y = torch.aten.mm %a, %t : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %z = torch.aten.mm %a, %t : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y, %z : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>
}

// One kernel for all problems that can share it, each named once; several binaries do not fit in one file.
// RUN: flycc-opt %s --emit=fly | filecheck %s
// RUN: not flycc-opt %s --emit=hsaco -o %t 2>&1 | filecheck %s --check-prefix=HSACO

// CHECK: // gemm 4x64x64 bf16 NN align 16/16/16
// CHECK-NEXT: // gemm 16x64x64 bf16 NN align 16/16/16
// CHECK-NEXT: module
// CHECK: // -----
// CHECK-NEXT: // gemm 4x64x64 bf16 NN+bias align 16/16/16
// CHECK-NEXT: module
// CHECK-NOT: // -----
// HSACO: kernels.mlir:1:1: error: --emit=hsaco: a file holds one kernel, not 2
func.func @main(%a: !torch.vtensor<[4,64],bf16>, %c: !torch.vtensor<[16,64],bf16>, %b: !torch.vtensor<[64,64],bf16>, %bias: !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) {
  %one = torch.constant.int 1
  %0 = torch.aten.mm %a, %b : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[64,64],bf16> -> !torch.vtensor<[4,64],bf16>
  %1 = torch.aten.mm %0, %b : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[64,64],bf16> -> !torch.vtensor<[4,64],bf16>
  %2 = torch.aten.addmm %bias, %1, %b, %one, %one : !torch.vtensor<[64],bf16>, !torch.vtensor<[4,64],bf16>, !torch.vtensor<[64,64],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,64],bf16>
  %3 = torch.aten.mm %c, %b : !torch.vtensor<[16,64],bf16>, !torch.vtensor<[64,64],bf16> -> !torch.vtensor<[16,64],bf16>
  return %2, %3 : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>
}

// Round trip of flycc.scaled_grouped_gemm: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// CHECK-LABEL: func.func @rows
// CHECK: "flycc.scaled_grouped_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>}
func.func @rows(%a: !torch.vtensor<[4,64],f8E4M3FN>, %b: !torch.vtensor<[2,16,64],f8E4M3FN>, %sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>, %c: !torch.vtensor<[2,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %0 = "flycc.scaled_grouped_gemm"(%a, %b, %sa, %sb, %o, %c) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %0 : !torch.vtensor<[4,16],bf16>
}

// Sizes that are not known, formats that differ.
// CHECK-LABEL: func.func @dynamic
// CHECK: "flycc.scaled_grouped_gemm"
func.func @dynamic(%a: !torch.vtensor<[?,64],f8E4M3FN>, %b: !torch.vtensor<[?,?,32],f4E2M1FN>, %sa: !torch.vtensor<[?,2],f8E8M0FNU>, %sb: !torch.vtensor<[?,?,2],f8E8M0FNU>, %o: !torch.vtensor<[?],si32>) {
  %0 = "flycc.scaled_grouped_gemm"(%a, %b, %sa, %sb, %o) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[?,64],f8E4M3FN>, !torch.vtensor<[?,?,32],f4E2M1FN>, !torch.vtensor<[?,2],f8E8M0FNU>, !torch.vtensor<[?,?,2],f8E8M0FNU>, !torch.vtensor<[?],si32>) -> !torch.vtensor<[?,?],f32>
  return
}

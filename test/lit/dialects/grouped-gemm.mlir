// Round trip of flycc.grouped_gemm: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// Groups share out M, as experts share out tokens.
// CHECK-LABEL: func.func @ragged_m
// CHECK: "flycc.grouped_gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
func.func @ragged_m(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,16,8],bf16>, %o: !torch.vtensor<[2],si32>) {
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,16,8],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// CHECK-LABEL: func.func @ragged_n
// CHECK: "flycc.grouped_gemm"
// CHECK-SAME: -> !torch.vtensor<[4,16],f16>
func.func @ragged_n(%a: !torch.vtensor<[2,4,8],f16>, %b: !torch.vtensor<[8,16],f16>, %o: !torch.vtensor<[2],si32>) {
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[2,4,8],f16>, !torch.vtensor<[8,16],f16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],f16>
  return
}

// Groups share out K: gradients of weights.
// CHECK-LABEL: func.func @ragged_k
// CHECK: "flycc.grouped_gemm"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],bf16>
func.func @ragged_k(%a: !torch.vtensor<[8,4],bf16>, %b: !torch.vtensor<[8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "TN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[8,4],bf16>, !torch.vtensor<[8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// Without offsets: a batch.
// CHECK-LABEL: func.func @batch
// CHECK: "flycc.grouped_gemm"(%arg0, %arg1) {{.*}}array<i32: 1, 1, 0, 0>
func.func @batch(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) {
  %0 = "flycc.grouped_gemm"(%a, %b) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// Dynamic sizes.
// CHECK-LABEL: func.func @dynamic
// CHECK: "flycc.grouped_gemm"
func.func @dynamic(%a: !torch.vtensor<[?,?],bf16>, %b: !torch.vtensor<[?,8,16],bf16>, %o: !torch.vtensor<[?],si32>) {
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[?,?],bf16>, !torch.vtensor<[?,8,16],bf16>, !torch.vtensor<[?],si32>) -> !torch.vtensor<[?,16],bf16>
  return
}

// A bias: a row for each group.
// CHECK-LABEL: func.func @bias
// CHECK: "flycc.grouped_gemm"(%arg0, %arg1, %arg2, %arg3) {{.*}}array<i32: 1, 1, 1, 1>
func.func @bias(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>, %c: !torch.vtensor<[2,16],bf16>) {
  %0 = "flycc.grouped_gemm"(%a, %b, %o, %c) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

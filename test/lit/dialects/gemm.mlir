// Round trip of flycc.gemm: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// CHECK-LABEL: func.func @linear
// CHECK: "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[2,4,16],bf16>
func.func @linear(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %bias: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %0 = "flycc.gemm"(%x, %w, %bias) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[2,4,16],bf16>
  return %0 : !torch.vtensor<[2,4,16],bf16>
}

// The four layouts.
// CHECK-LABEL: func.func @layouts
// CHECK: layout = "NN"
// CHECK: layout = "NT"
// CHECK: layout = "TN"
// CHECK: layout = "TT"
func.func @layouts(%mk: !torch.vtensor<[4,8],f16>, %km: !torch.vtensor<[8,4],f16>, %kn: !torch.vtensor<[8,16],f16>, %nk: !torch.vtensor<[16,8],f16>) {
  %0 = "flycc.gemm"(%mk, %kn) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],f16>, !torch.vtensor<[8,16],f16>) -> !torch.vtensor<[4,16],f16>
  %1 = "flycc.gemm"(%mk, %nk) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],f16>, !torch.vtensor<[16,8],f16>) -> !torch.vtensor<[4,16],f16>
  %2 = "flycc.gemm"(%km, %kn) {layout = "TN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[8,4],f16>, !torch.vtensor<[8,16],f16>) -> !torch.vtensor<[4,16],f16>
  %3 = "flycc.gemm"(%km, %nk) {layout = "TT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[8,4],f16>, !torch.vtensor<[16,8],f16>) -> !torch.vtensor<[4,16],f16>
  return
}

// Batches broadcast, and so does the bias.
// CHECK-LABEL: func.func @broadcast
// CHECK: "flycc.gemm"(%arg0, %arg1, %arg2)
func.func @broadcast(%a: !torch.vtensor<[2,1,4,8],bf16>, %b: !torch.vtensor<[3,8,16],bf16>, %bias: !torch.vtensor<[3,1,16],bf16>) -> !torch.vtensor<[2,3,4,16],bf16> {
  %0 = "flycc.gemm"(%a, %b, %bias) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,1,4,8],bf16>, !torch.vtensor<[3,8,16],bf16>, !torch.vtensor<[3,1,16],bf16>) -> !torch.vtensor<[2,3,4,16],bf16>
  return %0 : !torch.vtensor<[2,3,4,16],bf16>
}

// Dynamic sizes are equal until they are known to differ; provenance and symbolic shapes ride along.
// CHECK-LABEL: func.func @dynamic
// CHECK-SAME: flycc.shape = ["s0", "8"]
// CHECK: flycc.consumed = ["linear", "t"], flycc.node = "linear", flycc.shape = ["s0", "s1"]
func.func @dynamic(%a: !torch.vtensor<[?,8],bf16> {flycc.shape = ["s0", "8"]}, %b: !torch.vtensor<[?,?],bf16>) -> !torch.vtensor<[?,?],bf16> {
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, flycc.node = "linear", flycc.consumed = ["linear", "t"], flycc.shape = ["s0", "s1"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[?,8],bf16>, !torch.vtensor<[?,?],bf16>) -> !torch.vtensor<[?,?],bf16>
  return %0 : !torch.vtensor<[?,?],bf16>
}

// Epilogues: a gate and a residual; a float32 result with what its activation is of.
// CHECK-LABEL: func.func @epilogues
// CHECK: "flycc.gemm"(%arg0, %arg1, %arg1, %arg2) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 1, 1>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK: %{{.*}}:2 = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "gelu_tanh", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, scale = 5.000000e-01 : f32}
func.func @epilogues(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %h: !torch.vtensor<[4,16],bf16>) {
  %0 = "flycc.gemm"(%a, %b, %b, %h) {layout = "NT", accumulate = f32, activation = "silu", operandSegmentSizes = array<i32: 1, 1, 0, 1, 1>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  %1:2 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, activation = "gelu_tanh", scale = 0.5 : f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],f32>)
  return
}

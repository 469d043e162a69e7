// Every message of the verifier of flycc.gemm, and of the constraints it is declared with.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// Attributes.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{layout must be one of NN, NT, TN, TT, got "NX"}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NX", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The layout is a string.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{expected base attribute 'builtin.string' but got 'builtin.integer'}}
  %0 = "flycc.gemm"(%a, %b) {layout = 1 : i64, accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// No layout.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{attribute "layout" is expected but not provided}}
  %0 = "flycc.gemm"(%a, %b) {accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// No accumulate type.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{attribute "accumulate" is expected but not provided}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The accumulate type.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{accumulate type must be f32, got bf16}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = bf16, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// No operand segments.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{operandSegmentSizes is missing; it must have 5 entries}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Operand segments that do not add up.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{operandSegmentSizes must be 1, 1, 0 or 1, 0 or 1, 0 or 1, 2 in all, got array<i32: 1, 1, 1, 0, 0>}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Operand segments of the wrong kind.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %bias: !torch.vtensor<[16],bf16>) {
  // expected-error @below {{operandSegmentSizes must be 1, 1, 0 or 1, 0 or 1, 0 or 1, 3 in all, got 1 : i64}}
  %0 = "flycc.gemm"(%a, %b, %bias) {layout = "NT", accumulate = f32, operandSegmentSizes = 1 : i64} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Operands that are no value tensors.
func.func @gemm(%a: !torch.tensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{a must be a value tensor of known rank and element type, got !torch.tensor<[4,8],bf16>}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.tensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Unknown rank.
func.func @gemm(%a: !torch.vtensor<*,bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{a must be a value tensor of known rank and element type, got !torch.vtensor<*,bf16>}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<*,bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Unknown element type.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %bias: !torch.vtensor<[16],unk>) {
  // expected-error @below {{bias must be a value tensor of known rank and element type, got !torch.vtensor<[16],unk>}}
  %0 = "flycc.gemm"(%a, %b, %bias) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],unk>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element type of a.
func.func @gemm(%a: !torch.vtensor<[4,8],f32>, %b: !torch.vtensor<[16,8],f32>) {
  // expected-error @below {{element type of a must be one of bf16, f16, got f32}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[16,8],f32>) -> !torch.vtensor<[4,16],f32>
  return
}

// -----

// Element type of b.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],f16>) {
  // expected-error @below {{element type of b must be that of a, bf16, got f16}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],f16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element type of the bias.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %bias: !torch.vtensor<[16],f32>) {
  // expected-error @below {{element type of bias must be that of a, bf16, got f32}}
  %0 = "flycc.gemm"(%a, %b, %bias) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element type of the result.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{element type of result must be that of a, bf16, or f32, got f16}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],f16>
  return
}

// -----

// Rank of a.
func.func @gemm(%a: !torch.vtensor<[8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{a must have rank 2 or more, got [8]}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[16],bf16>
  return
}

// -----

// Rank of b.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{b must have rank 2 or more, got [8]}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>) -> !torch.vtensor<[4],bf16>
  return
}

// -----

// K, here [N, K] read as [K, N].
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{K is 8 in a but 16 in b (layout NN)}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Batch dimensions.
func.func @gemm(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[3,16,8],bf16>) {
  // expected-error @below {{batch dimensions [2] of a and [3] of b: 2 and 3 do not broadcast}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[3,16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// -----

// Size of the result.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{result must be [4, 16], got [4, 17]}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,17],bf16>
  return
}

// -----

// Rank of the result, with a dynamic size.
func.func @gemm(%a: !torch.vtensor<[3,?,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{result must be [3, ?, 16], got [4, 16]}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[3,?,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Size of the bias.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %bias: !torch.vtensor<[4],bf16>) {
  // expected-error @below {{bias [4] does not broadcast to the result [4, 16]}}
  %0 = "flycc.gemm"(%a, %b, %bias) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[4],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Rank of the bias.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %bias: !torch.vtensor<[1,4,16],bf16>) {
  // expected-error @below {{bias [1, 4, 16] does not broadcast to the result [4, 16]}}
  %0 = "flycc.gemm"(%a, %b, %bias) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[1,4,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Too few operands.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>) {
  // expected-error @below {{sum of elements in 'operandSegmentSizes' attribute must be equal to the number of operands}}
  %0 = "flycc.gemm"(%a) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>) -> !torch.vtensor<[4,8],bf16>
  return
}

// -----

// A result that is no tensor at all.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>) {
  // expected-error @below {{result must be a value tensor of known rank and element type, got i32}}
  %0 = "flycc.gemm"(%a, %a) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>) -> i32
  return
}

// -----

// Two results.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>) {
  // expected-error @below {{resultSegmentSizes must be 1, 0 or 1, 2 in all, got array<i32: 1, 0>}}
  %0:2 = "flycc.gemm"(%a, %a) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>) -> (!torch.vtensor<[4,4],bf16>, !torch.vtensor<[4,4],bf16>)
  return
}

// -----

// An activation that there is none of.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{activation must be one of none, relu, gelu, gelu_tanh, silu, got "tanh"}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, activation = "tanh", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A scale of another type.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{scale must be an f32, got 2.000000e+00 : f64}}
  %0 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, scale = 2.0 : f64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A gate of another shape.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[15,8],bf16>) {
  // expected-error @below {{b2 must be [16, 8], got [15, 8]}}
  %0 = "flycc.gemm"(%a, %b, %c) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[15,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A gated product with a bias.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>) {
  // expected-error @below {{a gated product, one with b2, has no bias}}
  %0 = "flycc.gemm"(%a, %b, %c, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A gated product with a preactivation.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{a gated product, one with b2, has no preactivation}}
  %0:2 = "flycc.gemm"(%a, %b, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>)
  return
}

// -----

// A residual of another shape.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,15],bf16>) {
  // expected-error @below {{residual [4, 15] does not broadcast to the result [4, 16]}}
  %0 = "flycc.gemm"(%a, %b, %c) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[4,15],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A residual of another type.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],f32>) {
  // expected-error @below {{element type of residual must be that of a, bf16, got f32}}
  %0 = "flycc.gemm"(%a, %b, %c) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32>
  return
}

// -----

// A preactivation of another type than the result.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{element type of preactivation must be that of result, f32, got bf16}}
  %0:2 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],bf16>)
  return
}

// -----

// A preactivation of another shape.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) {
  // expected-error @below {{preactivation must be [4, 16], got [4, 17]}}
  %0:2 = "flycc.gemm"(%a, %b) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,17],bf16>)
  return
}

// -----

// Ops of the dialect that do not exist.
func.func @gemm(%a: !torch.vtensor<[4,8],bf16>) {
  // expected-error @below {{unregistered operation 'flycc.conv' found in dialect ('flycc') that does not allow unknown operations}}
  %0 = "flycc.conv"(%a) : (!torch.vtensor<[4,8],bf16>) -> !torch.vtensor<[4,8],bf16>
  return
}

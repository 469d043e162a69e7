// Every message of the verifier of flycc.grouped_gemm.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// The layout.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{layout must be one of NN, NT, TN, TT, got "N"}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "N", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The accumulate type.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{accumulate type must be f32, got bf16}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = bf16, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Operands that are not there.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{operandSegmentSizes must be 1, 1, 0 or 1, 0 or 1, 3 in all, got array<i32: 1, 1, 0, 0>}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Unknown rank.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<*,bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{b must be a value tensor of known rank and element type, got !torch.vtensor<*,bf16>}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<*,bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element type.
func.func @op(%a: !torch.vtensor<[4,8],f32>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{element type of a must be one of bf16, f16, got f32}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element types that differ.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],f16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{element type of b must be one of bf16, got f16}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],f16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element type of the result.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{element type of result must be one of bf16, got f32}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],f32>
  return
}

// -----

// Element type of the offsets.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si64>) {
  // expected-error @below {{element type of offsets must be one of si32, got si64}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Ranks.
func.func @op(%a: !torch.vtensor<[1,2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{a and b must have rank 2 or 3, got 4 and 3}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[1,2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Rank of the offsets.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2,1],si32>) {
  // expected-error @below {{offsets must be [?], got [2, 1]}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2,1],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// No offsets, which say where groups end.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) {
  // expected-error @below {{offsets must be given unless a and b both have rank 3, and only then}}
  %0 = "flycc.grouped_gemm"(%a, %b) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Offsets, and nothing to share out.
func.func @op(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{offsets must be given unless a and b both have rank 3, and only then}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// -----

// K, as the layout has it.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{K is 8 in a but 16 in b (layout NT)}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Groups of b and the offsets.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[3],si32>) {
  // expected-error @below {{b has 2 groups but offsets has 3}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[3],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Groups of a and b.
func.func @op(%a: !torch.vtensor<[3,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) {
  // expected-error @below {{a has 3 groups but b has 2}}
  %0 = "flycc.grouped_gemm"(%a, %b) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0>} : (!torch.vtensor<[3,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// -----

// The result of a ragged M.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{result must be [4, 16], got [2, 4, 16]}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// -----

// The result of a ragged K.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  // expected-error @below {{result must be [2, 4, 16], got [4, 16]}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The bias of groups that share out N.
func.func @op(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>, %o: !torch.vtensor<[2],si32>, %c: !torch.vtensor<[2,16],bf16>) {
  // expected-error @below {{there must be no bias where the groups share out N}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o, %c) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The shape of the bias.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>, %c: !torch.vtensor<[16],bf16>) {
  // expected-error @below {{bias must be [2, 16], got [16]}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o, %c) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The element type of the bias.
func.func @op(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>, %c: !torch.vtensor<[2,16],f32>) {
  // expected-error @below {{element type of bias must be one of bf16, got f32}}
  %0 = "flycc.grouped_gemm"(%a, %b, %o, %c) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],f32>) -> !torch.vtensor<[4,16],bf16>
  return
}

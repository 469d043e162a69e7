// Every message of the verifier of flycc.scaled_grouped_gemm.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// Element types.
func.func @grouped(%x0: !torch.vtensor<[4,64],bf16>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{element type of a must be one of f8E4M3FN, f8E5M2, f4E2M1FN, got bf16}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Ranks.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{b must have rank 3, got [16, 64]}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// K counts elements.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f4E2M1FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{K is 64 in a but 128 in b}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Scales are bytes.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f32>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{element type of scale_a must be one of f8E8M0FNU, got f32}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f32>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Scales are of blocks.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,1],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{scale_b must be [2, 16, 2], got [2, 16, 1]}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,1],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The type of offsets.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si64>) {
  // expected-error @below {{element type of offsets must be one of si32, got si64}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// An end for each group.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[3],si32>) {
  // expected-error @below {{offsets must be [2], got [3]}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[3],si32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The type of the result.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{element type of result must be one of bf16, f16, f32, got f64}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],f64>
  return
}

// -----

// The shape of the result.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>) {
  // expected-error @below {{result must be [4, 16], got [2, 4, 16]}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>) -> !torch.vtensor<[2,4,16],bf16>
  return
}

// -----

// The type of the bias.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>, %x5: !torch.vtensor<[2,16],f32>) {
  // expected-error @below {{element type of bias must be one of bf16, got f32}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4, %x5) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],f32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A row of the bias for each group.
func.func @grouped(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[2,16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[2,16,2],f8E8M0FNU>, %x4: !torch.vtensor<[2],si32>, %x5: !torch.vtensor<[16],bf16>) {
  // expected-error @below {{bias must be [2, 16], got [16]}}
  %r = "flycc.scaled_grouped_gemm"(%x0, %x1, %x2, %x3, %x4, %x5) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

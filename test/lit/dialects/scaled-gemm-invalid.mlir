// Every message of the verifier of flycc.scaled_gemm.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// No placement.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{attribute "placement" is expected but not provided}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A placement that there is not.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{placement must be one of element, product, one_sided, block, operand, hoisted, got "nowhere"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "nowhere", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The tree of a placement that is not the MFMA's.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{tree must be stated where placement is "product"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "product", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Hoisting needs a tree, too.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,1],f32>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{tree must be stated where placement is "hoisted"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "hoisted", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A tree that there is not.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{tree must be one of mfma, balanced, chain, any, got "bush"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "product", tree = "bush", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The MFMA has its own tree.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{tree must be "mfma" where placement is "operand", got "chain"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", tree = "chain", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Blocks of another size.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{k_block must be 32, got 16}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 16 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Rows are not scaled by the MFMA.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,1],f32>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{placement must not be "operand" where a scale is of rows}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Nothing to hoist.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{placement must not be "hoisted" where no scale is of rows}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "hoisted", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// What scaled elements are rounded to.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{operand_type must be given where placement is "element"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "element", tree = "any", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Nothing is rounded.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{operand_type must be absent where placement is "block"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "block", tree = "any", operand_type = bf16, k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// What nothing is rounded to.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{operand_type must be one of bf16, f16, f32, got f64}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "one_sided", tree = "any", operand_type = f64, k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// An activation that there is not.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{activation must be one of none, relu, gelu, gelu_tanh, silu, got "tanh"}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", activation = "tanh", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Operands.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{operandSegmentSizes must be 1, 1, 0 or 1, 0 or 1, 0 or 1, 0 or 1, 4 in all, got array<i32: 1, 1, 1, 0, 0, 0>}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Element types of operands.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],bf16>) {
  // expected-error @below {{element type of b must be one of f8E4M3FN, f8E5M2, f4E2M1FN, got bf16}}
  %r = "flycc.scaled_gemm"(%x0, %x1) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Ranks.
func.func @scaled(%x0: !torch.vtensor<[2,4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>) {
  // expected-error @below {{a must have rank 2, got [2, 4, 64]}}
  %r = "flycc.scaled_gemm"(%x0, %x1) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>} : (!torch.vtensor<[2,4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// K counts elements, two of e2m1 a byte.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f4E2M1FN>) {
  // expected-error @below {{K is 64 in a but 128 in b}}
  %r = "flycc.scaled_gemm"(%x0, %x1) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f4E2M1FN>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The type of the result.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{element type of result must be one of bf16, f16, f32, got f64}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],f64>
  return
}

// -----

// The shape of the result.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{result must be [4, 16], or that with rows in more dimensions, got [4, 8]}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,8],bf16>
  return
}

// -----

// The type of scales.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],bf16>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{element type of scale_a must be one of f8E8M0FNU, f32, got bf16}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],bf16>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Blocks of the wrong count.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,3],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>) {
  // expected-error @below {{scale_a must be [4, 2] or [4, 1] or [1, 1], got [4, 3]}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// Numbers in float32 are for rows.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f32>) {
  // expected-error @below {{scale_b must be [16, 1] or [1, 1], got [16, 2]}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// One column is of rows or of blocks, as K has it.
func.func @scaled(%x0: !torch.vtensor<[4,?],f8E4M3FN>, %x1: !torch.vtensor<[16,?],f8E4M3FN>, %x2: !torch.vtensor<[4,1],f8E8M0FNU>) {
  // expected-error @below {{scale_a must be [4, ?] with more than one column, for the K of a and b is not known, got [4, 1]}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>} : (!torch.vtensor<[4,?],f8E4M3FN>, !torch.vtensor<[16,?],f8E4M3FN>, !torch.vtensor<[4,1],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The type of the bias.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>, %x4: !torch.vtensor<[16],f32>) {
  // expected-error @below {{element type of bias must be one of bf16, got f32}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3, %x4) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The shape of the bias.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>, %x4: !torch.vtensor<[4],bf16>) {
  // expected-error @below {{bias must be [16], got [4]}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3, %x4) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.vtensor<[4],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The shape of the residual.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>, %x2: !torch.vtensor<[4,2],f8E8M0FNU>, %x3: !torch.vtensor<[16,2],f8E8M0FNU>, %x4: !torch.vtensor<[16],bf16>) {
  // expected-error @below {{residual must be [4, 16], got [16]}}
  %r = "flycc.scaled_gemm"(%x0, %x1, %x2, %x3, %x4) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// The shape of a result with rows in two dimensions.
func.func @scaled(%x0: !torch.vtensor<[4,64],f8E4M3FN>, %x1: !torch.vtensor<[16,64],f8E4M3FN>) {
  // expected-error @below {{result must be [4, 16], or that with rows in more dimensions, got [2, 3, 16]}}
  %r = "flycc.scaled_gemm"(%x0, %x1) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>) -> !torch.vtensor<[2,3,16],bf16>
  return
}

// Round trip of flycc.scaled_gemm: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// Both scales of blocks, formats mixed, two elements of e2m1 a byte, a bias.
// CHECK-LABEL: func.func @blocks
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4) {k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>, placement = "operand", tree = "mfma"}
func.func @blocks(%a: !torch.vtensor<[4,72],f8E4M3FN>, %b: !torch.vtensor<[16,36],f4E2M1FN>, %sa: !torch.vtensor<[4,3],f8E8M0FNU>, %sb: !torch.vtensor<[16,3],f8E8M0FNU>, %bias: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %0 = "flycc.scaled_gemm"(%a, %b, %sa, %sb, %bias) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>} : (!torch.vtensor<[4,72],f8E4M3FN>, !torch.vtensor<[16,36],f4E2M1FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[16,3],f8E8M0FNU>, !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %0 : !torch.vtensor<[4,16],bf16>
}

// The MFMA's own scales need no tree to be stated; without scales the elements are what they are.
// CHECK-LABEL: func.func @unscaled
// CHECK: placement = "operand"}
func.func @unscaled(%a: !torch.vtensor<[4,64],f8E5M2>, %b: !torch.vtensor<[16,64],f8E5M2>) {
  %0 = "flycc.scaled_gemm"(%a, %b) {placement = "operand", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>} : (!torch.vtensor<[4,64],f8E5M2>, !torch.vtensor<[16,64],f8E5M2>) -> !torch.vtensor<[4,16],f32>
  return
}

// One scale a row, and one for a tensor, behind the sums; an epilogue.
// CHECK-LABEL: func.func @rows
// CHECK: activation = "relu"
// CHECK-SAME: placement = "hoisted", tree = "mfma"
func.func @rows(%a: !torch.vtensor<[4,64],f8E4M3FN>, %b: !torch.vtensor<[16,64],f8E4M3FN>, %sa: !torch.vtensor<[4,1],f32>, %sb: !torch.vtensor<[1,1],f8E8M0FNU>, %h: !torch.vtensor<[4,16],f16>) {
  %0 = "flycc.scaled_gemm"(%a, %b, %sa, %sb, %h) {placement = "hoisted", tree = "mfma", k_block = 32 : i64, activation = "relu", operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.vtensor<[1,1],f8E8M0FNU>, !torch.vtensor<[4,16],f16>) -> !torch.vtensor<[4,16],f16>
  return
}

// As a graph writes it that dequantises: each element is scaled and rounded, then summed in any order.
// CHECK-LABEL: func.func @dequantised
// CHECK: operand_type = bf16, placement = "element", tree = "any"
func.func @dequantised(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) {
  %0 = "flycc.scaled_gemm"(%a, %b, %sa, %sb) {placement = "element", tree = "any", operand_type = bf16, k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return
}

// Sizes that are not known.
// CHECK-LABEL: func.func @dynamic
func.func @dynamic(%a: !torch.vtensor<[?,?],f8E4M3FN>, %b: !torch.vtensor<[?,?],f4E2M1FN>, %sa: !torch.vtensor<[?,?],f8E8M0FNU>, %sb: !torch.vtensor<[?,?],f8E8M0FNU>) {
  %0 = "flycc.scaled_gemm"(%a, %b, %sa, %sb) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[?,?],f8E4M3FN>, !torch.vtensor<[?,?],f4E2M1FN>, !torch.vtensor<[?,?],f8E8M0FNU>, !torch.vtensor<[?,?],f8E8M0FNU>) -> !torch.vtensor<[?,?],bf16>
  return
}

// Rows of the result in two dimensions.
// CHECK-LABEL: func.func @batch
// CHECK: -> !torch.vtensor<[2,?,16],bf16>
func.func @batch(%a: !torch.vtensor<[?,64],f8E4M3FN>, %b: !torch.vtensor<[16,64],f8E4M3FN>, %h: !torch.vtensor<[2,?,16],bf16>) {
  %0 = "flycc.scaled_gemm"(%a, %b, %h) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 1>} : (!torch.vtensor<[?,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[2,?,16],bf16>) -> !torch.vtensor<[2,?,16],bf16>
  return
}

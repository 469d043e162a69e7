// Every message of the verifiers of flycc.rms_norm and flycc.rms_norm_backward.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// No operand segments.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{operandSegmentSizes is missing; it must have 4 entries}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Operand segments that do not add up.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{operandSegmentSizes must be 1, 1, 0 or 1, 0 or 1, 3 in all, got array<i32: 1, 1, 1, 1>}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Result segments of the wrong kind.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{resultSegmentSizes must be 1, 0 or 1, 0 or 1, 1 in all, got 1 : i64}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = 1 : i64} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// A residual without the sum.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>, %r: !torch.vtensor<[4,8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{new_residual must be there if, and only if, residual is}}
  %0 = "flycc.rms_norm"(%x, %eps, %w, %r) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>, !torch.vtensor<[4,8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// eps.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float -1.000000e+00
  // expected-error @below {{eps must be finite in f32 and not negative, got -1.0}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Unknown rank.
func.func @op(%x: !torch.vtensor<*,bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{x must be a value tensor of known rank and element type, got !torch.vtensor<*,bf16>}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<*,bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Element type of x.
func.func @op(%x: !torch.vtensor<[4,8],f64>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{element type of x must be one of bf16, f16, f32, got f64}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],f64>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// No dimension.
func.func @op(%x: !torch.vtensor<[],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{x must have rank 1 or more, got []}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[],bf16>)
  return
}

// -----

// Element type of the residual.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>, %r: !torch.vtensor<[4,8],f32>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{element type of residual must be that of x, bf16, got f32}}
  %0:2 = "flycc.rms_norm"(%x, %eps, %w, %r) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>, !torch.vtensor<[4,8],f32>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Shape of the sum.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>, %r: !torch.vtensor<[4,8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{new_residual must be [4, 8], got [8]}}
  %0:2 = "flycc.rms_norm"(%x, %eps, %w, %r) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>, !torch.vtensor<[4,8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return
}

// -----

// Element type of y.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{element type of y must be one of bf16, f16, f32, got si64}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],si64>)
  return
}

// -----

// Shape of y.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{y must be [4, 8], got [4, 9]}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,9],bf16>)
  return
}

// -----

// Element type of the weight.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],f64>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{element type of weight must be one of bf16, f16, f32, got f64}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],f64>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Shape of the weight.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[4],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{weight must be [8], got [4]}}
  %0 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[4],bf16>) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// What only a weight gives a meaning.
func.func @op(%x: !torch.vtensor<[4,8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{weight_offset needs a weight}}
  %0 = "flycc.rms_norm"(%x, %eps) {weight_offset = true, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.float) -> (!torch.vtensor<[4,8],bf16>)
  return
}

// -----

// Element type of rstd.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{element type of rstd must be one of f32, got bf16}}
  %0:2 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],bf16>)
  return
}

// -----

// Shape of rstd.
func.func @op(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  // expected-error @below {{rstd must be [4], got [4, 1]}}
  %0:2 = "flycc.rms_norm"(%x, %eps, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.float, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,1],f32>)
  return
}

// -----

// A gradient of no weight.
func.func @op(%g: !torch.vtensor<[4,8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>) {
  // expected-error @below {{dweight must be there if, and only if, weight is}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return
}

// -----

// Element type of grad.
func.func @op(%g: !torch.vtensor<[4,8],si32>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{element type of grad must be one of bf16, f16, f32, got si32}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],si32>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return
}

// -----

// Shape of grad.
func.func @op(%g: !torch.vtensor<[8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{grad must be [4, 8], got [8]}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return
}

// -----

// Element type of dx.
func.func @op(%g: !torch.vtensor<[4,8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{element type of dx must be that of x, bf16, got f32}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],f32>, !torch.vtensor<[8],bf16>)
  return
}

// -----

// Shape of rstd, backward.
func.func @op(%g: !torch.vtensor<[4,8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[8],f32>, %w: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{rstd must be [4], got [8]}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],f32>, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return
}

// -----

// Element type of dweight.
func.func @op(%g: !torch.vtensor<[4,8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{element type of dweight must be that of weight, bf16, got f32}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],f32>)
  return
}

// -----

// Shape of dweight.
func.func @op(%g: !torch.vtensor<[4,8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[8],bf16>) {
  // expected-error @below {{dweight must be [8], got [9]}}
  %0:2 = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[9],bf16>)
  return
}

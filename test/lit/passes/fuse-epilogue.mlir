// Every form that fuse-epilogue folds.
// RUN: flycc-opt %s --fuse-epilogue --flycc-dce | filecheck %s

// relu.
// CHECK-LABEL: func.func @relu
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "relu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @relu(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.relu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// silu.
// CHECK-LABEL: func.func @silu
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @silu(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// gelu, approximate="none".
// CHECK-LABEL: func.func @gelu
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "gelu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @gelu(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.constant.str "none"
  %y = torch.aten.gelu %g, %s : !torch.vtensor<[4,16],bf16>, !torch.str -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// gelu, approximate="tanh".
// CHECK-LABEL: func.func @gelu_tanh
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "gelu_tanh", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @gelu_tanh(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.constant.str "tanh"
  %y = torch.aten.gelu %g, %s : !torch.vtensor<[4,16],bf16>, !torch.str -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A clamp at zero is a relu.
// CHECK-LABEL: func.func @clamp
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "relu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @clamp(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %zero = torch.constant.int 0
  %y = torch.aten.clamp_min %g, %zero : !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// x * sigmoid(x), either way around.
// CHECK-LABEL: func.func @written_silu
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @written_silu(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.sigmoid %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %g : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A row is a bias.
// CHECK-LABEL: func.func @row_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @row_bias(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %one = torch.constant.int 1
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// So is a column.
// CHECK-LABEL: func.func @column_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @column_bias(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,1],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %one = torch.constant.int 1
  %y = torch.aten.add.Tensor %c, %g, %one : !torch.vtensor<[4,1],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A whole matrix is a residual, either way around.
// CHECK-LABEL: func.func @residual
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @residual(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %one = torch.constant.int 1
  %y = torch.aten.add.Tensor %c, %g, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// In front of an activation it is what a bias is.
// CHECK-LABEL: func.func @added_first
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, activation = "relu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @added_first(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %one = torch.constant.int 1
  %h = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.relu %h : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Two addends.
// CHECK-LABEL: func.func @bias_and_residual
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2, %arg3) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0, 1>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @bias_and_residual(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>, %d: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %one = torch.constant.int 1
  %h = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %h, %d, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Constant factors, as the importer has them, make one scale.
// CHECK-LABEL: func.func @scale
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, scale = 1.250000e-01 : f32}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @scale(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %half = torch.constant.float 5.000000e-01
  %four = torch.constant.int 4
  %h = torch.operator "torch.aten.mul.Tensor"(%g, %half) : (!torch.vtensor<[4,16],bf16>, !torch.float) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.div.Scalar %h, %four : !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The alpha of an addition scales what is added: the product.
// CHECK-LABEL: func.func @alpha
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, scale = 5.000000e-01 : f32}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @alpha(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %half = torch.constant.float 5.000000e-01
  %y = torch.aten.add.Tensor %c, %g, %half : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.float -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// SwiGLU.
// CHECK-LABEL: func.func @gated
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @gated(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The activated half may stand on the right.
// CHECK-LABEL: func.func @gated_swapped
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @gated_swapped(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %u, %s : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Or be computed last.
// CHECK-LABEL: func.func @second_half_first
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @second_half_first(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %u, %s : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// No activation at all.
// CHECK-LABEL: func.func @bilinear
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @bilinear(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %g, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A residual behind a gate, both halves scaled.
// CHECK-LABEL: func.func @gated_residual
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2, %arg3) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 1, 1>, resultSegmentSizes = array<i32: 1, 0>, scale = 5.000000e-01 : f32}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @gated_residual(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %half = torch.constant.float 5.000000e-01
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.operator "torch.aten.mul.Tensor"(%g, %half) : (!torch.vtensor<[4,16],bf16>, !torch.float) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %h : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %t = torch.operator "torch.aten.mul.Tensor"(%u, %half) : (!torch.vtensor<[4,16],bf16>, !torch.float) -> !torch.vtensor<[4,16],bf16>
  %m = torch.aten.mul.Tensor %s, %t : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %m, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An activation between two casts.
// CHECK-LABEL: func.func @cast_and_back
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "silu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @cast_and_back(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %dh = torch.constant.int 6
  %h = torch.aten._to_copy %g, %dh, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f32>
  %s = torch.aten.silu %h : !torch.vtensor<[4,16],f32> -> !torch.vtensor<[4,16],f32>
  %dy = torch.constant.int 15
  %y = torch.aten._to_copy %s, %dy, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Copies and views that change no size are looked through.
// CHECK-LABEL: func.func @copies
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "relu", layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @copies(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.aten.detach %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %i = torch.aten.alias %h : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.relu %i : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A training graph: the backward pass needs what the activation is of.
// CHECK-LABEL: func.func @preactivation
// CHECK-NEXT: %[[Y:.*]]:2 = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, activation = "silu", flycc.consumed = ["silu", "mm"], flycc.fused = ["silu"], flycc.results = {{\[}}["silu"], ["mm"]], flycc.shapes = {{\[}}["4", "16"], ["4", "16"]], layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>}
// CHECK-NEXT: return %[[Y]]#0, %[[Y]]#1
func.func @preactivation(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>) {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, flycc.consumed = ["mm"], flycc.node = "mm", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.silu %g {flycc.node = "silu", flycc.shape = ["4", "16"]} : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y, %g : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>
}

// With a bias before it and a residual behind.
// CHECK-LABEL: func.func @preactivation_between
// CHECK-NEXT: %[[Y:.*]]:2 = "flycc.gemm"(%arg0, %arg1, %arg2, %arg3) {accumulate = f32, activation = "relu", flycc.consumed = ["add_1", "relu", "add", "mm"], flycc.fused = ["add_1", "relu", "add"], flycc.results = {{\[}}["add_1"], ["add"]], flycc.shapes = {{\[}}["4", "16"], ["4", "16"]],
// CHECK-NEXT: return %[[Y]]#0, %[[Y]]#1
func.func @preactivation_between(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>, %d: !torch.vtensor<[4,16],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>) {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, flycc.consumed = ["mm"], flycc.node = "mm", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.aten.add.Tensor %g, %c, %one {flycc.node = "add", flycc.shape = ["4", "16"]} : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.relu %h {flycc.node = "relu", flycc.shape = ["4", "16"]} : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %s, %d, %one {flycc.node = "add_1", flycc.shape = ["4", "16"]} : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y, %h : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>
}

// Batches: an addend that has all of them, and a row.
// CHECK-LABEL: func.func @batches
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2, %arg3) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0, 1>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[2,4,16],bf16>
// CHECK-NEXT: return %[[Y]]
func.func @batches(%a: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[2,4,16],bf16>, %d: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16>
  %h = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[2,4,16],bf16>, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  %y = torch.aten.add.Tensor %h, %d, %one : !torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// What fuse-epilogue leaves alone, and why. The products are the same with and without it.
// RUN: flycc-opt %s --fuse-epilogue --flycc-dce | filecheck %s

// The product is used by others too, so it is stored anyway.
// CHECK-LABEL: func.func @uses
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: 2 ops use the product, so it is stored anyway", flycc.reason_code = "epilogue.uses"
func.func @uses(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>) {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y, %g : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>
}

// Two activations of one product.
// CHECK-LABEL: func.func @two_activations
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.relu{{.*}}flycc.reason = "relu: 2 ops use the product, so it is stored anyway", flycc.reason_code = "epilogue.uses"
// CHECK: torch.aten.silu{{.*}}flycc.reason_code = "epilogue.uses"
func.func @two_activations(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>) {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %x = torch.aten.relu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %x, %y : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>
}

// A product that is added to itself.
// CHECK-LABEL: func.func @doubled
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten.add.Tensor
func.func @doubled(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %g, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An addend in f32.
// CHECK-LABEL: func.func @another_type
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: adds f32 and gives f32; the operands are bf16, and addends must be, too", flycc.reason_code = "epilogue.dtype"
func.func @another_type(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],f32>, !torch.int -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// A sum that is larger than the product.
// CHECK-LABEL: func.func @wider_sum
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: [2, 4, 16] is added to [4, 16]; batches must all be added to, or all alike", flycc.reason_code = "epilogue.broadcast"
func.func @wider_sum(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[2,4,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[2,4,16],bf16>, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// Some of the batches have an addend of their own.
// CHECK-LABEL: func.func @mask
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: [2, 1, 4, 16] is added to [2, 3, 4, 16]; batches must all be added to, or all alike", flycc.reason_code = "epilogue.broadcast"
func.func @mask(%a: !torch.vtensor<[2,3,4,8],bf16>, %w: !torch.vtensor<[2,3,8,16],bf16>, %c: !torch.vtensor<[2,1,4,16],bf16>) -> !torch.vtensor<[2,3,4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,3,4,8],bf16>, !torch.vtensor<[2,3,8,16],bf16>) -> !torch.vtensor<[2,3,4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[2,3,4,16],bf16>, !torch.vtensor<[2,1,4,16],bf16>, !torch.int -> !torch.vtensor<[2,3,4,16],bf16>
  return %y : !torch.vtensor<[2,3,4,16],bf16>
}

// With one B for all, batches are rows too.
// CHECK-LABEL: func.func @rows_are_batches
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: [4, 16] is added to [2, 4, 16]; batches must all be added to, or all alike", flycc.reason_code = "epilogue.broadcast"
func.func @rows_are_batches(%a: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// A tensor without dimensions, which may be on another device.
// CHECK-LABEL: func.func @scalar_tensor
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten.add.Tensor
func.func @scalar_tensor(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An addend of a size that nothing proves equal.
// CHECK-LABEL: func.func @unknown_size
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: [?, 16] is added to [4, 16]; batches must all be added to, or all alike", flycc.reason_code = "epilogue.broadcast"
func.func @unknown_size(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[?,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[?,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A factor behind a bias.
// CHECK-LABEL: func.func @scaled_sum
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.operator{{.*}}flycc.reason = "mul.Tensor: only sums themselves are scaled, and these have a bias", flycc.reason_code = "epilogue.order"
func.func @scaled_sum(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %half = torch.constant.float 5.000000e-01
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.operator "torch.aten.mul.Tensor"(%h, %half) : (!torch.vtensor<[4,16],bf16>, !torch.float) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The alpha of an addend.
// CHECK-LABEL: func.func @scaled_addend
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: alpha scales the addend; only products are scaled", flycc.reason_code = "epilogue.order"
func.func @scaled_addend(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %half = torch.constant.float 5.000000e-01
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %g, %c, %half : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.float -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A factor that float32 does not hold.
// CHECK-LABEL: func.func @huge_scale
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.operator{{.*}}flycc.reason = "mul.Tensor: a factor of 1e+300 is no normal float32 number", flycc.reason_code = "epilogue.scale"
func.func @huge_scale(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %huge = torch.constant.float 1.000000e+300
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.operator "torch.aten.mul.Tensor"(%g, %huge) : (!torch.vtensor<[4,16],bf16>, !torch.float) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A factor that is a tensor.
// CHECK-LABEL: func.func @tensor_factor
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten.mul.Tensor
func.func @tensor_factor(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %g, %c : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A third addend.
// CHECK-LABEL: func.func @third_addend
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: a bias and a residual are all that is added to a product", flycc.reason_code = "epilogue.order"
func.func @third_addend(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>, %d: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %i = torch.aten.add.Tensor %h, %d, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %i, %d, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An activation behind two addends.
// CHECK-LABEL: func.func @late_activation
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK: torch.aten.relu{{.*}}flycc.reason = "relu: two addends come before it; one is accepted there", flycc.reason_code = "epilogue.order"
func.func @late_activation(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>, %d: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.aten.add.Tensor %g, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %i = torch.aten.add.Tensor %h, %d, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.relu %i : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A second activation.
// CHECK-LABEL: func.func @second_activation
// CHECK: activation = "silu"
// CHECK: torch.aten.relu{{.*}}flycc.reason = "relu: the product has an activation already", flycc.reason_code = "epilogue.order"
func.func @second_activation(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.relu %h : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An activation that kernels do not have.
// CHECK-LABEL: func.func @unknown_gelu
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten.tanh
func.func @unknown_gelu(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.tanh %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A clamp elsewhere.
// CHECK-LABEL: func.func @clamp_at_one
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten.clamp_min
func.func @clamp_at_one(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %one = torch.constant.int 1
  %y = torch.aten.clamp_min %g, %one : !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A gate of another input.
// CHECK-LABEL: func.func @other_input
// CHECK: torch.aten.mul.Tensor{{.*}}flycc.reason = "mul.Tensor: the products have different left operands", flycc.reason_code = "epilogue.gate"
func.func @other_input(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>, %b: !torch.vtensor<[4,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%b, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A gate of another layout.
// CHECK-LABEL: func.func @other_layout
// CHECK: torch.aten.mul.Tensor{{.*}}flycc.reason = "mul.Tensor: the right operands, bf16[16, 8] and bf16[8, 16], are not of one shape and layout", flycc.reason_code = "epilogue.gate"
func.func @other_layout(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A gate with a bias.
// CHECK-LABEL: func.func @biased_gate
// CHECK: torch.aten.mul.Tensor{{.*}}flycc.reason = "mul.Tensor: a product has a bias already", flycc.reason_code = "epilogue.gate"
func.func @biased_gate(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>, %c: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %t = torch.aten.add.Tensor %u, %c, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %t : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A gate that others use.
// CHECK-LABEL: func.func @kept_gate
// CHECK: torch.aten.mul.Tensor{{.*}}flycc.reason = "mul.Tensor: other ops use one of the products too, so it is stored anyway", flycc.reason_code = "epilogue.gate"
func.func @kept_gate(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>) {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>
}

// Both halves activated.
// CHECK-LABEL: func.func @both_activated
// CHECK: torch.aten.mul.Tensor{{.*}}flycc.reason = "mul.Tensor: both products have an activation", flycc.reason_code = "epilogue.gate"
func.func @both_activated(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %t = torch.aten.relu %u : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %t : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// One half scaled.
// CHECK-LABEL: func.func @scaled_half
// CHECK: torch.aten.mul.Tensor{{.*}}flycc.reason = "mul.Tensor: the products are scaled by 0.5 and 1.0, not by one factor", flycc.reason_code = "epilogue.gate"
func.func @scaled_half(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>, %v: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %half = torch.constant.float 5.000000e-01
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %h = torch.operator "torch.aten.mul.Tensor"(%g, %half) : (!torch.vtensor<[4,16],bf16>, !torch.float) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %h : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %u = "flycc.gemm"(%a, %v) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %s, %u : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A cast to another 16-bit type.
// CHECK-LABEL: func.func @cast_to_f16
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten._to_copy
func.func @cast_to_f16(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],f16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %dy = torch.constant.int 5
  %y = torch.aten._to_copy %g, %dy, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f16>
  return %y : !torch.vtensor<[4,16],f16>
}

// A residual that is computed behind a product whose preactivation is needed before that.
// CHECK-LABEL: func.func @late_residual
// CHECK: activation = "silu"
// CHECK: torch.aten.add.Tensor{{.*}}flycc.reason = "add.Tensor: what it adds is computed after the product, whose preactivation other ops need first", flycc.reason_code = "epilogue.order"
func.func @late_residual(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.silu %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %t = torch.aten.tanh %g : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %s, %t, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// What the frontend says no kernel serves.
// CHECK-LABEL: func.func @kept_apart
// CHECK: "flycc.gemm"({{[^)]*}}) {accumulate = f32, layout
// CHECK-NOT: flycc.reason
// CHECK: torch.aten.silu
func.func @kept_apart(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.silu %g {flycc.unfused} : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Casts to f32 are folded when no other family took them: fuse-epilogue leaves those that nothing foldable follows.
// RUN: flycc-opt %s --fuse-epilogue --fuse-cast --flycc-dce | filecheck %s
// RUN: flycc-opt %s --fuse-epilogue --flycc-dce | filecheck %s --check-prefix=LEFT

// The rounding before it is dropped.
// CHECK-LABEL: func.func @cast
// LEFT-LABEL: func.func @cast
// LEFT: "flycc.gemm"
// LEFT: torch.aten._to_copy
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}
// CHECK-SAME: -> !torch.vtensor<[4,16],f32>
// CHECK-NEXT: return %[[Y]]
func.func @cast(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],f32> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %dy = torch.constant.int 6
  %y = torch.aten._to_copy %g, %dy, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// A written norm begins with a cast, and reads 16 bits.
// CHECK-LABEL: func.func @sum_of_squares
// CHECK: "flycc.gemm"({{.*}}vtensor<[4,16],f32>
// CHECK-NOT: torch.aten._to_copy
// LEFT-LABEL: func.func @sum_of_squares
// LEFT: torch.aten._to_copy
func.func @sum_of_squares(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],f32>) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %g = "flycc.gemm"(%a, %w) {layout = "NT", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16>
  %f32 = torch.constant.int 6
  %x = torch.aten._to_copy %g, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f32>
  %y = torch.aten.mul.Tensor %x, %x : !torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],f32> -> !torch.vtensor<[4,16],f32>
  return %x, %y : !torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],f32>
}

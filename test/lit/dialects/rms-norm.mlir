// Round trip of flycc.rms_norm and its backward: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// CHECK-LABEL: func.func @all
// CHECK: "flycc.rms_norm"(%arg0, %float{{.*}}, %arg1, %arg2) {cast_before_weight = true, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1>, weight_offset = false}
func.func @all(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[8],f32>, %r: !torch.vtensor<[2,4,8],bf16>) {
  %eps = torch.constant.float 1.000000e-06
  %y, %h, %s = "flycc.rms_norm"(%x, %eps, %w, %r) {weight_offset = false, cast_before_weight = true, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1>} : (!torch.vtensor<[2,4,8],bf16>, !torch.float, !torch.vtensor<[8],f32>, !torch.vtensor<[2,4,8],bf16>) -> (!torch.vtensor<[2,4,8],f32>, !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,4],f32>)
  return
}

// Nothing but x, of one dimension; eps at run time.
// CHECK-LABEL: func.func @least
// CHECK: "flycc.rms_norm"(%arg0, %arg1)
func.func @least(%x: !torch.vtensor<[?],f16>, %eps: !torch.float) {
  %y = "flycc.rms_norm"(%x, %eps) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[?],f16>, !torch.float) -> !torch.vtensor<[?],f16>
  return
}

// CHECK-LABEL: func.func @backward
// CHECK: "flycc.rms_norm_backward"(%arg0, %arg1, %arg2, %arg3)
// CHECK: "flycc.rms_norm_backward"(%arg0, %arg1, %arg2)
func.func @backward(%g: !torch.vtensor<[4,8],bf16>, %x: !torch.vtensor<[4,8],bf16>, %s: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[8],f32>) {
  %dx, %dw = "flycc.rms_norm_backward"(%g, %x, %s, %w) {weight_offset = true, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[8],f32>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],f32>)
  %d = "flycc.rms_norm_backward"(%g, %x, %s) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4,8],bf16>
  return
}

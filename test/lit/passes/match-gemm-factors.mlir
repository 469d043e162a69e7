// Constant factors become scales, beta 0 drops the bias, and out_dtype is the result's type.
// RUN: flycc-opt %s --match-gemm --flycc-dce | filecheck %s

// The bias is added after the sums are scaled.
// CHECK-LABEL: func.func @alpha
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NN", operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, scale = 5.000000e-01 : f32}
// CHECK-NEXT: return %[[Y]]
func.func @alpha(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %one = torch.constant.int 1
  %half = torch.constant.float 0.5
  %y = torch.aten.addmm %bias, %a, %b, %one, %half : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.float -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// With beta 0 whatever is in the bias, of whatever type, is not read.
// CHECK-LABEL: func.func @no_beta
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2) {accumulate = f32, layout = "NN", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, scale = -3.000000e+00 : f32}
// CHECK-NEXT: return %[[Y]]
func.func @no_beta(%bias: !torch.vtensor<[2,4,16],f32>, %a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %zero = torch.constant.float 0.0
  %alpha = torch.constant.int -3
  %y = torch.aten.baddbmm %bias, %a, %b, %zero, %alpha : !torch.vtensor<[2,4,16],f32>, !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.float, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// Then a vector that is added later is the bias.
// CHECK-LABEL: func.func @later_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {{.*}}scale = 2.000000e+00 : f32}
// CHECK-NEXT: return %[[Y]]
func.func @later_bias(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %p = torch.aten.addmm %bias, %a, %b, %zero, %two : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %p, %bias, %one : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Unstamped, the op that is looked through stays.
// CHECK-LABEL: func.func @mm_dtype
// CHECK: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],f32>
// CHECK-NEXT: return %[[Y]]
func.func @mm_dtype(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],f32> {
  %f32 = torch.constant.int 6
  %two = torch.constant.int 2
  %four = torch.constant.int 4
  %eight = torch.constant.int 8
  %n = torch.constant.int 16
  %rows = torch.prim.ListConstruct %eight, %eight : (!torch.int, !torch.int) -> !torch.list<int>
  %batches = torch.prim.ListConstruct %two, %four, %n : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wt = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %x2 = torch.aten.view %x, %rows : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %p = torch.operator "torch.aten.mm.dtype"(%x2, %wt, %f32) : (!torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int) -> !torch.vtensor<[8,16],f32>
  %y = torch.aten.view %p, %batches : !torch.vtensor<[8,16],f32>, !torch.list<int> -> !torch.vtensor<[2,4,16],f32>
  return %y : !torch.vtensor<[2,4,16],f32>
}

// A vector of f32 is no bias.
// CHECK-LABEL: func.func @wide_addend
// CHECK-NEXT: torch.constant.int 1
// CHECK-NEXT: %[[P:.*]] = "flycc.gemm"(%arg0, %arg1) {{.*}} -> !torch.vtensor<[4,16],f32>
// CHECK-NEXT: torch.aten.add.Tensor %[[P]]
func.func @wide_addend(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>, %c: !torch.vtensor<[16],f32>) -> !torch.vtensor<[4,16],f32> {
  %f32 = torch.constant.int 6
  %one = torch.constant.int 1
  %p = torch.operator "torch.aten.mm.dtype"(%a, %b, %f32) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int) -> !torch.vtensor<[4,16],f32>
  %y = torch.aten.add.Tensor %p, %c, %one : !torch.vtensor<[4,16],f32>, !torch.vtensor<[16],f32>, !torch.int -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @addmm_dtype
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {{.*}}scale = 5.000000e-01 : f32} : {{.*}} -> !torch.vtensor<[4,16],f32>
// CHECK-NEXT: return %[[Y]]
func.func @addmm_dtype(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],f32> {
  %one = torch.constant.int 1
  %half = torch.constant.float 0.5
  %f32 = torch.constant.int 6
  %y = torch.operator "torch.aten.addmm.dtype"(%bias, %a, %b, %f32, %one, %half) : (!torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int, !torch.float) -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @bmm_dtype
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NN", {{.*}} -> !torch.vtensor<[2,4,16],f32>
// CHECK-NEXT: return %[[Y]]
func.func @bmm_dtype(%a: !torch.vtensor<[2,4,8],f16>, %b: !torch.vtensor<[2,8,16],f16>) -> !torch.vtensor<[2,4,16],f32> {
  %f32 = torch.constant.int 6
  %y = torch.operator "torch.aten.bmm.dtype"(%a, %b, %f32) : (!torch.vtensor<[2,4,8],f16>, !torch.vtensor<[2,8,16],f16>, !torch.int) -> !torch.vtensor<[2,4,16],f32>
  return %y : !torch.vtensor<[2,4,16],f32>
}

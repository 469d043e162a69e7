// With "relaxed", products are raised that no guard could be given, and none gets one.
// RUN: flycc-opt %s --place-scales | filecheck %s

module attributes {flycc.scale_placement = "relaxed"} {

// Elements of fp8 times scales spread by a view, in bf16.
// CHECK-LABEL: func.func @dequantized
// CHECK: "flycc.versioned"() ({
// CHECK-NEXT: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3)
// CHECK: }, {
// CHECK: "flycc.gemm"
// CHECK: flycc.placement = "operand (from element, tree any), relaxed: no proof of equal bits"
func.func @dequantized(%a: !torch.vtensor<[4,64],f8E4M3FN>, %b: !torch.vtensor<[16,64],f8E4M3FN>, %sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %c4 = torch.constant.int 4
  %c2 = torch.constant.int 2
  %c32 = torch.constant.int 32
  %c64 = torch.constant.int 64
  %blocks = torch.prim.ListConstruct %c4, %c2, %c32 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %whole = torch.prim.ListConstruct %c4, %c64 : (!torch.int, !torch.int) -> !torch.list<int>
  %wa = torch.aten._to_copy %a, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,64],f8E4M3FN>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,64],bf16>
  %va = torch.aten.view %wa, %blocks : !torch.vtensor<[4,64],bf16>, !torch.list<int> -> !torch.vtensor<[4,2,32],bf16>
  %wsa = torch.aten._to_copy %sa, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,2],bf16>
  %vsa = torch.aten.unsqueeze %wsa, %c2 : !torch.vtensor<[4,2],bf16>, !torch.int -> !torch.vtensor<[4,2,1],bf16>
  %ma = torch.aten.mul.Tensor %va, %vsa : !torch.vtensor<[4,2,32],bf16>, !torch.vtensor<[4,2,1],bf16> -> !torch.vtensor<[4,2,32],bf16>
  %da = torch.aten.view %ma, %whole : !torch.vtensor<[4,2,32],bf16>, !torch.list<int> -> !torch.vtensor<[4,64],bf16>
  %db = torch.operator "torch.flycc.mx_dequantize"(%b, %sb, %bf16) : (!torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[16,64],bf16>
  %y = "flycc.gemm"(%da, %db) {layout = "NT", accumulate = f32, flycc.node = "mm", flycc.consumed = ["mm"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @rows
// CHECK-NOT: flycc.versioned
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3)
// CHECK-SAME: flycc.placement = "hoisted (tree mfma), relaxed: no proof of equal bits"
func.func @rows(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %rows: !torch.vtensor<[4,1],f8E8M0FNU>, %columns: !torch.vtensor<[16,1],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %c4 = torch.constant.int 4
  %c2 = torch.constant.int 2
  %false = torch.constant.bool false
  %sizes = torch.prim.ListConstruct %c4, %c2 : (!torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.aten.expand %rows, %sizes, %false {flycc.node = "expand"} : !torch.vtensor<[4,1],f8E8M0FNU>, !torch.list<int>, !torch.bool -> !torch.vtensor<[4,2],f8E8M0FNU>
  %c16 = torch.constant.int 16
  %sizes_b = torch.prim.ListConstruct %c16, %c2 : (!torch.int, !torch.int) -> !torch.list<int>
  %sb = torch.aten.expand %columns, %sizes_b, %false {flycc.node = "expand_b"} : !torch.vtensor<[16,1],f8E8M0FNU>, !torch.list<int>, !torch.bool -> !torch.vtensor<[16,2],f8E8M0FNU>
  %y = "flycc.scaled_gemm"(%a, %b, %wide, %sb) {placement = "operand", tree = "mfma", k_block = 32 : i64, flycc.node = "scaled", flycc.consumed = ["scaled"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}
}

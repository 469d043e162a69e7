// Every form that match-gemm raises.
// RUN: flycc-opt %s --match-gemm --flycc-dce | filecheck %s

// mm, and the four layouts that a transpose of either operand gives.
// CHECK-LABEL: func.func @mm
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @mm(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// t on the right.
// CHECK-LABEL: func.func @mm_nt
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @mm_nt(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %t = torch.aten.t %b : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %y = torch.aten.mm %a, %t : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// transpose.int on the left, with negative dimensions.
// CHECK-LABEL: func.func @mm_tn
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "TN"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @mm_tn(%a: !torch.vtensor<[8,4],f16>, %b: !torch.vtensor<[8,16],f16>) -> !torch.vtensor<[4,16],f16> {
  %c0 = torch.constant.int -1
  %c1 = torch.constant.int -2
  %t = torch.aten.transpose.int %a, %c0, %c1 : !torch.vtensor<[8,4],f16>, !torch.int, !torch.int -> !torch.vtensor<[4,8],f16>
  %y = torch.aten.mm %t, %b : !torch.vtensor<[4,8],f16>, !torch.vtensor<[8,16],f16> -> !torch.vtensor<[4,16],f16>
  return %y : !torch.vtensor<[4,16],f16>
}

// permute on the left, t on the right.
// CHECK-LABEL: func.func @mm_tt
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "TT"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @mm_tt(%a: !torch.vtensor<[8,4],bf16>, %b: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 1
  %c1 = torch.constant.int 0
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %s = torch.aten.permute %a, %l2 : !torch.vtensor<[8,4],bf16>, !torch.list<int> -> !torch.vtensor<[4,8],bf16>
  %t = torch.aten.t %b : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %y = torch.aten.mm %s, %t : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Two transposes cancel.
// CHECK-LABEL: func.func @mm_twice_transposed
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @mm_twice_transposed(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %t = torch.aten.t %b : !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[16,8],bf16>
  %u = torch.aten.t %t : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %y = torch.aten.mm %a, %u : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// addmm with a row of bias: F.linear on a matrix.
// CHECK-LABEL: func.func @addmm
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @addmm(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %c0 = torch.constant.int 1
  %y = torch.aten.addmm %bias, %a, %t, %c0, %c0 : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// addmm with a whole matrix to add, and factors given as floats.
// CHECK-LABEL: func.func @addmm_matrix
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @addmm_matrix(%bias: !torch.vtensor<[4,16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.float 1.0
  %y = torch.aten.addmm %bias, %a, %b, %c0, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.float, !torch.float -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// bmm.
// CHECK-LABEL: func.func @bmm
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @bmm(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 0
  %c1 = torch.constant.int 2
  %c2 = torch.constant.int 1
  %l3 = torch.prim.ListConstruct %c0, %c1, %c2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %b, %l3 : !torch.vtensor<[2,16,8],bf16>, !torch.list<int> -> !torch.vtensor<[2,8,16],bf16>
  %y = torch.aten.bmm %a, %t : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// An operand that is expanded over the batch broadcasts instead.
// CHECK-LABEL: func.func @bmm_expanded
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @bmm_expanded(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 2
  %c1 = torch.constant.int 8
  %c2 = torch.constant.int 16
  %l3 = torch.prim.ListConstruct %c0, %c1, %c2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c4 = torch.constant.bool false
  %e = torch.aten.expand %b, %l3, %c4 : !torch.vtensor<[8,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,8,16],bf16>
  %y = torch.aten.bmm %a, %e : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// baddbmm.
// CHECK-LABEL: func.func @baddbmm
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @baddbmm(%bias: !torch.vtensor<[2,1,16],bf16>, %a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 1
  %y = torch.aten.baddbmm %bias, %a, %b, %c0, %c0 : !torch.vtensor<[2,1,16],bf16>, !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// F.linear on three dimensions: rows and batches are flattened and unflattened again.
// CHECK-LABEL: func.func @linear_3d
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @linear_3d(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 8
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l2 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[8,16],bf16>
  %c3 = torch.constant.int 2
  %c4 = torch.constant.int 4
  %c5 = torch.constant.int 16
  %l6 = torch.prim.ListConstruct %c3, %c4, %c5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten._unsafe_view %m, %l6 : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// The same with a bias, as addmm.
// CHECK-LABEL: func.func @linear_3d_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @linear_3d_bias(%bias: !torch.vtensor<[16],bf16>, %x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 8
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l2 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %c3 = torch.constant.int 1
  %m = torch.aten.addmm %bias, %v, %t, %c3, %c3 : !torch.vtensor<[16],bf16>, !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[8,16],bf16>
  %c4 = torch.constant.int 2
  %c5 = torch.constant.int 4
  %c6 = torch.constant.int 16
  %l7 = torch.prim.ListConstruct %c4, %c5, %c6 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l7 : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// The same with a bias, as an addition behind the view; either order.
// CHECK-LABEL: func.func @linear_3d_added_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @linear_3d_added_bias(%bias: !torch.vtensor<[16],bf16>, %x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 8
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l2 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[8,16],bf16>
  %c3 = torch.constant.int 2
  %c4 = torch.constant.int 4
  %c5 = torch.constant.int 16
  %l6 = torch.prim.ListConstruct %c3, %c4, %c5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %u = torch.aten._unsafe_view %m, %l6 : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,16],bf16>
  %c7 = torch.constant.int 1
  %y = torch.aten.add.Tensor %bias, %u, %c7 : !torch.vtensor<[16],bf16>, !torch.vtensor<[2,4,16],bf16>, !torch.int -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// A row added to a product of matrices.
// CHECK-LABEL: func.func @mm_added_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[4,16],
// CHECK-NEXT: return %[[Y]]
func.func @mm_added_bias(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %m = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c0 = torch.constant.int 1
  %y = torch.aten.add.Tensor %m, %bias, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// matmul on four dimensions: expands that change nothing, batches flattened and unflattened.
// CHECK-LABEL: func.func @matmul_4d
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[2,3,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @matmul_4d(%a: !torch.vtensor<[2,3,4,8],bf16>, %b: !torch.vtensor<[2,3,16,8],bf16>) -> !torch.vtensor<[2,3,4,16],bf16> {
  %c0 = torch.constant.int -1
  %c1 = torch.constant.int -2
  %t = torch.aten.transpose.int %b, %c0, %c1 : !torch.vtensor<[2,3,16,8],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,3,8,16],bf16>
  %c2 = torch.constant.int 2
  %c3 = torch.constant.int 3
  %c4 = torch.constant.int 4
  %c5 = torch.constant.int 8
  %l6 = torch.prim.ListConstruct %c2, %c3, %c4, %c5 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c7 = torch.constant.bool false
  %ea = torch.aten.expand %a, %l6, %c7 : !torch.vtensor<[2,3,4,8],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,3,4,8],bf16>
  %c8 = torch.constant.int 6
  %c9 = torch.constant.int 4
  %c10 = torch.constant.int 8
  %l11 = torch.prim.ListConstruct %c8, %c9, %c10 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %va = torch.aten.view %ea, %l11 : !torch.vtensor<[2,3,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[6,4,8],bf16>
  %c12 = torch.constant.int 2
  %c13 = torch.constant.int 3
  %c14 = torch.constant.int 8
  %c15 = torch.constant.int 16
  %l16 = torch.prim.ListConstruct %c12, %c13, %c14, %c15 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c17 = torch.constant.bool false
  %eb = torch.aten.expand %t, %l16, %c17 : !torch.vtensor<[2,3,8,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,3,8,16],bf16>
  %c18 = torch.constant.int 6
  %c19 = torch.constant.int 8
  %c20 = torch.constant.int 16
  %l21 = torch.prim.ListConstruct %c18, %c19, %c20 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %vb = torch.aten.view %eb, %l21 : !torch.vtensor<[2,3,8,16],bf16>, !torch.list<int> -> !torch.vtensor<[6,8,16],bf16>
  %m = torch.aten.bmm %va, %vb : !torch.vtensor<[6,4,8],bf16>, !torch.vtensor<[6,8,16],bf16> -> !torch.vtensor<[6,4,16],bf16>
  %c22 = torch.constant.int 2
  %c23 = torch.constant.int 3
  %c24 = torch.constant.int 4
  %c25 = torch.constant.int 16
  %l26 = torch.prim.ListConstruct %c22, %c23, %c24, %c25 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l26 : !torch.vtensor<[6,4,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,4,16],bf16>
  return %y : !torch.vtensor<[2,3,4,16],bf16>
}

// The same where one operand has fewer batch dimensions: an expand that repeats it, made contiguous.
// CHECK-LABEL: func.func @matmul_4d_broadcast
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[2,3,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @matmul_4d_broadcast(%a: !torch.vtensor<[2,3,4,8],bf16>, %b: !torch.vtensor<[3,8,16],bf16>) -> !torch.vtensor<[2,3,4,16],bf16> {
  %c0 = torch.constant.int 6
  %c1 = torch.constant.int 4
  %c2 = torch.constant.int 8
  %l3 = torch.prim.ListConstruct %c0, %c1, %c2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %va = torch.aten.view %a, %l3 : !torch.vtensor<[2,3,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[6,4,8],bf16>
  %c4 = torch.constant.int 2
  %c5 = torch.constant.int 3
  %c6 = torch.constant.int 8
  %c7 = torch.constant.int 16
  %l8 = torch.prim.ListConstruct %c4, %c5, %c6, %c7 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c9 = torch.constant.bool false
  %eb = torch.aten.expand %b, %l8, %c9 : !torch.vtensor<[3,8,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,3,8,16],bf16>
  %c10 = torch.constant.int 0
  %cb = torch.aten.clone %eb, %c10 : !torch.vtensor<[2,3,8,16],bf16>, !torch.int -> !torch.vtensor<[2,3,8,16],bf16>
  %c11 = torch.constant.int 6
  %c12 = torch.constant.int 8
  %c13 = torch.constant.int 16
  %l14 = torch.prim.ListConstruct %c11, %c12, %c13 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %vb = torch.aten._unsafe_view %cb, %l14 : !torch.vtensor<[2,3,8,16],bf16>, !torch.list<int> -> !torch.vtensor<[6,8,16],bf16>
  %m = torch.aten.bmm %va, %vb : !torch.vtensor<[6,4,8],bf16>, !torch.vtensor<[6,8,16],bf16> -> !torch.vtensor<[6,4,16],bf16>
  %c15 = torch.constant.int 2
  %c16 = torch.constant.int 3
  %c17 = torch.constant.int 4
  %c18 = torch.constant.int 16
  %l19 = torch.prim.ListConstruct %c15, %c16, %c17, %c18 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l19 : !torch.vtensor<[6,4,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,4,16],bf16>
  return %y : !torch.vtensor<[2,3,4,16],bf16>
}

// linear that was not decomposed, without and with bias.
// CHECK-LABEL: func.func @whole_linear
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @whole_linear(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %none = torch.constant.none
  %y = torch.aten.linear %x, %w, %none : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.none -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// Here the weight comes transposed, which cancels.
// CHECK-LABEL: func.func @whole_linear_bias
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1, %arg2) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[2,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @whole_linear_bias(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[8,16],bf16>, %bias: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[16,8],bf16>
  %y = torch.aten.linear %x, %t, %bias : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[16,8],bf16>, !torch.vtensor<[16],bf16> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// matmul that was not decomposed.
// CHECK-LABEL: func.func @whole_matmul
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NN"
// CHECK-SAME: -> !torch.vtensor<[2,3,4,16],
// CHECK-NEXT: return %[[Y]]
func.func @whole_matmul(%a: !torch.vtensor<[2,1,4,8],bf16>, %b: !torch.vtensor<[3,8,16],bf16>) -> !torch.vtensor<[2,3,4,16],bf16> {
  %y = torch.aten.matmul %a, %b : !torch.vtensor<[2,1,4,8],bf16>, !torch.vtensor<[3,8,16],bf16> -> !torch.vtensor<[2,3,4,16],bf16>
  return %y : !torch.vtensor<[2,3,4,16],bf16>
}

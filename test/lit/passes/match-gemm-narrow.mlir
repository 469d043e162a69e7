// Views, expands and additions that match-gemm leaves, because folding them would be wrong or is not provable.
// RUN: flycc-opt %s --match-gemm --flycc-dce | filecheck %s

// The view splits the product differently: the GEMM stays one of matrices between the views.
// CHECK-LABEL: func.func @other_shape
// CHECK: %[[V:.*]] = torch.aten.view %arg0
// CHECK-NEXT: "flycc.gemm"(%[[V]], %arg1) {accumulate = f32, layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[8,16],bf16>
// CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[2,4,4,4],bf16>
func.func @other_shape(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[2,4,4,4],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 8
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l2 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[8,16],bf16>
  %c3 = torch.constant.int 2
  %c4 = torch.constant.int 4
  %c5 = torch.constant.int 4
  %c6 = torch.constant.int 4
  %l7 = torch.prim.ListConstruct %c3, %c4, %c5, %c6 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l7 : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,4,4],bf16>
  return %y : !torch.vtensor<[2,4,4,4],bf16>
}

// Batches are regrouped between operand and result: 2x3 is not 3x2.
// CHECK-LABEL: func.func @regrouped
// CHECK: %[[V:.*]] = torch.aten.view %arg0
// CHECK-NEXT: "flycc.gemm"(%[[V]], %arg1)
// CHECK-SAME: -> !torch.vtensor<[6,4,16],bf16>
func.func @regrouped(%a: !torch.vtensor<[2,3,4,8],bf16>, %b: !torch.vtensor<[6,8,16],bf16>) -> !torch.vtensor<[3,2,4,16],bf16> {
  %c0 = torch.constant.int 6
  %c1 = torch.constant.int 4
  %c2 = torch.constant.int 8
  %l3 = torch.prim.ListConstruct %c0, %c1, %c2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %a, %l3 : !torch.vtensor<[2,3,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[6,4,8],bf16>
  %m = torch.aten.bmm %v, %b : !torch.vtensor<[6,4,8],bf16>, !torch.vtensor<[6,8,16],bf16> -> !torch.vtensor<[6,4,16],bf16>
  %c4 = torch.constant.int 3
  %c5 = torch.constant.int 2
  %c6 = torch.constant.int 4
  %c7 = torch.constant.int 16
  %l8 = torch.prim.ListConstruct %c4, %c5, %c6, %c7 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l8 : !torch.vtensor<[6,4,16],bf16>, !torch.list<int> -> !torch.vtensor<[3,2,4,16],bf16>
  return %y : !torch.vtensor<[3,2,4,16],bf16>
}

// One operand repeats its batches along a dimension that the result splits differently.
// CHECK-LABEL: func.func @repeated_elsewhere
// CHECK: %[[V:.*]] = torch.aten.view
// CHECK: %[[W:.*]] = torch.aten.view %arg1
// CHECK-NEXT: "flycc.gemm"(%[[V]], %[[W]])
// CHECK-SAME: -> !torch.vtensor<[8,4,16],bf16>
func.func @repeated_elsewhere(%a: !torch.vtensor<[2,1,4,8],bf16>, %b: !torch.vtensor<[2,2,2,8,16],bf16>) -> !torch.vtensor<[2,2,2,4,16],bf16> {
  %c0 = torch.constant.int 2
  %c1 = torch.constant.int 4
  %c2 = torch.constant.int 4
  %c3 = torch.constant.int 8
  %l4 = torch.prim.ListConstruct %c0, %c1, %c2, %c3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c5 = torch.constant.bool false
  %e = torch.aten.expand %a, %l4, %c5 : !torch.vtensor<[2,1,4,8],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,4,4,8],bf16>
  %c6 = torch.constant.int 8
  %c7 = torch.constant.int 4
  %c8 = torch.constant.int 8
  %l9 = torch.prim.ListConstruct %c6, %c7, %c8 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %e, %l9 : !torch.vtensor<[2,4,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,4,8],bf16>
  %c10 = torch.constant.int 8
  %c11 = torch.constant.int 8
  %c12 = torch.constant.int 16
  %l13 = torch.prim.ListConstruct %c10, %c11, %c12 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = torch.aten.view %b, %l13 : !torch.vtensor<[2,2,2,8,16],bf16>, !torch.list<int> -> !torch.vtensor<[8,8,16],bf16>
  %m = torch.aten.bmm %v, %w : !torch.vtensor<[8,4,8],bf16>, !torch.vtensor<[8,8,16],bf16> -> !torch.vtensor<[8,4,16],bf16>
  %c14 = torch.constant.int 2
  %c15 = torch.constant.int 2
  %c16 = torch.constant.int 2
  %c17 = torch.constant.int 4
  %c18 = torch.constant.int 16
  %l19 = torch.prim.ListConstruct %c14, %c15, %c16, %c17, %c18 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l19 : !torch.vtensor<[8,4,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,2,2,4,16],bf16>
  return %y : !torch.vtensor<[2,2,2,4,16],bf16>
}

// A weight gradient: the flattened dimension is the summed one.
// CHECK-LABEL: func.func @flattened_sum
// CHECK: %[[G:.*]] = torch.aten.view %arg0
// CHECK: %[[X:.*]] = torch.aten.view %arg1
// CHECK-NEXT: "flycc.gemm"(%[[G]], %[[X]]) {accumulate = f32, layout = "TN"
func.func @flattened_sum(%g: !torch.vtensor<[2,4,16],bf16>, %x: !torch.vtensor<[2,4,8],bf16>) -> !torch.vtensor<[16,8],bf16> {
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 16
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %g, %l2 : !torch.vtensor<[2,4,16],bf16>, !torch.list<int> -> !torch.vtensor<[8,16],bf16>
  %t = torch.aten.t %v : !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[16,8],bf16>
  %c3 = torch.constant.int 8
  %c4 = torch.constant.int 8
  %l5 = torch.prim.ListConstruct %c3, %c4 : (!torch.int, !torch.int) -> !torch.list<int>
  %w = torch.aten.view %x, %l5 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %y = torch.aten.mm %t, %w : !torch.vtensor<[16,8],bf16>, !torch.vtensor<[8,8],bf16> -> !torch.vtensor<[16,8],bf16>
  return %y : !torch.vtensor<[16,8],bf16>
}

// The matrix product has a second user, so it has to exist.
// CHECK-LABEL: func.func @product_used_twice
// CHECK: %[[M:.*]] = "flycc.gemm"(%{{.*}}, %arg1)
// CHECK-SAME: -> !torch.vtensor<[8,16],bf16>
// CHECK: %[[Y:.*]] = torch.aten.view %[[M]]
// CHECK: return %[[Y]], %[[M]]
func.func @product_used_twice(%x: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> (!torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[8,16],bf16>) {
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 8
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l2 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %m = torch.aten.mm %v, %b : !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[8,16],bf16>
  %c3 = torch.constant.int 2
  %c4 = torch.constant.int 4
  %c5 = torch.constant.int 16
  %l6 = torch.prim.ListConstruct %c3, %c4, %c5 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l6 : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,16],bf16>
  return %y, %m : !torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[8,16],bf16>
}

// The transposed weight has a second user: folded, and kept for it.
// CHECK-LABEL: func.func @weight_used_twice
// CHECK-NEXT: %[[T:.*]] = torch.aten.t %arg1
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%arg0, %arg1) {accumulate = f32, layout = "NT"
// CHECK: return %[[Y]], %[[T]]
func.func @weight_used_twice(%a: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[8,16],bf16>) {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %y = torch.aten.mm %a, %t : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y, %t : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[8,16],bf16>
}

// A permutation that moves more than the last two dimensions.
// CHECK-LABEL: func.func @other_permutation
// CHECK: %[[T:.*]] = torch.aten.permute %arg1
// CHECK-NEXT: "flycc.gemm"(%arg0, %[[T]]) {accumulate = f32, layout = "NN"
func.func @other_permutation(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[8,2,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 1
  %c1 = torch.constant.int 0
  %c2 = torch.constant.int 2
  %l3 = torch.prim.ListConstruct %c0, %c1, %c2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %b, %l3 : !torch.vtensor<[8,2,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,8,16],bf16>
  %y = torch.aten.bmm %a, %t : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// A transpose of a batch dimension.
// CHECK-LABEL: func.func @batch_transposed
// CHECK: %[[T:.*]] = torch.aten.transpose.int %arg0
// CHECK-NEXT: "flycc.gemm"(%[[T]], %arg1) {accumulate = f32, layout = "NN"
func.func @batch_transposed(%a: !torch.vtensor<[4,2,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 0
  %c1 = torch.constant.int 1
  %t = torch.aten.transpose.int %a, %c0, %c1 : !torch.vtensor<[4,2,8],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,4,8],bf16>
  %y = torch.aten.bmm %t, %b : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// Both operands expanded over the batch: at least one has to bring it.
// CHECK-LABEL: func.func @both_expanded
// CHECK: %[[E:.*]] = torch.aten.expand
// CHECK-NEXT: "flycc.gemm"(%arg0, %[[E]])
// CHECK-SAME: -> !torch.vtensor<[2,4,16],bf16>
func.func @both_expanded(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 2
  %c1 = torch.constant.int 4
  %c2 = torch.constant.int 8
  %l3 = torch.prim.ListConstruct %c0, %c1, %c2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c4 = torch.constant.bool false
  %ea = torch.aten.expand %a, %l3, %c4 : !torch.vtensor<[4,8],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,4,8],bf16>
  %c5 = torch.constant.int 2
  %c6 = torch.constant.int 8
  %c7 = torch.constant.int 16
  %l8 = torch.prim.ListConstruct %c5, %c6, %c7 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %c9 = torch.constant.bool false
  %eb = torch.aten.expand %b, %l8, %c9 : !torch.vtensor<[8,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,8,16],bf16>
  %y = torch.aten.bmm %ea, %eb : !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// An expand of a row of the matrix itself is no broadcast of batches.
// CHECK-LABEL: func.func @expanded_row
// CHECK: %[[E:.*]] = torch.aten.expand %arg1
// CHECK: "flycc.gemm"(%arg0, %[[E]])
func.func @expanded_row(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[1,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 16
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %c3 = torch.constant.bool false
  %e = torch.aten.expand %b, %l2, %c3 : !torch.vtensor<[1,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[8,16],bf16>
  %y = torch.aten.mm %a, %e : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A whole tensor added is an epilogue for another pass.
// CHECK-LABEL: func.func @added_residual
// CHECK: %[[M:.*]] = "flycc.gemm"(%arg1, %arg2)
// CHECK: torch.aten.add.Tensor %[[M]], %arg0
func.func @added_residual(%r: !torch.vtensor<[4,16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %m = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c0 = torch.constant.int 1
  %y = torch.aten.add.Tensor %m, %r, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A bias that is scaled first.
// CHECK-LABEL: func.func @added_scaled
// CHECK: %[[M:.*]] = "flycc.gemm"(%arg1, %arg2)
// CHECK: torch.aten.add.Tensor %[[M]], %arg0
func.func @added_scaled(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %m = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c0 = torch.constant.int 2
  %y = torch.aten.add.Tensor %m, %bias, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A bias of one element does not provably run along N.
// CHECK-LABEL: func.func @added_column
// CHECK: %[[M:.*]] = "flycc.gemm"(%arg1, %arg2)
// CHECK: torch.aten.add.Tensor %[[M]], %arg0
func.func @added_column(%bias: !torch.vtensor<[1],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %m = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c0 = torch.constant.int 1
  %y = torch.aten.add.Tensor %m, %bias, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[1],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A bias of a wider type makes the sum wider.
// CHECK-LABEL: func.func @added_wide
// CHECK: %[[M:.*]] = "flycc.gemm"(%arg1, %arg2)
// CHECK: torch.aten.add.Tensor %[[M]], %arg0
func.func @added_wide(%bias: !torch.vtensor<[16],f32>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],f32> {
  %m = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c0 = torch.constant.int 1
  %y = torch.aten.add.Tensor %m, %bias, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],f32>, !torch.int -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// The product added to itself.
// CHECK-LABEL: func.func @added_to_itself
// CHECK: %[[M:.*]] = "flycc.gemm"(%arg0, %arg1)
// CHECK: torch.aten.add.Tensor %[[M]], %[[M]]
func.func @added_to_itself(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %m = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c0 = torch.constant.int 1
  %y = torch.aten.add.Tensor %m, %m, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An addition behind addmm: one bias only.
// CHECK-LABEL: func.func @second_bias
// CHECK: %[[M:.*]] = "flycc.gemm"(%arg1, %arg2, %arg0)
// CHECK: torch.aten.add.Tensor %[[M]], %arg0
func.func @second_bias(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 1
  %m = torch.aten.addmm %bias, %a, %b, %c0, %c0 : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %m, %bias, %c0 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A bias of flattened rows cannot follow the rows apart.
// CHECK-LABEL: func.func @flattened_bias
// CHECK: %[[V:.*]] = torch.aten.view %arg1
// CHECK: "flycc.gemm"(%[[V]], %arg2, %arg0)
// CHECK-SAME: -> !torch.vtensor<[8,16],bf16>
func.func @flattened_bias(%bias: !torch.vtensor<[8,16],bf16>, %x: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 8
  %c1 = torch.constant.int 8
  %l2 = torch.prim.ListConstruct %c0, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l2 : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %c3 = torch.constant.int 1
  %m = torch.aten.addmm %bias, %v, %b, %c3, %c3 : !torch.vtensor<[8,16],bf16>, !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[8,16],bf16>
  %c4 = torch.constant.int 2
  %c5 = torch.constant.int 4
  %c6 = torch.constant.int 16
  %l7 = torch.prim.ListConstruct %c4, %c5, %c6 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l7 : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// Sizes known at run time only: without symbols nothing says that the batches are the same.
// CHECK-LABEL: func.func @dynamic
// CHECK: %[[V:.*]] = torch.aten.view %arg2
// CHECK: "flycc.gemm"(%[[V]], %arg3)
// CHECK-SAME: -> !torch.vtensor<[?,16],bf16>
func.func @dynamic(%s: !torch.int, %k: !torch.int, %x: !torch.vtensor<[?,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[?,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %n = torch.aten.mul.int %s, %k : !torch.int, !torch.int -> !torch.int
  %c0 = torch.constant.int 8
  %l1 = torch.prim.ListConstruct %n, %c0 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l1 : !torch.vtensor<[?,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[?,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[?,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[?,16],bf16>
  %c2 = torch.constant.int 4
  %c3 = torch.constant.int 16
  %l4 = torch.prim.ListConstruct %s, %c2, %c3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l4 : !torch.vtensor<[?,16],bf16>, !torch.list<int> -> !torch.vtensor<[?,4,16],bf16>
  return %y : !torch.vtensor<[?,4,16],bf16>
}

// Equal symbols do. The result keeps its symbolic shape.
// CHECK-LABEL: func.func @dynamic_symbol
// CHECK: "flycc.gemm"(%arg2, %arg3) {accumulate = f32, flycc.shape = ["s0", "4", "16"], layout = "NT"
// CHECK-SAME: -> !torch.vtensor<[?,4,16],bf16>
func.func @dynamic_symbol(%s: !torch.int, %k: !torch.int, %x: !torch.vtensor<[?,4,8],bf16> {flycc.shape = ["s0", "4", "8"]}, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[?,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %n = torch.aten.mul.int %s, %k : !torch.int, !torch.int -> !torch.int
  %c0 = torch.constant.int 8
  %l1 = torch.prim.ListConstruct %n, %c0 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l1 : !torch.vtensor<[?,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[?,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[?,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[?,16],bf16>
  %c2 = torch.constant.int 4
  %c3 = torch.constant.int 16
  %l4 = torch.prim.ListConstruct %s, %c2, %c3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l4 {flycc.shape = ["s0", "4", "16"]} : !torch.vtensor<[?,16],bf16>, !torch.list<int> -> !torch.vtensor<[?,4,16],bf16>
  return %y : !torch.vtensor<[?,4,16],bf16>
}

// Other symbols do not.
// CHECK-LABEL: func.func @dynamic_other_symbol
// CHECK: "flycc.gemm"(%{{.*}}, %arg3)
// CHECK-SAME: -> !torch.vtensor<[?,16],bf16>
func.func @dynamic_other_symbol(%s: !torch.int, %k: !torch.int, %x: !torch.vtensor<[?,4,8],bf16> {flycc.shape = ["s0", "4", "8"]}, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[?,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %n = torch.aten.mul.int %s, %k : !torch.int, !torch.int -> !torch.int
  %c0 = torch.constant.int 8
  %l1 = torch.prim.ListConstruct %n, %c0 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l1 : !torch.vtensor<[?,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[?,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[?,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[?,16],bf16>
  %c2 = torch.constant.int 4
  %c3 = torch.constant.int 16
  %l4 = torch.prim.ListConstruct %s, %c2, %c3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l4 {flycc.shape = ["s1", "4", "16"]} : !torch.vtensor<[?,16],bf16>, !torch.list<int> -> !torch.vtensor<[?,4,16],bf16>
  return %y : !torch.vtensor<[?,4,16],bf16>
}

// A stamp of another rank is not about this value.
// CHECK-LABEL: func.func @dynamic_bad_stamp
// CHECK: "flycc.gemm"(%{{.*}}, %arg3)
// CHECK-SAME: -> !torch.vtensor<[?,16],bf16>
func.func @dynamic_bad_stamp(%s: !torch.int, %k: !torch.int, %x: !torch.vtensor<[?,4,8],bf16> {flycc.shape = ["s0", "32"]}, %w: !torch.vtensor<[16,8],bf16>) -> !torch.vtensor<[?,4,16],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %n = torch.aten.mul.int %s, %k : !torch.int, !torch.int -> !torch.int
  %c0 = torch.constant.int 8
  %l1 = torch.prim.ListConstruct %n, %c0 : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %l1 : !torch.vtensor<[?,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[?,8],bf16>
  %m = torch.aten.mm %v, %t : !torch.vtensor<[?,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[?,16],bf16>
  %c2 = torch.constant.int 4
  %c3 = torch.constant.int 16
  %l4 = torch.prim.ListConstruct %s, %c2, %c3 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.view %m, %l4 {flycc.shape = ["s0", "4", "16"]} : !torch.vtensor<[?,16],bf16>, !torch.list<int> -> !torch.vtensor<[?,4,16],bf16>
  return %y : !torch.vtensor<[?,4,16],bf16>
}

// Attention as einsum leaves it, with heads behind rows: views add sizes of one, and permute them, around each product.
// RUN: flycc-opt %s --match-sdpa --flycc-dce | filecheck %s

// The product with V has batch and heads in one, and nothing has [batch, heads, queries, value dim] in this order.
// CHECK-LABEL: func.func @heads_behind_rows
// CHECK-DAG: %[[Q:.*]] = torch.aten.permute %arg0, {{.*}} -> !torch.vtensor<[2,3,7,16],bf16>
// CHECK-DAG: %[[K:.*]] = torch.aten.permute %arg1, {{.*}} -> !torch.vtensor<[2,3,9,16],bf16>
// CHECK-DAG: %[[V:.*]] = torch.aten.permute %arg2, {{.*}} -> !torch.vtensor<[2,3,9,16],bf16>
// CHECK: %[[OUT:.*]] = "flycc.sdpa"(%[[Q]], %[[K]], %[[V]], %{{.*}}) {{.*}} -> !torch.vtensor<[2,3,7,16],bf16>
// CHECK: torch.aten.view %[[OUT]], {{.*}} : !torch.vtensor<[2,3,7,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,16],bf16>
// CHECK-NOT: bmm
func.func @heads_behind_rows(%q: !torch.vtensor<[2,7,3,16],bf16>, %k: !torch.vtensor<[2,9,3,16],bf16>, %v: !torch.vtensor<[2,9,3,16],bf16>) -> !torch.vtensor<[2,7,3,16],bf16> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int7 = torch.constant.int 7
  %int9 = torch.constant.int 9
  %int16 = torch.constant.int 16
  %last = torch.constant.int -1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %1 = torch.aten.unsqueeze %q, %int4 : !torch.vtensor<[2,7,3,16],bf16>, !torch.int -> !torch.vtensor<[2,7,3,16,1],bf16>
  %order_1 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %2 = torch.aten.permute %1, %order_1 : !torch.vtensor<[2,7,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,16],bf16>
  %order_2 = torch.prim.ListConstruct %int0, %int1, %int2, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %3 = torch.aten.permute %2, %order_2 : !torch.vtensor<[2,3,7,1,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,16,1],bf16>
  %sizes_3 = torch.prim.ListConstruct %int6, %int7, %int16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %4 = torch.aten.view %3, %sizes_3 : !torch.vtensor<[2,3,7,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,7,16],bf16>
  %5 = torch.aten.unsqueeze %k, %int4 : !torch.vtensor<[2,9,3,16],bf16>, !torch.int -> !torch.vtensor<[2,9,3,16,1],bf16>
  %order_5 = torch.prim.ListConstruct %int0, %int2, %int4, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %6 = torch.aten.permute %5, %order_5 : !torch.vtensor<[2,9,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,1,9,16],bf16>
  %order_6 = torch.prim.ListConstruct %int0, %int1, %int4, %int3, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %7 = torch.aten.permute %6, %order_6 : !torch.vtensor<[2,3,1,9,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,16,9,1],bf16>
  %sizes_7 = torch.prim.ListConstruct %int6, %int16, %int9 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %8 = torch.aten.view %7, %sizes_7 : !torch.vtensor<[2,3,16,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,16,9],bf16>
  %9 = torch.aten.bmm %4, %8 : !torch.vtensor<[6,7,16],bf16>, !torch.vtensor<[6,16,9],bf16> -> !torch.vtensor<[6,7,9],bf16>
  %sizes_9 = torch.prim.ListConstruct %int2, %int3, %int7, %int1, %int9 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %10 = torch.aten.view %9, %sizes_9 : !torch.vtensor<[6,7,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,9],bf16>
  %order_10 = torch.prim.ListConstruct %int0, %int1, %int2, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %11 = torch.aten.permute %10, %order_10 : !torch.vtensor<[2,3,7,1,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,9,1],bf16>
  %sizes_11 = torch.prim.ListConstruct %int2, %int3, %int7, %int9 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %12 = torch.aten.view %11, %sizes_11 : !torch.vtensor<[2,3,7,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,9],bf16>
  %13 = torch.aten.mul.Scalar %12, %quarter : !torch.vtensor<[2,3,7,9],bf16>, !torch.float -> !torch.vtensor<[2,3,7,9],bf16>
  %14 = torch.aten._softmax %13, %last, %false : !torch.vtensor<[2,3,7,9],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,3,7,9],bf16>
  %15 = torch.aten.unsqueeze %14, %int4 : !torch.vtensor<[2,3,7,9],bf16>, !torch.int -> !torch.vtensor<[2,3,7,9,1],bf16>
  %order_15 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %16 = torch.aten.permute %15, %order_15 : !torch.vtensor<[2,3,7,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,7,3,1,9],bf16>
  %order_16 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %17 = torch.aten.permute %16, %order_16 : !torch.vtensor<[2,7,3,1,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,9,1],bf16>
  %sizes_17 = torch.prim.ListConstruct %int6, %int7, %int9 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %18 = torch.aten.view %17, %sizes_17 : !torch.vtensor<[2,3,7,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,7,9],bf16>
  %19 = torch.aten.unsqueeze %v, %int4 : !torch.vtensor<[2,9,3,16],bf16>, !torch.int -> !torch.vtensor<[2,9,3,16,1],bf16>
  %order_19 = torch.prim.ListConstruct %int0, %int4, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %20 = torch.aten.permute %19, %order_19 : !torch.vtensor<[2,9,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,1,3,16,9],bf16>
  %order_20 = torch.prim.ListConstruct %int0, %int2, %int4, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %21 = torch.aten.permute %20, %order_20 : !torch.vtensor<[2,1,3,16,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,9,16,1],bf16>
  %sizes_21 = torch.prim.ListConstruct %int6, %int9, %int16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %22 = torch.aten.view %21, %sizes_21 : !torch.vtensor<[2,3,9,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,9,16],bf16>
  %23 = torch.aten.bmm %18, %22 : !torch.vtensor<[6,7,9],bf16>, !torch.vtensor<[6,9,16],bf16> -> !torch.vtensor<[6,7,16],bf16>
  %sizes_23 = torch.prim.ListConstruct %int2, %int3, %int7, %int1, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %24 = torch.aten.view %23, %sizes_23 : !torch.vtensor<[6,7,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,16],bf16>
  %order_24 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %25 = torch.aten.permute %24, %order_24 : !torch.vtensor<[2,3,7,1,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,7,3,16,1],bf16>
  %sizes_25 = torch.prim.ListConstruct %int2, %int7, %int3, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %26 = torch.aten.view %25, %sizes_25 : !torch.vtensor<[2,7,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,7,3,16],bf16>
  return %26 : !torch.vtensor<[2,7,3,16],bf16>
}

// The product is used as it is, too: what is raised has another shape.
// CHECK-LABEL: func.func @product_with_another_use
// CHECK: torch.aten._softmax {{.*}}what it gives is not seen as [..., queries, value dim] again{{.*}}sdpa.form
func.func @product_with_another_use(%q: !torch.vtensor<[2,7,3,16],bf16>, %k: !torch.vtensor<[2,9,3,16],bf16>, %v: !torch.vtensor<[2,9,3,16],bf16>) -> (!torch.vtensor<[2,7,3,16],bf16>, !torch.vtensor<[6,7,16],bf16>) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int7 = torch.constant.int 7
  %int9 = torch.constant.int 9
  %int16 = torch.constant.int 16
  %last = torch.constant.int -1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %1 = torch.aten.unsqueeze %q, %int4 : !torch.vtensor<[2,7,3,16],bf16>, !torch.int -> !torch.vtensor<[2,7,3,16,1],bf16>
  %order_1 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %2 = torch.aten.permute %1, %order_1 : !torch.vtensor<[2,7,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,16],bf16>
  %order_2 = torch.prim.ListConstruct %int0, %int1, %int2, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %3 = torch.aten.permute %2, %order_2 : !torch.vtensor<[2,3,7,1,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,16,1],bf16>
  %sizes_3 = torch.prim.ListConstruct %int6, %int7, %int16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %4 = torch.aten.view %3, %sizes_3 : !torch.vtensor<[2,3,7,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,7,16],bf16>
  %5 = torch.aten.unsqueeze %k, %int4 : !torch.vtensor<[2,9,3,16],bf16>, !torch.int -> !torch.vtensor<[2,9,3,16,1],bf16>
  %order_5 = torch.prim.ListConstruct %int0, %int2, %int4, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %6 = torch.aten.permute %5, %order_5 : !torch.vtensor<[2,9,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,1,9,16],bf16>
  %order_6 = torch.prim.ListConstruct %int0, %int1, %int4, %int3, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %7 = torch.aten.permute %6, %order_6 : !torch.vtensor<[2,3,1,9,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,16,9,1],bf16>
  %sizes_7 = torch.prim.ListConstruct %int6, %int16, %int9 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %8 = torch.aten.view %7, %sizes_7 : !torch.vtensor<[2,3,16,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,16,9],bf16>
  %9 = torch.aten.bmm %4, %8 : !torch.vtensor<[6,7,16],bf16>, !torch.vtensor<[6,16,9],bf16> -> !torch.vtensor<[6,7,9],bf16>
  %sizes_9 = torch.prim.ListConstruct %int2, %int3, %int7, %int1, %int9 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %10 = torch.aten.view %9, %sizes_9 : !torch.vtensor<[6,7,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,9],bf16>
  %order_10 = torch.prim.ListConstruct %int0, %int1, %int2, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %11 = torch.aten.permute %10, %order_10 : !torch.vtensor<[2,3,7,1,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,9,1],bf16>
  %sizes_11 = torch.prim.ListConstruct %int2, %int3, %int7, %int9 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %12 = torch.aten.view %11, %sizes_11 : !torch.vtensor<[2,3,7,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,9],bf16>
  %13 = torch.aten.mul.Scalar %12, %quarter : !torch.vtensor<[2,3,7,9],bf16>, !torch.float -> !torch.vtensor<[2,3,7,9],bf16>
  %14 = torch.aten._softmax %13, %last, %false : !torch.vtensor<[2,3,7,9],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,3,7,9],bf16>
  %15 = torch.aten.unsqueeze %14, %int4 : !torch.vtensor<[2,3,7,9],bf16>, !torch.int -> !torch.vtensor<[2,3,7,9,1],bf16>
  %order_15 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %16 = torch.aten.permute %15, %order_15 : !torch.vtensor<[2,3,7,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,7,3,1,9],bf16>
  %order_16 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %17 = torch.aten.permute %16, %order_16 : !torch.vtensor<[2,7,3,1,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,9,1],bf16>
  %sizes_17 = torch.prim.ListConstruct %int6, %int7, %int9 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %18 = torch.aten.view %17, %sizes_17 : !torch.vtensor<[2,3,7,9,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,7,9],bf16>
  %19 = torch.aten.unsqueeze %v, %int4 : !torch.vtensor<[2,9,3,16],bf16>, !torch.int -> !torch.vtensor<[2,9,3,16,1],bf16>
  %order_19 = torch.prim.ListConstruct %int0, %int4, %int2, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %20 = torch.aten.permute %19, %order_19 : !torch.vtensor<[2,9,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,1,3,16,9],bf16>
  %order_20 = torch.prim.ListConstruct %int0, %int2, %int4, %int3, %int1 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %21 = torch.aten.permute %20, %order_20 : !torch.vtensor<[2,1,3,16,9],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,9,16,1],bf16>
  %sizes_21 = torch.prim.ListConstruct %int6, %int9, %int16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %22 = torch.aten.view %21, %sizes_21 : !torch.vtensor<[2,3,9,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[6,9,16],bf16>
  %23 = torch.aten.bmm %18, %22 : !torch.vtensor<[6,7,9],bf16>, !torch.vtensor<[6,9,16],bf16> -> !torch.vtensor<[6,7,16],bf16>
  %sizes_23 = torch.prim.ListConstruct %int2, %int3, %int7, %int1, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %24 = torch.aten.view %23, %sizes_23 : !torch.vtensor<[6,7,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,3,7,1,16],bf16>
  %order_24 = torch.prim.ListConstruct %int0, %int2, %int1, %int4, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %25 = torch.aten.permute %24, %order_24 : !torch.vtensor<[2,3,7,1,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,7,3,16,1],bf16>
  %sizes_25 = torch.prim.ListConstruct %int2, %int7, %int3, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %26 = torch.aten.view %25, %sizes_25 : !torch.vtensor<[2,7,3,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,7,3,16],bf16>
  %27 = torch.aten.relu %23 : !torch.vtensor<[6,7,16],bf16> -> !torch.vtensor<[6,7,16],bf16>
  return %26, %27 : !torch.vtensor<[2,7,3,16],bf16>, !torch.vtensor<[6,7,16],bf16>
}

// Which FX nodes a match names: its root, whose result it replaces, and all that was folded into it.
// RUN: flycc-opt %s --match-gemm | filecheck %s
// RUN: flycc-opt %s --match-gemm --flycc-dce | filecheck %s --check-prefix=DEAD

// match-gemm erases the root alone. What it looked through is left to flycc-dce, and to other users.
// CHECK-LABEL: func.func @linear
// CHECK: torch.aten.t %arg1 {flycc.node = "t"}
// CHECK: torch.aten.view {{.*}} {flycc.node = "view"}
// CHECK: torch.aten.mm {{.*}} {flycc.node = "mm"}
// CHECK-NOT: torch.aten._unsafe_view
// CHECK: "flycc.gemm"(%arg0, %arg1) {
// CHECK-SAME: flycc.consumed = ["_unsafe_view", "mm", "view", "t"], flycc.node = "_unsafe_view", flycc.shape = ["2", "4", "16"]

// The transposed weight is also returned: it is consumed, and it stays.
// DEAD-LABEL: func.func @linear
// DEAD-NEXT: torch.aten.t %arg1 {flycc.node = "t"}
// DEAD-NEXT: "flycc.gemm"
// DEAD-NEXT: return
func.func @linear(%x: !torch.vtensor<[2,4,8],bf16>, %w: !torch.vtensor<[16,8],bf16>) -> (!torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[8,16],bf16>) {
  %t = torch.aten.t %w {flycc.node = "t"} : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %c8 = torch.constant.int 8 {flycc.node = "view"}
  %s = torch.prim.ListConstruct %c8, %c8 {flycc.node = "view"} : (!torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %x, %s {flycc.node = "view"} : !torch.vtensor<[2,4,8],bf16>, !torch.list<int> -> !torch.vtensor<[8,8],bf16>
  %m = torch.aten.mm %v, %t {flycc.node = "mm"} : !torch.vtensor<[8,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[8,16],bf16>
  %c2 = torch.constant.int 2 {flycc.node = "_unsafe_view"}
  %c4 = torch.constant.int 4 {flycc.node = "_unsafe_view"}
  %c16 = torch.constant.int 16 {flycc.node = "_unsafe_view"}
  %r = torch.prim.ListConstruct %c2, %c4, %c16 {flycc.node = "_unsafe_view"} : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten._unsafe_view %m, %r {flycc.node = "_unsafe_view", flycc.shape = ["2", "4", "16"]} : !torch.vtensor<[8,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,4,16],bf16>
  return %y, %t : !torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[8,16],bf16>
}

// A bias that is added afterwards makes the addition the root.
// CHECK-LABEL: func.func @added_bias
// CHECK: torch.aten.mm {{.*}} {flycc.node = "mm"}
// CHECK-NOT: torch.aten.add.Tensor
// CHECK: "flycc.gemm"(%arg0, %arg1, %arg2) {
// CHECK-SAME: flycc.consumed = ["add", "mm"], flycc.node = "add"
// DEAD-LABEL: func.func @added_bias
// DEAD-NEXT: "flycc.gemm"
func.func @added_bias(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>, %bias: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %m = torch.aten.mm %a, %b {flycc.node = "mm"} : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %c1 = torch.constant.int 1 {flycc.node = "add"}
  %y = torch.aten.add.Tensor %m, %bias, %c1 {flycc.node = "add"} : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A product that nobody uses is passed over, without a reason.
// CHECK-LABEL: func.func @dead
// CHECK-NEXT: torch.aten.mm %arg0, %arg1 {flycc.node = "mm"}
// CHECK-NEXT: return
// DEAD-LABEL: func.func @dead
// DEAD-NEXT: return
func.func @dead(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) {
  %m = torch.aten.mm %a, %b {flycc.node = "mm"} : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return
}

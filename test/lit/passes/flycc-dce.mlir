// What flycc-dce removes and what it keeps.
// RUN: flycc-opt %s --flycc-dce | filecheck %s

// Chains of dead ops go at once, from the last user back; used ops and arguments stay.
// CHECK-LABEL: func.func @chain
// CHECK-NEXT: %[[Y:.*]] = torch.aten.mm %arg0, %arg1
// CHECK-NEXT: return %[[Y]]
func.func @chain(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c = torch.constant.int 4
  %l = torch.prim.ListConstruct %c, %c : (!torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.t %b : !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[16,8],bf16>
  %u = torch.aten.t %t : !torch.vtensor<[16,8],bf16> -> !torch.vtensor<[8,16],bf16>
  %g = "flycc.gemm"(%a, %u) {layout = "NN", accumulate = f32, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The importer vouches for what it stamps: any stamped op goes, opaque ones too, unless it is marked impure.
// CHECK-LABEL: func.func @stamped
// CHECK-NEXT: torch.operator "torch.aten.copy_"(%arg0, %arg1)
// CHECK-NEXT: return
func.func @stamped(%a: !torch.vtensor<[4],bf16>, %b: !torch.vtensor<[4],bf16>) {
  %0 = torch.aten.relu %a {flycc.node = "relu"} : !torch.vtensor<[4],bf16> -> !torch.vtensor<[4],bf16>
  %1 = torch.operator "torch.aten.sort.stable"(%a) {flycc.node = "sort"} : (!torch.vtensor<[4],bf16>) -> !torch.vtensor<[4],bf16>
  %2 = torch.operator "torch.aten.copy_"(%a, %b) {flycc.impure, flycc.node = "copy_"} : (!torch.vtensor<[4],bf16>, !torch.vtensor<[4],bf16>) -> !torch.vtensor<[4],bf16>
  return
}

// What feeds an impure op is not dead.
// CHECK-LABEL: func.func @feeds_impure
// CHECK-NEXT: %[[R:.*]] = torch.aten.relu
// CHECK-NEXT: torch.operator "torch.aten.copy_"(%arg0, %[[R]])
func.func @feeds_impure(%a: !torch.vtensor<[4],bf16>) {
  %0 = torch.aten.relu %a {flycc.node = "relu"} : !torch.vtensor<[4],bf16> -> !torch.vtensor<[4],bf16>
  %1 = torch.operator "torch.aten.copy_"(%a, %0) {flycc.impure, flycc.node = "copy_"} : (!torch.vtensor<[4],bf16>, !torch.vtensor<[4],bf16>) -> !torch.vtensor<[4],bf16>
  return
}

// An op with several results stays while one of them is used.
// CHECK-LABEL: func.func @several_results
// CHECK-NEXT: %[[S:.*]]:2 = torch.operator "torch.aten.sort"
// CHECK-NEXT: return %[[S]]#1
func.func @several_results(%a: !torch.vtensor<[4],bf16>) -> !torch.vtensor<[4],si64> {
  %0:2 = torch.operator "torch.aten.sort"(%a) {flycc.node = "sort"} : (!torch.vtensor<[4],bf16>) -> (!torch.vtensor<[4],bf16>, !torch.vtensor<[4],si64>)
  return %0#1 : !torch.vtensor<[4],si64>
}

// Without a stamp nobody vouches for an unknown op; nor does a stamp vouch for an op without results.
// CHECK-LABEL: func.func @unknown
// CHECK-NEXT: torch.operator "torch.mine.step"
// CHECK-NEXT: torch.operator "torch.mine.log"
// CHECK-NEXT: return
func.func @unknown(%a: !torch.vtensor<[4],bf16>) {
  %0 = torch.operator "torch.mine.step"(%a) : (!torch.vtensor<[4],bf16>) -> !torch.vtensor<[4],bf16>
  torch.operator "torch.mine.log"(%a) {flycc.node = "log"} : (!torch.vtensor<[4],bf16>) -> ()
  return
}

// Ops with regions stay, dead ops inside them go.
// CHECK-LABEL: func.func @regions
// CHECK: torch.prim.If %arg0
// CHECK-NEXT: torch.prim.If.yield %arg1
// CHECK: torch.prim.If.yield %arg1
func.func @regions(%p: !torch.bool, %a: !torch.vtensor<[4,8],bf16>) {
  %0 = torch.prim.If %p -> (!torch.vtensor<[4,8],bf16>) {
    %t = torch.aten.t %a : !torch.vtensor<[4,8],bf16> -> !torch.vtensor<[8,4],bf16>
    torch.prim.If.yield %a : !torch.vtensor<[4,8],bf16>
  } else {
    torch.prim.If.yield %a : !torch.vtensor<[4,8],bf16>
  }
  return
}

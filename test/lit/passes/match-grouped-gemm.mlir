// What match-grouped-gemm raises, and the reason it gives for the rest.
// RUN: flycc-opt %s --match-grouped-gemm --flycc-dce | filecheck %s

// A transposed weight is folded.
// CHECK-LABEL: func.func @experts
// CHECK: "flycc.grouped_gemm"(%arg0, %arg1, %arg2) {accumulate = f32, flycc.consumed = ["wt", "y"], flycc.results = {{\[\[}}"y"]],
// CHECK-SAME: layout = "NT", operandSegmentSizes = array<i32: 1, 1, 1, 0>}
// CHECK-NEXT: return
func.func @experts(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[2,16,8],bf16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "8", "16"]} : !torch.vtensor<[2,16,8],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,8,16],bf16>
  %y = torch.operator "torch.aten._grouped_mm"(%x, %wt, %o, %none, %none) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The gradient of a weight.
// CHECK-LABEL: func.func @gradient
// CHECK: "flycc.grouped_gemm"(%arg0, %arg1, %arg2) {{.*}}layout = "TN"
// CHECK-SAME: -> !torch.vtensor<[2,16,8],f16>
func.func @gradient(%g: !torch.vtensor<[4,16],f16>, %x: !torch.vtensor<[4,8],f16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[2,16,8],f16> {
  %none = torch.constant.none
  %gt = torch.aten.t %g : !torch.vtensor<[4,16],f16> -> !torch.vtensor<[16,4],f16>
  %y = torch.operator "torch.aten._grouped_mm"(%gt, %x, %o, %none, %none) : (!torch.vtensor<[16,4],f16>, !torch.vtensor<[4,8],f16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[2,16,8],f16>
  return %y : !torch.vtensor<[2,16,8],f16>
}

// Without offsets, and with the result's type spelled out.
// CHECK-LABEL: func.func @batch
// CHECK: "flycc.grouped_gemm"(%arg0, %arg1) {{.*}}operandSegmentSizes = array<i32: 1, 1, 0, 0>
func.func @batch(%a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %none = torch.constant.none
  %bf16 = torch.constant.int 15
  %y = torch.operator "torch.aten._grouped_mm"(%a, %b, %none, %none, %bf16) : (!torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.none, !torch.none, !torch.int) -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// An expand that repeats a matrix stays.
// CHECK-LABEL: func.func @shared
// CHECK: %[[E:.*]] = torch.aten.expand
// CHECK: "flycc.grouped_gemm"(%arg0, %[[E]], %arg2)
func.func @shared(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[1,8,16],bf16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %2 = torch.constant.int 2
  %8 = torch.constant.int 8
  %16 = torch.constant.int 16
  %sizes = torch.prim.ListConstruct %2, %8, %16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %e = torch.aten.expand %w, %sizes, %false : !torch.vtensor<[1,8,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,8,16],bf16>
  %y = torch.operator "torch.aten._grouped_mm"(%x, %e, %o, %none, %none) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @unknown_rank
// CHECK: flycc.reason = "_grouped_mm: a is !torch.vtensor<*,bf16>; a value tensor of known rank is needed", flycc.reason_code = "grouped-gemm.type"
func.func @unknown_rank(%x: !torch.vtensor<*,bf16>, %w: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %none) : (!torch.vtensor<*,bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @bias
// CHECK: flycc.reason = "_grouped_mm: it has a bias; there must be none", flycc.reason_code = "grouped-gemm.bias"
func.func @bias(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>, %b: !torch.vtensor<[2,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %b, %none) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],bf16>, !torch.none) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @dtype
// CHECK: flycc.reason = "_grouped_mm: a is f32, b is f32, the result is f32; all must be bf16 or all f16", flycc.reason_code = "grouped-gemm.dtype"
func.func @dtype(%x: !torch.vtensor<[4,8],f32>, %w: !torch.vtensor<[2,8,16],f32>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],f32> {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %none) : (!torch.vtensor<[4,8],f32>, !torch.vtensor<[2,8,16],f32>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// A result that is wider than its operands.
// CHECK-LABEL: func.func @wide
// CHECK: the result is f32; {{.*}}flycc.reason_code = "grouped-gemm.dtype"
func.func @wide(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],f32> {
  %none = torch.constant.none
  %f32 = torch.constant.int 6
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %f32) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.int) -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @empty
// CHECK: flycc.reason = "_grouped_mm: a is bf16[0, 8], b is bf16[2, 8, 16], {{.*}}; every size must be at least 1", flycc.reason_code = "grouped-gemm.empty"
func.func @empty(%x: !torch.vtensor<[0,8],bf16>, %w: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[0,16],bf16> {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %none) : (!torch.vtensor<[0,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[0,16],bf16>
  return %y : !torch.vtensor<[0,16],bf16>
}

// What the op's verifier refuses is left alone, with its message.
// CHECK-LABEL: func.func @invalid
// CHECK: b has 2 groups but offsets has 3{{.*}}flycc.reason_code = "grouped-gemm.invalid"
func.func @invalid(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[3],si32>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %none) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[3],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// One that nobody uses is passed over.
// CHECK-LABEL: func.func @unused
// CHECK-NOT: flycc.
// CHECK: return
func.func @unused(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[2,8,16],bf16>, %o: !torch.vtensor<[2],si32>) {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %none) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[4,16],bf16>
  return
}

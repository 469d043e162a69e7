// Products of dequantised operands, and scales that are the same along K.
// RUN: flycc-opt %s --place-scales | filecheck %s

// Elements of e2m1 have exact sums where the scales are near one another: two forms, and a guard.
// CHECK-LABEL: func.func @dequantized
// CHECK-NOT: mx_dequantize
// CHECK: %[[G:.*]] = "flycc.scale_guard"(%arg2, %arg3) {a_blocks = 2 : i64, a_max = 252 : i64, a_min = 2 : i64, b_blocks = 2 : i64, b_max = 252 : i64, b_min = 2 : i64
// CHECK-SAME: placement = "element", spread = 10 : i64, sum_max = 370 : i64, sum_min = 130 : i64, tree = "any"
// CHECK-NEXT: %[[V:.*]] = "flycc.versioned"(%[[G]]) ({
// CHECK-NEXT: %[[S:.*]] = "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3)
// CHECK-SAME: placement = "operand", tree = "mfma"
// CHECK-NEXT: "flycc.yield"(%[[S]])
// CHECK-NEXT: }, {
// CHECK-NEXT: %[[DA:.*]] = torch.operator "torch.flycc.mx_dequantize"(%arg0, %arg2,
// CHECK-NEXT: %[[DB:.*]] = torch.operator "torch.flycc.mx_dequantize"(%arg1, %arg3,
// CHECK-NEXT: %[[Y:.*]] = "flycc.gemm"(%[[DA]], %[[DB]])
// CHECK-NEXT: "flycc.yield"(%[[Y]])
// CHECK-NEXT: })
// CHECK-SAME: flycc.consumed = ["mm"], flycc.feeding = ["da", "db"], flycc.node = "mm"
// CHECK-NEXT: return %[[V]]
func.func @dequantized(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %bf16 = torch.constant.int 15
  %da = torch.operator "torch.flycc.mx_dequantize"(%a, %sa, %bf16) {flycc.node = "da"} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[4,64],bf16>
  %db = torch.operator "torch.flycc.mx_dequantize"(%b, %sb, %bf16) {flycc.node = "db"} : (!torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[16,64],bf16>
  %y = "flycc.gemm"(%da, %db) {layout = "NT", accumulate = f32, flycc.node = "mm", flycc.consumed = ["mm"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// What other ops read as well is computed for them in any case, in front.
// CHECK-LABEL: func.func @shared
// CHECK: mx_dequantize"(%arg0
// CHECK: "flycc.versioned"
// CHECK: }, {
// CHECK-NEXT: mx_dequantize"(%arg1
// CHECK-NEXT: "flycc.gemm"
func.func @shared(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> (!torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,64],bf16>) {
  %bf16 = torch.constant.int 15
  %da = torch.operator "torch.flycc.mx_dequantize"(%a, %sa, %bf16) {flycc.node = "da"} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[4,64],bf16>
  %db = torch.operator "torch.flycc.mx_dequantize"(%b, %sb, %bf16) {flycc.node = "db"} : (!torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[16,64],bf16>
  %y = "flycc.gemm"(%da, %db) {layout = "NT", accumulate = f32, flycc.node = "mm", flycc.consumed = ["mm"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %y, %da : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,64],bf16>
}

// Of e4m3 not even two products have an exact sum.
// CHECK-LABEL: func.func @inexact
// CHECK-NOT: flycc.versioned
// CHECK: "flycc.gemm"
// CHECK-SAME: flycc.placement = "as written: float32 sums of 64 products of e4m3 x e4m3 depend on their order, whatever the scales are"
func.func @inexact(%a: !torch.vtensor<[4,64],f8E4M3FN>, %b: !torch.vtensor<[16,64],f8E4M3FN>, %sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %bf16 = torch.constant.int 15
  %da = torch.operator "torch.flycc.mx_dequantize"(%a, %sa, %bf16) {flycc.node = "da"} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[4,64],bf16>
  %db = torch.operator "torch.flycc.mx_dequantize"(%b, %sb, %bf16) {flycc.node = "db"} : (!torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[16,64],bf16>
  %y = "flycc.gemm"(%da, %db) {layout = "NT", accumulate = f32, flycc.node = "mm", flycc.consumed = ["mm"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A scale for each element is none that a kernel reads.
// CHECK-LABEL: func.func @elementwise
// CHECK-NOT: flycc.versioned
// CHECK: "flycc.gemm"
// CHECK-SAME: flycc.placement = "as written: a is not row-major along K, of a size that is known, with scales of blocks of 32, of rows or of all"
func.func @elementwise(%a: !torch.vtensor<[4,64],f8E4M3FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %sa: !torch.vtensor<[4,64],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wa = torch.aten._to_copy %a, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,64],f8E4M3FN>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,64],bf16>
  %wsa = torch.aten._to_copy %sa, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,64],f8E8M0FNU>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,64],bf16>
  %da = torch.aten.mul.Tensor %wa, %wsa : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4,64],bf16> -> !torch.vtensor<[4,64],bf16>
  %db = torch.operator "torch.flycc.mx_dequantize"(%b, %sb, %bf16) : (!torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[16,64],bf16>
  %y = "flycc.gemm"(%da, %db) {layout = "NT", accumulate = f32, flycc.node = "mm", flycc.consumed = ["mm"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Factors that are no powers of two are no scales.
// CHECK-LABEL: func.func @no_scales
// CHECK-NOT: flycc.placement
func.func @no_scales(%a: !torch.vtensor<[4,64],bf16>, %b: !torch.vtensor<[16,64],bf16>, %s: !torch.vtensor<[4,64],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %da = torch.aten.mul.Tensor %a, %s : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4,64],bf16> -> !torch.vtensor<[4,64],bf16>
  %db = torch.aten.mul.Tensor %b, %b : !torch.vtensor<[16,64],bf16>, !torch.vtensor<[16,64],bf16> -> !torch.vtensor<[16,64],bf16>
  %y = "flycc.gemm"(%da, %db) {layout = "NT", accumulate = f32, flycc.node = "mm", flycc.consumed = ["mm"], operandSegmentSizes = array<i32: 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[16,64],bf16>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Scales of rows that were repeated along K leave the sum, where the sums stay in range.
// CHECK-LABEL: func.func @rows
// CHECK: %[[G:.*]] = "flycc.scale_guard"(%arg2, %arg3)
// CHECK-SAME: placement = "hoisted", spread = 508 : i64, sum_max = 370 : i64, sum_min = 130 : i64, tree = "mfma"
// CHECK-NEXT: "flycc.versioned"(%[[G]]) ({
// CHECK-NEXT: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3)
// CHECK-SAME: placement = "hoisted"
// CHECK: }, {
// CHECK: "flycc.scaled_gemm"
// CHECK-SAME: placement = "operand"
// CHECK: flycc.feeding = ["expand_b", "expand"]
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

// One operand's scales alone stay: the K loop has scales to load in any case.
// CHECK-LABEL: func.func @one_side
// CHECK-NOT: flycc.versioned
// CHECK: "flycc.scaled_gemm"
// CHECK-SAME: flycc.placement = "operand (tree mfma): one operand's blocks differ, so all are loaded"
func.func @one_side(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %rows: !torch.vtensor<[4,1],f8E8M0FNU>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %c4 = torch.constant.int 4
  %c2 = torch.constant.int 2
  %false = torch.constant.bool false
  %sizes = torch.prim.ListConstruct %c4, %c2 : (!torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.aten.expand %rows, %sizes, %false {flycc.node = "expand"} : !torch.vtensor<[4,1],f8E8M0FNU>, !torch.list<int>, !torch.bool -> !torch.vtensor<[4,2],f8E8M0FNU>
  %y = "flycc.scaled_gemm"(%a, %b, %wide, %sb) {placement = "operand", tree = "mfma", k_block = 32 : i64, flycc.node = "scaled", flycc.consumed = ["scaled"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The quantiser of f16 writes bytes from 101 to 140, whose sums cannot leave it.
// CHECK-LABEL: func.func @proved
// CHECK-NOT: flycc.versioned
// CHECK: %[[S:.*]] = "flycc.scaled_gemm"(%arg0, %arg1, %{{[^)]*}})
// CHECK-SAME: flycc.placement = "hoisted (tree mfma), proved
// CHECK-SAME: placement = "hoisted"
// CHECK-NEXT: return %[[S]]
func.func @proved(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %x: !torch.vtensor<[4,1],f16>, %w: !torch.vtensor<[16,1],f16>) -> !torch.vtensor<[4,16],bf16> {
  %format = torch.constant.str "e2m1"
  %rounding = torch.constant.str "floor"
  %q:3 = torch.operator "torch.flycc.mx_quantize"(%x, %format, %rounding) : (!torch.vtensor<[4,1],f16>, !torch.str, !torch.str) -> (!torch.vtensor<[4,1],f4E2M1FN>, !torch.vtensor<[4,1],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  %qw:3 = torch.operator "torch.flycc.mx_quantize"(%w, %format, %rounding) : (!torch.vtensor<[16,1],f16>, !torch.str, !torch.str) -> (!torch.vtensor<[16,1],f4E2M1FN>, !torch.vtensor<[16,1],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  %c4 = torch.constant.int 4
  %c2 = torch.constant.int 2
  %false = torch.constant.bool false
  %sizes = torch.prim.ListConstruct %c4, %c2 : (!torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.aten.expand %q#1, %sizes, %false {flycc.node = "expand"} : !torch.vtensor<[4,1],f8E8M0FNU>, !torch.list<int>, !torch.bool -> !torch.vtensor<[4,2],f8E8M0FNU>
  %c16 = torch.constant.int 16
  %sizes_b = torch.prim.ListConstruct %c16, %c2 : (!torch.int, !torch.int) -> !torch.list<int>
  %sb = torch.aten.expand %qw#1, %sizes_b, %false {flycc.node = "expand_b"} : !torch.vtensor<[16,1],f8E8M0FNU>, !torch.list<int>, !torch.bool -> !torch.vtensor<[16,2],f8E8M0FNU>
  %y = "flycc.scaled_gemm"(%a, %b, %wide, %sb) {placement = "operand", tree = "mfma", k_block = 32 : i64, flycc.node = "scaled", flycc.consumed = ["scaled"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Scales of 1 change nothing.
// CHECK-LABEL: func.func @ones
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2)
// CHECK-SAME: flycc.placement = "operand (tree mfma): scales of 1 are dropped"
// CHECK-SAME: operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 0>
func.func @ones(%a: !torch.vtensor<[4,32],f4E2M1FN>, %b: !torch.vtensor<[16,32],f4E2M1FN>, %sb: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %c4 = torch.constant.int 4
  %c2 = torch.constant.int 2
  %one = torch.constant.float 1.0
  %e8m0 = torch.constant.int 44
  %none = torch.constant.none
  %sizes = torch.prim.ListConstruct %c4, %c2 : (!torch.int, !torch.int) -> !torch.list<int>
  %sa = torch.aten.full %sizes, %one, %e8m0, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[4,2],f8E8M0FNU>
  %y = "flycc.scaled_gemm"(%a, %b, %sa, %sb) {placement = "operand", tree = "mfma", k_block = 32 : i64, flycc.node = "scaled", flycc.consumed = ["scaled"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,32],f4E2M1FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

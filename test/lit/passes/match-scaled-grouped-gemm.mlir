// What match-scaled-grouped-gemm raises, and the reason it gives for the rest.
// RUN: flycc-opt %s --match-scaled-grouped-gemm --flycc-dce | filecheck %s

// Rows by group; a transposed weight is folded.
// CHECK-LABEL: func.func @rows
// CHECK: "flycc.scaled_grouped_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4) {flycc.consumed = ["wt", "y"], flycc.results = {{\[\[}}"y"]],
// CHECK-NEXT: return
func.func @rows(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %o, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Scales of a group in a row, and a bias.
// CHECK-LABEL: func.func @flat
// CHECK: %[[S:.*]] = torch.aten.view %arg3, %{{.*}} -> !torch.vtensor<[2,16,2],f8E8M0FNU>
// CHECK: "flycc.scaled_grouped_gemm"(%arg0, %arg1, %arg2, %[[S]], %arg4, %arg5)
func.func @flat(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,32],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>, %c: !torch.vtensor<[2,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %o, %c, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,32],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.vtensor<[2,16],bf16>, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A weight that no transpose in the graph makes [G, K, N] gets one.
// CHECK-LABEL: func.func @column_major
// CHECK: %[[T:.*]] = torch.aten.transpose.int %arg1, %{{.*}}, %{{.*}} : {{.*}} -> !torch.vtensor<[2,16,64],f8E4M3FN>
// CHECK: "flycc.scaled_grouped_gemm"(%arg0, %[[T]], %arg2, %arg3, %arg4)
func.func @column_major(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %o, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A call of flycc's own operator.
// CHECK-LABEL: func.func @own
// CHECK: "flycc.scaled_grouped_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4)
func.func @own(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %bf16 = torch.constant.int 15
  %y = torch.operator "torch.flycc.scaled_grouped_gemm"(%x, %w, %sx, %sw, %o, %none, %bf16) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.vtensor<[2],si32>, !torch.none, !torch.int) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Products that share out nothing.
// CHECK-LABEL: func.func @batch
// CHECK: flycc.reason = "_scaled_grouped_mm_v2: a is f8E4M3FN[2, 4, 64] and b is f8E4M3FN[2, 64, 16]; groups of rows are accepted, [M, K] and [G, K, N]", flycc.reason_code = "scaled-grouped-gemm.groups"
func.func @batch(%x: !torch.vtensor<[2,4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[2,4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %none, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[2,4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// Other recipes.
// CHECK-LABEL: func.func @recipe
// CHECK: flycc.reason = "_scaled_grouped_mm_v2: scale_a is of recipe 1, swizzle 0; plain BlockWise1x32 is needed", flycc.reason_code = "scaled-grouped-gemm.recipe"
func.func @recipe(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %1, %0, %sw, %1, %0, %o, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Scales in tiles.
// CHECK-LABEL: func.func @tiles
// CHECK: flycc.reason = "_scaled_grouped_mm_v2: scale_a is of recipe 3, swizzle 1; plain BlockWise1x32 is needed", flycc.reason_code = "scaled-grouped-gemm.recipe"
func.func @tiles(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,2],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %3, %1, %sw, %3, %1, %o, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The size of scales.
// CHECK-LABEL: func.func @scale
// CHECK: flycc.reason = "_scaled_grouped_mm_v2: scale_b is [2, 16]; [2, 16, 2] is needed", flycc.reason_code = "scaled-grouped-gemm.scale"
func.func @scale(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[2,16],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %o, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The first form.
// CHECK-LABEL: func.func @first
// CHECK: flycc.reason = "_scaled_grouped_mm: scale_a is f32[4]; kernels take blocks of 1x32 without tiles, which scaled_grouped_mm names", flycc.reason_code = "scaled-grouped-gemm.recipe"
func.func @first(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[2,16,64],f8E4M3FN>, %sx: !torch.vtensor<[4],f32>, %sw: !torch.vtensor<[2,16],f32>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "64", "16"]} : !torch.vtensor<[2,16,64],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm"(%x, %wt, %sx, %sw, %o, %none, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[2,64,16],f8E4M3FN>, !torch.vtensor<[4],f32>, !torch.vtensor<[2,16],f32>, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

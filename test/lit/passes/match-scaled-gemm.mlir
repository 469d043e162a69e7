// What match-scaled-gemm raises: recipes, formats, layouts of operands and of scales, biases.
// RUN: flycc-opt %s --match-scaled-gemm --flycc-dce | filecheck %s

// Blocks of 1x32; a transposed weight is folded.
// CHECK-LABEL: func.func @blocks
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4) {flycc.consumed = ["wt", "y"], flycc.results = {{\[\[}}"y"]],
// CHECK-SAME: k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>, placement = "operand", tree = "mfma"}
// CHECK-NEXT: return
func.func @blocks(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %bias: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w {flycc.node = "wt", flycc.shape = ["64", "16"]} : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %bias, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16],bf16>, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Formats that differ, packed e2m1 among them; lists of swizzles may be empty.
// CHECK-LABEL: func.func @formats
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {{.*}}placement = "operand"
// CHECK-SAME: -> !torch.vtensor<[4,16],f16>
func.func @formats(%x: !torch.vtensor<[4,64],f8E5M2>, %w: !torch.vtensor<[16,32],f4E2M1FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],f16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,32],f4E2M1FN> -> !torch.vtensor<[32,16],f4E2M1FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %3, %sw, %3, %none, %none, %false) : (!torch.vtensor<[4,64],f8E5M2>, !torch.vtensor<[32,16],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],f16>
  return %y : !torch.vtensor<[4,16],f16>
}

// A weight that no transpose in the graph makes [K, N] gets one.
// CHECK-LABEL: func.func @column_major
// CHECK: %[[T:.*]] = torch.aten.t %arg1 : !torch.vtensor<[64,16],f8E4M3FN> -> !torch.vtensor<[16,64],f8E4M3FN>
// CHECK: "flycc.scaled_gemm"(%arg0, %[[T]], %arg2, %arg3)
func.func @column_major(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Rows: the scales of columns are stored as a row, which is read as a column.
// CHECK-LABEL: func.func @rows
// CHECK: %[[S:.*]] = torch.aten.t %arg3
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %[[S]]) {{.*}}placement = "hoisted", tree = "mfma"
func.func @rows(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,1],f32>, %sw: !torch.vtensor<[1,16],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %1, %0, %sw, %1, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.int, !torch.int, !torch.vtensor<[1,16],f32>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A transpose in the graph that made that row is folded, and [N, 1] is taken as it is.
// CHECK-LABEL: func.func @columns
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {{.*}}placement = "hoisted"
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {{.*}}placement = "hoisted"
func.func @columns(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,1],f32>, %sw: !torch.vtensor<[16,1],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %row = torch.aten.t %sw : !torch.vtensor<[16,1],f32> -> !torch.vtensor<[1,16],f32>
  %z = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %1, %0, %row, %1, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.int, !torch.int, !torch.vtensor<[1,16],f32>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %1, %0, %sw, %1, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.int, !torch.int, !torch.vtensor<[16,1],f32>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.add.Tensor %z, %y, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %s : !torch.vtensor<[4,16],bf16>
}

// One number for a tensor, by torch._scaled_mm.
// CHECK-LABEL: func.func @tensors
// CHECK: %[[A:.*]] = torch.aten.view %arg2, %{{.*}} : !torch.vtensor<[],f32>, !torch.list<int> -> !torch.vtensor<[1,1],f32>
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %[[A]], %arg3) {{.*}}placement = "hoisted"
func.func @tensors(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[],f32>, %sw: !torch.vtensor<[1,1],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm"(%x, %wt, %sx, %sw, %none, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[],f32>, !torch.vtensor<[1,1],f32>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Bytes without a recipe are of blocks.
// CHECK-LABEL: func.func @blocks_by_type
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {{.*}}placement = "operand"
func.func @blocks_by_type(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm"(%x, %wt, %sx, %sw, %none, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A bias of 16 bits is widened for a result of 32.
// CHECK-LABEL: func.func @wide
// CHECK: %[[B:.*]] = torch.aten._to_copy %arg4, %{{.*}} -> !torch.vtensor<[16],f32>
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %[[B]])
func.func @wide(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %b: !torch.vtensor<[16],bf16>) -> !torch.vtensor<[4,16],f32> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %b, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16],bf16>, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// PyTorch's tiles of scales are put in order.
// CHECK-LABEL: func.func @tiles
// CHECK: %[[T:.*]] = torch.aten.reshape %arg2, %{{.*}} -> !torch.vtensor<[1,1,32,4,4],f8E8M0FNU>
// CHECK: %[[P:.*]] = torch.aten.permute %[[T]], %{{.*}} -> !torch.vtensor<[1,4,32,1,4],f8E8M0FNU>
// CHECK: %[[R:.*]] = torch.aten.reshape %[[P]], %{{.*}} -> !torch.vtensor<[128,4],f8E8M0FNU>
// CHECK: %[[S:.*]] = torch.aten.slice.Tensor %[[R]], {{.*}} -> !torch.vtensor<[4,4],f8E8M0FNU>
// CHECK: %[[A:.*]] = torch.aten.slice.Tensor %[[S]], {{.*}} -> !torch.vtensor<[4,2],f8E8M0FNU>
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %[[A]], %{{.*}})
func.func @tiles(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[512],f8E8M0FNU>, %sw: !torch.vtensor<[128,4],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %3, %1, %sw, %3, %1, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[512],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[128,4],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Any number of rows.
// CHECK-LABEL: func.func @dynamic
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {{.*}}placement = "operand"
func.func @dynamic(%x: !torch.vtensor<[?,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[?,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[?,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[?,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[?,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[?,16],bf16>
  return %y : !torch.vtensor<[?,16],bf16>
}

// Bytes without a recipe have rows up to a multiple of 128, in any shape.
// CHECK-LABEL: func.func @padded
// CHECK: %[[A:.*]] = torch.aten.slice.Tensor %arg2, {{.*}} -> !torch.vtensor<[4,4],f8E8M0FNU>
// CHECK: %[[R:.*]] = torch.aten.reshape %arg3, %{{.*}} -> !torch.vtensor<[128,4],f8E8M0FNU>
// CHECK: %[[B:.*]] = torch.aten.slice.Tensor %[[R]], {{.*}} -> !torch.vtensor<[16,4],f8E8M0FNU>
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %[[A]], %[[B]]) {{.*}}placement = "operand"
func.func @padded(%x: !torch.vtensor<[4,128],f8E4M3FN>, %w: !torch.vtensor<[16,128],f8E4M3FN>, %sx: !torch.vtensor<[128,4],f8E8M0FNU>, %sw: !torch.vtensor<[512],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,128],f8E4M3FN> -> !torch.vtensor<[128,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm"(%x, %wt, %sx, %sw, %none, %none, %none, %false) : (!torch.vtensor<[4,128],f8E4M3FN>, !torch.vtensor<[128,16],f8E4M3FN>, !torch.vtensor<[128,4],f8E8M0FNU>, !torch.vtensor<[512],f8E8M0FNU>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Plain scales in another shape.
// CHECK-LABEL: func.func @flat
// CHECK: %[[A:.*]] = torch.aten.reshape %arg2, %{{.*}} -> !torch.vtensor<[4,2],f8E8M0FNU>
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %[[A]], %arg3)
func.func @flat(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[8],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %3 = torch.constant.int 3
  %0 = torch.constant.int 0
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.t %w : !torch.vtensor<[16,64],f8E4M3FN> -> !torch.vtensor<[64,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[8],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A call of flycc's own operator.
// CHECK-LABEL: func.func @own
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4) {activation = "silu", {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1>, placement = "hoisted", tree = "mfma"}
func.func @own(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,32],f4E2M1FN>, %sx: !torch.vtensor<[4,1],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %none = torch.constant.none
  %silu = torch.constant.str "silu"
  %bf16 = torch.constant.int 15
  %y = torch.operator "torch.flycc.scaled_gemm"(%x, %w, %sx, %sw, %none, %h, %silu, %bf16) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,32],f4E2M1FN>, !torch.vtensor<[4,1],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.none, !torch.vtensor<[4,16],bf16>, !torch.str, !torch.int) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// What fuse-epilogue and fuse-cast fold into flycc.scaled_gemm, and the reasons for the rest.
// RUN: flycc-opt %s --fuse-epilogue --fuse-cast --flycc-dce | filecheck %s

// A bias, an activation and a residual.
// CHECK-LABEL: func.func @all
// CHECK: %[[Y:.*]] = "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5) {activation = "relu", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1>, placement = "operand", tree = "mfma"}
// CHECK-NEXT: return %[[Y]]
func.func @all(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %c: !torch.vtensor<[16],bf16>, %h: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %q = torch.aten.add.Tensor %p, %c, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %a = torch.aten.relu %q : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %h, %a, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// silu by its parts.
// CHECK-LABEL: func.func @silu
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {activation = "silu"
// CHECK-NEXT: return
func.func @silu(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %s = torch.aten.sigmoid %p : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.mul.Tensor %p, %s : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Behind a view of its rows.
// CHECK-LABEL: func.func @batch
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1>
// CHECK-SAME: -> !torch.vtensor<[2,2,16],bf16>
// CHECK-NEXT: return
func.func @batch(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[2,2,16],bf16>) -> !torch.vtensor<[2,2,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %2 = torch.constant.int 2
  %16 = torch.constant.int 16
  %l = torch.prim.ListConstruct %2, %2, %16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %v = torch.aten.view %p, %l : !torch.vtensor<[4,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,2,16],bf16>
  %y = torch.aten.add.Tensor %v, %h, %1 : !torch.vtensor<[2,2,16],bf16>, !torch.vtensor<[2,2,16],bf16>, !torch.int -> !torch.vtensor<[2,2,16],bf16>
  return %y : !torch.vtensor<[2,2,16],bf16>
}

// A result of f32, and what is added to it.
// CHECK-LABEL: func.func @widened
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3, %arg4)
// CHECK-SAME: -> !torch.vtensor<[4,16],f32>
// CHECK-NEXT: return
func.func @widened(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %q = torch.aten._to_copy %p, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f32>
  %y = torch.aten.add.Tensor %q, %h, %1 : !torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],f32>, !torch.int -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// A result of f32 rounded later.
// CHECK-LABEL: func.func @rounded
// CHECK: "flycc.scaled_gemm"(%arg0, %arg1, %arg2, %arg3) {activation = "relu"
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK-NEXT: return
func.func @rounded(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],f32>
  %q = torch.aten.relu %p : !torch.vtensor<[4,16],f32> -> !torch.vtensor<[4,16],f32>
  %y = torch.aten._to_copy %q, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A first rounding to bf16 stays.
// CHECK-LABEL: func.func @rounded_twice
// CHECK: "flycc.scaled_gemm"
// CHECK-SAME: -> !torch.vtensor<[4,16],bf16>
// CHECK: torch.aten._to_copy
func.func @rounded_twice(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],f16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %f16 = torch.constant.int 5
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten._to_copy %p, %f16, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f16>
  return %y : !torch.vtensor<[4,16],f16>
}

// The product is used twice.
// CHECK-LABEL: func.func @uses
// CHECK: flycc.reason = "relu: 2 ops use the product, so it is stored anyway", flycc.reason_code = "epilogue.uses"
func.func @uses(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %q = torch.aten.relu %p : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %p, %q, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Nothing is activated after a residual.
// CHECK-LABEL: func.func @order
// CHECK: flycc.reason = "relu: the product of scaled operands has a residual already", flycc.reason_code = "epilogue.order"
func.func @order(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %q = torch.aten.add.Tensor %p, %h, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.relu %q : !torch.vtensor<[4,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// One residual.
// CHECK-LABEL: func.func @two
// CHECK: flycc.reason = "add.Tensor: the product of scaled operands has a residual already", flycc.reason_code = "epilogue.order"
func.func @two(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],bf16>, %g: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %q = torch.aten.add.Tensor %p, %h, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %q, %g, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Rows that repeat.
// CHECK-LABEL: func.func @rows
// CHECK: flycc.reason = "add.Tensor: [1, 16] is added to [4, 16]; a bias of columns, or all of it, is folded", flycc.reason_code = "epilogue.broadcast"
func.func @rows(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[1,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %p, %h, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[1,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Addends of another type.
// CHECK-LABEL: func.func @type
// CHECK: flycc.reason = "add.Tensor: f32[4, 16] is added to bf16[4, 16] and gives f32, not one type", flycc.reason_code = "epilogue.dtype"
func.func @type(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %p, %h, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],f32>, !torch.int -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// What was added keeps its type.
// CHECK-LABEL: func.func @cast
// CHECK: flycc.reason = "_to_copy: what is added to the product is bf16", flycc.reason_code = "epilogue.dtype"
func.func @cast(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],f32> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %q = torch.aten.add.Tensor %p, %h, %1 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten._to_copy %q, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// A scaled addend.
// CHECK-LABEL: func.func @alpha
// CHECK: flycc.reason = "add.Tensor: alpha scales one of the addends; none is scaled", flycc.reason_code = "epilogue.order"
func.func @alpha(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[16,64],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %h: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %1 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %3 = torch.constant.int 3
  %p = "flycc.scaled_gemm"(%x, %w, %sx, %sw) {placement = "operand", tree = "mfma", k_block = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>} : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[16,64],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16>
  %y = torch.aten.add.Tensor %p, %h, %3 : !torch.vtensor<[4,16],bf16>, !torch.vtensor<[4,16],bf16>, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

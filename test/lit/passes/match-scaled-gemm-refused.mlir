// The reasons that match-scaled-gemm gives for what it does not raise.
// RUN: flycc-opt %s --match-scaled-gemm | filecheck %s

// Blocks of 16.
// CHECK-LABEL: func.func @nvfp4
// CHECK: flycc.reason = "_scaled_mm_v2: scale_a is BlockWise1x16 (NVFP4); BlockWise1x32, RowWise and TensorWise are accepted", flycc.reason_code = "scaled-gemm.recipe"
func.func @nvfp4(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,4],f8E4M3FN>, %sw: !torch.vtensor<[16,4],f8E4M3FN>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %2 = torch.constant.int 2
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %2, %0, %sw, %2, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,4],f8E4M3FN>, !torch.int, !torch.int, !torch.vtensor<[16,4],f8E4M3FN>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Blocks of 128.
// CHECK-LABEL: func.func @blocks_128
// CHECK: flycc.reason = "_scaled_mm_v2: scale_a is BlockWise1x128; BlockWise1x32, RowWise and TensorWise are accepted", flycc.reason_code = "scaled-gemm.recipe"
func.func @blocks_128(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,1],f32>, %sw: !torch.vtensor<[1,16],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %4 = torch.constant.int 4
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %4, %0, %sw, %4, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,1],f32>, !torch.int, !torch.int, !torch.vtensor<[1,16],f32>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Scales of two levels.
// CHECK-LABEL: func.func @two_levels
// CHECK: flycc.reason = "_scaled_mm_v2: scale_a is 2 tensors (NVFP4 has two levels of scales); one is accepted", flycc.reason_code = "scaled-gemm.recipe"
func.func @two_levels(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,4],f8E4M3FN>, %sw: !torch.vtensor<[16,4],f8E4M3FN>, %g: !torch.vtensor<[],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %2 = torch.constant.int 2
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %g, %2, %0, %0, %0, %sw, %g, %2, %0, %0, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,4],f8E4M3FN>, !torch.vtensor<[],f32>, !torch.int, !torch.int, !torch.int, !torch.int, !torch.vtensor<[16,4],f8E4M3FN>, !torch.vtensor<[],f32>, !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A scaled result.
// CHECK-LABEL: func.func @scaled_result
// CHECK: flycc.reason = "_scaled_mm: its result is scaled (scale_result); no kernel does that", flycc.reason_code = "scaled-gemm.scale-result"
func.func @scaled_result(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[],f32>, %sw: !torch.vtensor<[],f32>, %sr: !torch.vtensor<[],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm"(%x, %w, %sx, %sw, %none, %sr, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.none, !torch.vtensor<[],f32>, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The type of the result is by default that of the operands.
// CHECK-LABEL: func.func @narrow_result
// CHECK: flycc.reason = "_scaled_mm: the result is f8E4M3FN; bf16, f16, f32 are accepted", flycc.reason_code = "scaled-gemm.dtype"
func.func @narrow_result(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[],f32>, %sw: !torch.vtensor<[],f32>) -> !torch.vtensor<[4,16],f8E4M3FN> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm"(%x, %w, %sx, %sw, %none, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],f8E4M3FN>
  return %y : !torch.vtensor<[4,16],f8E4M3FN>
}

// Blocks of 128, by shape.
// CHECK-LABEL: func.func @blocks_by_shape
// CHECK: flycc.reason = "_scaled_mm: scale_a is f32[4, 2]: of blocks of 128; rows and tensors are accepted", flycc.reason_code = "scaled-gemm.recipe"
func.func @blocks_by_shape(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f32>, %sw: !torch.vtensor<[2,16],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm"(%x, %w, %sx, %sw, %none, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f32>, !torch.vtensor<[2,16],f32>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Formats of the MI300.
// CHECK-LABEL: func.func @fnuz
// CHECK: flycc.reason = "_scaled_mm_v2: a is f8E4M3FNUZ; f8E4M3FN, f8E5M2, f4E2M1FN are accepted", flycc.reason_code = "scaled-gemm.dtype"
func.func @fnuz(%x: !torch.vtensor<[4,64],f8E4M3FNUZ>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FNUZ>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Without a recipe scales are plain, and for whole 128s along K.
// CHECK-LABEL: func.func @tiles_by_size
// CHECK: flycc.reason = "_scaled_mm: scale_a is [512]; [4, 2] is needed", flycc.reason_code = "scaled-gemm.scale"
func.func @tiles_by_size(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[512],f8E8M0FNU>, %sw: !torch.vtensor<[512],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm"(%x, %w, %sx, %sw, %none, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[512],f8E8M0FNU>, !torch.vtensor<[512],f8E8M0FNU>, !torch.none, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Tiles of the wrong size.
// CHECK-LABEL: func.func @tiles
// CHECK: flycc.reason = "_scaled_mm_v2: scale_a is [4, 2] in tiles of 32x4x4; [128, 4] is needed", flycc.reason_code = "scaled-gemm.scale"
func.func @tiles(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %1, %sw, %3, %1, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Tiles of a size that is not known.
// CHECK-LABEL: func.func @dynamic_tiles
// CHECK: flycc.reason = "_scaled_mm_v2: scale_a is in tiles of 32x4x4; only known sizes are put in order", flycc.reason_code = "scaled-gemm.swizzle"
func.func @dynamic_tiles(%x: !torch.vtensor<[?,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[?],f8E8M0FNU>, %sw: !torch.vtensor<[128,4],f8E8M0FNU>) -> !torch.vtensor<[?,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %1, %sw, %3, %1, %none, %none, %false) : (!torch.vtensor<[?,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[?],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[128,4],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[?,16],bf16>
  return %y : !torch.vtensor<[?,16],bf16>
}

// The type of scales.
// CHECK-LABEL: func.func @scale_type
// CHECK: flycc.reason = "_scaled_mm_v2: scale_a is f32; it must be f8E8M0FNU", flycc.reason_code = "scaled-gemm.dtype"
func.func @scale_type(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f32>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f32>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The size of scales.
// CHECK-LABEL: func.func @scale_size
// CHECK: flycc.reason = "_scaled_mm_v2: scale_b is [4, 2]; [16, 2] is needed", flycc.reason_code = "scaled-gemm.scale"
func.func @scale_size(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The type of a bias.
// CHECK-LABEL: func.func @bias_type
// CHECK: flycc.reason = "_scaled_mm_v2: the bias is f32 and the result bf16; one type is needed, or f32", flycc.reason_code = "scaled-gemm.dtype"
func.func @bias_type(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %b: !torch.vtensor<[16],f32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %b, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16],f32>, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// The shape of a bias.
// CHECK-LABEL: func.func @bias_shape
// CHECK: flycc.reason = "_scaled_mm_v2: the bias is [4, 16]; [16] is needed", flycc.reason_code = "scaled-gemm.addend"
func.func @bias_shape(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %b: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %3, %0, %sw, %3, %0, %b, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[4,16],bf16>, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A recipe that nobody knows yet.
// CHECK-LABEL: func.func @recipe
// CHECK: flycc.reason = "_scaled_mm_v2: the recipe of scale_a is no constant", flycc.reason_code = "scaled-gemm.recipe"
func.func @recipe(%x: !torch.vtensor<[4,64],f8E4M3FN>, %w: !torch.vtensor<[64,16],f8E4M3FN>, %sx: !torch.vtensor<[4,2],f8E8M0FNU>, %sw: !torch.vtensor<[16,2],f8E8M0FNU>, %r: !torch.int) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %none = torch.constant.none
  %false = torch.constant.bool false
  %y = torch.operator "torch.aten._scaled_mm_v2"(%x, %w, %sx, %r, %0, %sw, %3, %0, %none, %none, %false) : (!torch.vtensor<[4,64],f8E4M3FN>, !torch.vtensor<[64,16],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[16,2],f8E8M0FNU>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An MX product by group, lowered from the op that the pass raises.
// RUN: flycc-opt %s --emit=isa | filecheck %s

// CHECK: ; scaled_grouped_gemm 2: *4x16x128 e4m3 x e4m3 -> bf16
// CHECK: .amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
// CHECK: grouped_mx_e4m3{{.*}}:
// CHECK: v_mfma_scale_f32_16x16x128_f8f6f4
// CHECK: s_endpgm
func.func @rows(%x: !torch.vtensor<[4,128],f8E4M3FN>, %w: !torch.vtensor<[2,16,128],f8E4M3FN>, %sx: !torch.vtensor<[4,4],f8E8M0FNU>, %sw: !torch.vtensor<[2,16,4],f8E8M0FNU>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,16],bf16> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %3 = torch.constant.int 3
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %false = torch.constant.bool false
  %wt = torch.aten.transpose.int %w, %before, %last {flycc.node = "wt", flycc.shape = ["2", "128", "16"]} : !torch.vtensor<[2,16,128],f8E4M3FN>, !torch.int, !torch.int -> !torch.vtensor<[2,128,16],f8E4M3FN>
  %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %3, %0, %sw, %3, %0, %o, %none, %none, %false) {flycc.node = "y", flycc.shape = ["4", "16"]} : (!torch.vtensor<[4,128],f8E4M3FN>, !torch.vtensor<[2,128,16],f8E4M3FN>, !torch.vtensor<[4,4],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2,16,4],f8E8M0FNU>, !torch.int, !torch.int, !torch.vtensor<[2],si32>, !torch.none, !torch.none, !torch.bool) -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// An RMS norm and its gradients as kernels, each named by its problem; one alone down to the binary.
// RUN: flycc-opt %s --split-input-file --emit=fly | filecheck %s --check-prefix=FLY
// RUN: flycc-opt %s --split-input-file --emit=isa | filecheck %s --check-prefix=ISA

// FLY: // rms_norm 4x64 bf16+residual+rstd weight bf16 cast before weight align 16
// FLY-NEXT: module
// FLY: gpu.func @rms_norm{{[a-z0-9_]*}}
// FLY: fly.
// FLY: // -----
// FLY-NEXT: // rms_norm_backward 4x64 bf16 weight bf16 align 16
// FLY-NEXT: module
// FLY: gpu.func @rms_norm{{[a-z0-9_]*}}
// ISA: ; rms_norm 4x64 bf16+residual+rstd weight bf16 cast before weight align 16
// ISA: .amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
// ISA: buffer_load_dword
// ISA: buffer_store_dword
// ISA: s_endpgm
func.func @norm(%x: !torch.vtensor<[4,64],bf16>, %r: !torch.vtensor<[4,64],bf16>, %w: !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4],f32>) {
  %eps = torch.constant.float 1.000000e-06
  %y, %h, %rstd = "flycc.rms_norm"(%x, %eps, %w, %r) {weight_offset = false, cast_before_weight = true, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1>} : (!torch.vtensor<[4,64],bf16>, !torch.float, !torch.vtensor<[64],bf16>, !torch.vtensor<[4,64],bf16>) -> (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4],f32>)
  return %y, %h, %rstd : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4],f32>
}

// -----

// ISA: ; rms_norm_backward 4x64 bf16 weight bf16 align 16
// ISA: s_endpgm
func.func @gradients(%g: !torch.vtensor<[4,64],bf16>, %x: !torch.vtensor<[4,64],bf16>, %rstd: !torch.vtensor<[4],f32>, %w: !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[64],bf16>) {
  %dx, %dw = "flycc.rms_norm_backward"(%g, %x, %rstd, %w) {weight_offset = false, cast_before_weight = false, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[4,64],bf16>, !torch.vtensor<[4],f32>, !torch.vtensor<[64],bf16>) -> (!torch.vtensor<[4,64],bf16>, !torch.vtensor<[64],bf16>)
  return %dx, %dw : !torch.vtensor<[4,64],bf16>, !torch.vtensor<[64],bf16>
}

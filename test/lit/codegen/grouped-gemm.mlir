// A grouped product at the landmarks of its lowering; the binary is the same from any of them.
// RUN: flycc-opt %s --emit=fly -o %t.fly && filecheck %s --check-prefix=FLY --input-file %t.fly
// RUN: flycc-opt %t.fly --start-after=fly --emit=isa | filecheck %s --check-prefix=ISA
// RUN: flycc-opt %t.fly --start-after=fly --emit=hsaco -o %t.elf && flycc-opt %s --emit=hsaco -o %t.direct.elf && cmp %t.elf %t.direct.elf

// FLY: // grouped_gemm 2: *64x16x32 bf16 NN align 16/16/16
// FLY-NEXT: module
// FLY: gpu.func @grouped_m_gemm_bf16_nn{{[a-z0-9_]*}}
// FLY: fly.
// ISA: .amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
// ISA: grouped_m_gemm{{.*}}:
// ISA: v_mfma_f32_16x16x32_bf16
// ISA: s_endpgm
func.func @experts(%x: !torch.vtensor<[64,32],bf16>, %w: !torch.vtensor<[2,32,16],bf16>, %o: !torch.vtensor<[2],si32>) -> !torch.vtensor<[64,16],bf16> {
  %none = torch.constant.none
  %y = torch.operator "torch.aten._grouped_mm"(%x, %w, %o, %none, %none) : (!torch.vtensor<[64,32],bf16>, !torch.vtensor<[2,32,16],bf16>, !torch.vtensor<[2],si32>, !torch.none, !torch.none) -> !torch.vtensor<[64,16],bf16>
  return %y : !torch.vtensor<[64,16],bf16>
}

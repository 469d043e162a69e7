// A GEMM at every landmark of its lowering, each made from the one before; the binary is the same from any of them.
// RUN: flycc-opt %s --emit=fly -o %t.fly && filecheck %s --check-prefix=FLY --input-file %t.fly
// RUN: flycc-opt %t.fly --start-after=fly --emit=rocdl -o %t.rocdl && filecheck %s --check-prefix=ROCDL --input-file %t.rocdl
// RUN: flycc-opt %t.rocdl --start-after=rocdl --emit=llvm | filecheck %s --check-prefix=LLVM
// RUN: flycc-opt %t.rocdl --start-after=rocdl --emit=isa | filecheck %s --check-prefix=ISA
// RUN: flycc-opt %t.rocdl --start-after=rocdl --emit=hsaco -o %t.elf && flycc-opt %s --emit=hsaco -o %t.direct.elf && cmp %t.elf %t.direct.elf

// FLY: // gemm 64x64x64 bf16 NT align 16/16/16
// FLY: gpu.module @kernels
// FLY: gpu.func @[[KERNEL:gemm_bf16_nt[a-z0-9_]*]]({{.*}}!fly.ptr<bf16, global>
// FLY: fly.
// ROCDL: gpu.module @kernels [#rocdl.target<chip = "gfx950"
// ROCDL: llvm.func @gemm_bf16_nt
// ROCDL: rocdl.mfma
// LLVM: define amdgpu_kernel void @gemm_bf16_nt
// LLVM: @llvm.amdgcn.mfma
// ISA: .amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
// ISA: gemm_bf16_nt{{.*}}:
// ISA: v_mfma_f32_16x16x32_bf16
// ISA: s_endpgm
func.func @linear(%x: !torch.vtensor<[64,64],bf16>, %w: !torch.vtensor<[64,64],bf16>) -> !torch.vtensor<[64,64],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[64,64],bf16> -> !torch.vtensor<[64,64],bf16>
  %y = torch.aten.mm %x, %t : !torch.vtensor<[64,64],bf16>, !torch.vtensor<[64,64],bf16> -> !torch.vtensor<[64,64],bf16>
  return %y : !torch.vtensor<[64,64],bf16>
}

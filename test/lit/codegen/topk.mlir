// A selection at the landmarks of its lowering, from torch.topk; the binary is the same from any of them.
// RUN: flycc-opt %s --emit=fly -o %t.fly && filecheck %s --check-prefix=FLY --input-file %t.fly
// RUN: flycc-opt %t.fly --start-after=fly --emit=isa | filecheck %s --check-prefix=ISA
// RUN: flycc-opt %t.fly --start-after=fly --emit=hsaco -o %t.elf && flycc-opt %s --emit=hsaco -o %t.direct.elf && cmp %t.elf %t.direct.elf

// FLY: // topk 4x64 f32 k 3 largest align 16
// FLY-NEXT: module
// FLY: gpu.func @topk{{[a-z0-9_]*}}
// FLY: fly.
// ISA: .amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
// ISA: topk{{.*}}:
// ISA: s_endpgm
func.func @select(%x: !torch.vtensor<[4,64],f32>) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>) {
  %k = torch.constant.int 3
  %last = torch.constant.int -1
  %true = torch.constant.bool true
  %values, %indices = torch.aten.topk %x, %k, %last, %true, %true : !torch.vtensor<[4,64],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>
  return %values, %indices : !torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>
}

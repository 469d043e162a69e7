func.func @main(%x: !torch.vtensor<[5,64],bf16>, %w: !torch.vtensor<[256,64],bf16>) -> !torch.vtensor<[5,256],bf16> {
  %t = torch.aten.t %w : !torch.vtensor<[256,64],bf16> -> !torch.vtensor<[64,256],bf16>
  %y = torch.aten.mm %x, %t : !torch.vtensor<[5,64],bf16>, !torch.vtensor<[64,256],bf16> -> !torch.vtensor<[5,256],bf16>
  return %y : !torch.vtensor<[5,256],bf16>
}

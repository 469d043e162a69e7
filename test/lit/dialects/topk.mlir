// Round trip of flycc.topk: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// CHECK-LABEL: func.func @topk
// CHECK: "flycc.topk"(%arg0, %int3) {dim = 1 : i64, keep_dim = true, largest = true, sorted = false}
func.func @topk(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = false} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// Of another dimension, which goes.
// CHECK-LABEL: func.func @max
// CHECK: "flycc.topk"
// CHECK-SAME: -> (!torch.vtensor<[16],si32>, !torch.vtensor<[16],si64>)
func.func @max(%x: !torch.vtensor<[4,16],si32>) {
  %k = torch.constant.int 1
  %v, %i = "flycc.topk"(%x, %k) {dim = 0 : i64, keep_dim = false, largest = true, sorted = true} : (!torch.vtensor<[4,16],si32>, !torch.int) -> (!torch.vtensor<[16],si32>, !torch.vtensor<[16],si64>)
  return
}

// A run-time k and dynamic sizes.
// CHECK-LABEL: func.func @dynamic
// CHECK: "flycc.topk"(%arg0, %arg1)
func.func @dynamic(%x: !torch.vtensor<[?,?],bf16>, %k: !torch.int) {
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = false, sorted = true} : (!torch.vtensor<[?,?],bf16>, !torch.int) -> (!torch.vtensor<[?,?],bf16>, !torch.vtensor<[?,?],si64>)
  return
}

// Round trip of flycc.sdpa and its backward: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// CHECK-LABEL: func.func @all
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10) {dropout_p = 1.000000e-01 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>, softcap = 5.000000e+01 : f64}
func.func @all(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %lower: !torch.int, %upper: !torch.int, %mask: !torch.vtensor<[4,1,8],i1>, %query_documents: !torch.vtensor<[2,6],si32>, %key_documents: !torch.vtensor<[2,8],si64>, %slopes: !torch.vtensor<[4],f32>, %seed: !torch.vtensor<[2],si64>) {
  %o:2 = "flycc.sdpa"(%query, %key, %value, %scale, %lower, %upper, %mask, %query_documents, %key_documents, %slopes, %seed) {dropout_p = 0.1 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1>, softcap = 50.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.int, !torch.int, !torch.vtensor<[4,1,8],i1>, !torch.vtensor<[2,6],si32>, !torch.vtensor<[2,8],si64>, !torch.vtensor<[4],f32>, !torch.vtensor<[2],si64>) -> (!torch.vtensor<[2,4,6,16],bf16>, !torch.vtensor<[2,4,6],f32>)
  return
}

// No option, and no size known.
// CHECK-LABEL: func.func @least
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, %arg3)
func.func @least(%query: !torch.vtensor<[?,?,?,?],f16>, %key: !torch.vtensor<[?,?,?,?],f16>, %value: !torch.vtensor<[?,?,?,?],f16>, %scale: !torch.float) {
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[?,?,?,?],f16>, !torch.vtensor<[?,?,?,?],f16>, !torch.vtensor<[?,?,?,?],f16>, !torch.float) -> !torch.vtensor<[?,?,?,?],f16>
  return
}

// CHECK-LABEL: func.func @backward
// CHECK: "flycc.sdpa_backward"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8)
func.func @backward(%grad: !torch.vtensor<[2,4,6,16],bf16>, %query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %out: !torch.vtensor<[2,4,6,16],bf16>, %lse: !torch.vtensor<[2,4,6],f32>, %scale: !torch.float, %upper: !torch.int, %mask: !torch.vtensor<[8],f32>) {
  %d:3 = "flycc.sdpa_backward"(%grad, %query, %key, %value, %out, %lse, %scale, %upper, %mask) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 1>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,16],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.vtensor<[2,4,6,16],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.float, !torch.int, !torch.vtensor<[8],f32>) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>)
  return
}

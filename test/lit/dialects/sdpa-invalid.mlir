// Every message of the verifiers of flycc.sdpa and flycc.sdpa_backward.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// Operand segments that do not add up.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{operandSegmentSizes must be 1, 1, 1, 1, 0 or 1, 0 or 1, 0 or 1, 0 or 1, 0 or 1, 0 or 1, 0 or 1, 4 in all}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Types that no kernel takes.
func.func @op(%query: !torch.vtensor<[2,4,6,32],f32>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{element type of query must be one of bf16, f16, got f32}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],f32>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Types that differ.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],f16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{element type of key must be one of bf16, got f16}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],f16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// No heads.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{value must have rank 4 as query has, got [2, 8, 16]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Another batch.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[3,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{key must be [2, 2, 8, 32], got [3, 2, 8, 32]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[3,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Other keys than values.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,7,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{value must be [2, 2, 8, 16], got [2, 2, 7, 16]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,7,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Heads that do not divide.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,3,8,32],bf16>, %value: !torch.vtensor<[2,3,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{heads of query must be a multiple of those of key, got 4 and 3}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,3,8,32],bf16>, !torch.vtensor<[2,3,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// A head that is too wide.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,513],bf16>, %scale: !torch.float) {
  // expected-error @below {{the last dimension of value must be 1 to 512, got 513}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,513],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,513],bf16>
  return
}

// -----

// A result of another shape.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{out must be [2, 4, 6, 16], got [2, 4, 6, 32]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,32],bf16>
  return
}

// -----

// lse of another type.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{element type of lse must be one of f32, got bf16}}
  %o:2 = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> (!torch.vtensor<[2,4,6,16],bf16>, !torch.vtensor<[2,4,6],bf16>)
  return
}

// -----

// A mask of integers.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %mask: !torch.vtensor<[6,8],si64>) {
  // expected-error @below {{element type of mask must be one of i1, bf16, f16, f32, got si64}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %mask) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[6,8],si64>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// A mask that does not broadcast.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %mask: !torch.vtensor<[6,7],i1>) {
  // expected-error @below {{mask must be broadcastable to [2, 4, 6, 8], got [6, 7]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %mask) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[6,7],i1>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Documents of one side.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %query_documents: !torch.vtensor<[2,6],si32>) {
  // expected-error @below {{query_documents and key_documents must be there together}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %query_documents) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[2,6],si32>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Documents of another length.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %query_documents: !torch.vtensor<[2,6],si32>, %key_documents: !torch.vtensor<[2,6],si32>) {
  // expected-error @below {{key_documents must be [2, 8], got [2, 6]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %query_documents, %key_documents) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[2,6],si32>, !torch.vtensor<[2,6],si32>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// Slopes of other heads.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %slopes: !torch.vtensor<[2],f32>) {
  // expected-error @below {{slopes must be [4], got [2]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %slopes) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[2],f32>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// A seed that is none.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %seed: !torch.vtensor<[1],si64>) {
  // expected-error @below {{seed must be [2], got [1]}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %seed) {dropout_p = 0.5 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// No seed.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{seed must be there if, and only if, dropout_p is not 0}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.5 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// More than all dropped.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float, %seed: !torch.vtensor<[2],si64>) {
  // expected-error @below {{dropout_p must be 0 to 1, got 1.5}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale, %seed) {dropout_p = 1.5 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float, !torch.vtensor<[2],si64>) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// A negative cap.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %scale: !torch.float) {
  // expected-error @below {{softcap must be finite and not negative, got -1.0}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = -1.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// A scale that is no number.
func.func @op(%query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>) {
  %scale = torch.constant.float 0x7FF0000000000000
  // expected-error @below {{scale must be finite, got inf}}
  %o = "flycc.sdpa"(%query, %key, %value, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.float) -> !torch.vtensor<[2,4,6,16],bf16>
  return
}

// -----

// A gradient of another shape.
func.func @op(%grad: !torch.vtensor<[2,4,6,16],bf16>, %query: !torch.vtensor<[2,4,6,32],bf16>, %key: !torch.vtensor<[2,2,8,32],bf16>, %value: !torch.vtensor<[2,2,8,16],bf16>, %out: !torch.vtensor<[2,4,6,16],bf16>, %lse: !torch.vtensor<[2,4,6],f32>, %scale: !torch.float) {
  // expected-error @below {{dk must be [2, 2, 8, 32], got [2, 4, 8, 32]}}
  %d:3 = "flycc.sdpa_backward"(%grad, %query, %key, %value, %out, %lse, %scale) {dropout_p = 0.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 1>, softcap = 0.0 : f64} : (!torch.vtensor<[2,4,6,16],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,2,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>, !torch.vtensor<[2,4,6,16],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.float) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,8,32],bf16>, !torch.vtensor<[2,2,8,16],bf16>)
  return
}

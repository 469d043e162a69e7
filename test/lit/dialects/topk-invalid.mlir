// Every message of the verifier of flycc.topk.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// Unknown rank.
func.func @op(%x: !torch.vtensor<*,f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{x must be a value tensor of known rank and element type, got !torch.vtensor<*,f32>}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<*,f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// Element type.
func.func @op(%x: !torch.vtensor<[4,16],f64>) {
  %k = torch.constant.int 3
  // expected-error @below {{element type of x must be one of f32, bf16, f16, si32, got f64}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f64>, !torch.int) -> (!torch.vtensor<[4,3],f64>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// No dimension.
func.func @op(%x: !torch.vtensor<[],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{x must have rank 1 or more}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 0 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[],f32>, !torch.int) -> (!torch.vtensor<[],f32>, !torch.vtensor<[],si64>)
  return
}

// -----

// The dimension.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{dim must be 0 to 1, got 2}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 2 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// A result without the dimension has one place.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{k must be a constant 1 without keep_dim, got 3}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = false, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// The same, not known.
func.func @op(%x: !torch.vtensor<[4,16],f32>, %k: !torch.int) {
  // expected-error @below {{k must be a constant 1 without keep_dim, got a run-time value}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = false, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// More than there are.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 17
  // expected-error @below {{k must be 0 to 16, got 17}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,17],f32>, !torch.vtensor<[4,17],si64>)
  return
}

// -----

// Fewer than none.
func.func @op(%x: !torch.vtensor<[4,?],f32>) {
  %k = torch.constant.int -1
  // expected-error @below {{k must be 0 to the size of dim, got -1}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,?],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// Element type of the values.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{element type of values must be one of f32, got bf16}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],bf16>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// Element type of the indices.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{element type of indices must be one of si64, got si32}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si32>)
  return
}

// -----

// Shape of the values.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{values must be [4, 3], got [4, 4]}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,4],f32>, !torch.vtensor<[4,3],si64>)
  return
}

// -----

// Shape of the indices.
func.func @op(%x: !torch.vtensor<[4,16],f32>) {
  %k = torch.constant.int 3
  // expected-error @below {{indices must be [4, 3], got [4]}}
  %v, %i = "flycc.topk"(%x, %k) {dim = 1 : i64, keep_dim = true, largest = true, sorted = true} : (!torch.vtensor<[4,16],f32>, !torch.int) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4],si64>)
  return
}

// Every message of the verifiers of flycc.mx_quantize and flycc.mx_dequantize.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// A format that there is not.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{format must be one of e4m3, e5m2, e2m1, got "e3m4"}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e3m4", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// A rounding that there is not.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{rounding must be one of floor, even, ceil, got "up"}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "up"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// What is quantised.
func.func @quantize(%x: !torch.vtensor<[4,70],f64>) {
  // expected-error @below {{element type of x must be one of bf16, f16, f32, got f64}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[4,70],f64>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// Nothing to take blocks along.
func.func @quantize(%x: !torch.vtensor<[],bf16>) {
  // expected-error @below {{x must have rank 1 or more}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// The type of elements.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{element type of data must be one of f8E4M3FN, got f8E5M2}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E5M2>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// Two elements of e2m1 are a byte.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{data must be [4, 35], got [4, 70]}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e2m1", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f4E2M1FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// The type of scales.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{element type of scales must be one of f8E8M0FNU, got f32}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f32>, !torch.vtensor<[3],si32>)
  return
}

// -----

// A scale for each block.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{scales must be [4, 3], got [4, 2]}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

// -----

// The type of the range.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{element type of range must be one of si32, got si64}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si64>)
  return
}

// -----

// The size of the range.
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) {
  // expected-error @below {{range must be [3], got [2]}}
  %0:3 = "flycc.mx_quantize"(%x) {format = "e4m3", rounding = "floor"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[2],si32>)
  return
}

// -----

// What is dequantised.
func.func @dequantize(%d: !torch.vtensor<[4,70],bf16>, %s: !torch.vtensor<[4,3],f8E8M0FNU>) {
  // expected-error @below {{element type of data must be one of f8E4M3FN, f8E5M2, f4E2M1FN, got bf16}}
  %0 = "flycc.mx_dequantize"(%d, %s) : (!torch.vtensor<[4,70],bf16>, !torch.vtensor<[4,3],f8E8M0FNU>) -> !torch.vtensor<[4,70],bf16>
  return
}

// -----

// Nothing with blocks.
func.func @dequantize(%d: !torch.vtensor<[],f8E5M2>, %s: !torch.vtensor<[4,3],f8E8M0FNU>) {
  // expected-error @below {{data must have rank 1 or more}}
  %0 = "flycc.mx_dequantize"(%d, %s) : (!torch.vtensor<[],f8E5M2>, !torch.vtensor<[4,3],f8E8M0FNU>) -> !torch.vtensor<[4,70],bf16>
  return
}

// -----

// Scales of elements.
func.func @dequantize(%d: !torch.vtensor<[4,35],f4E2M1FN>, %s: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{scales must be [4, 3], got [4, 2]}}
  %0 = "flycc.mx_dequantize"(%d, %s) : (!torch.vtensor<[4,35],f4E2M1FN>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[4,70],bf16>
  return
}

// -----

// The type of the result.
func.func @dequantize(%d: !torch.vtensor<[4,70],f8E4M3FN>, %s: !torch.vtensor<[4,3],f8E8M0FNU>) {
  // expected-error @below {{element type of result must be one of bf16, f16, f32, got f64}}
  %0 = "flycc.mx_dequantize"(%d, %s) : (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>) -> !torch.vtensor<[4,70],f64>
  return
}

// -----

// The shape of the result.
func.func @dequantize(%d: !torch.vtensor<[4,35],f4E2M1FN>, %s: !torch.vtensor<[4,3],f8E8M0FNU>) {
  // expected-error @below {{result must be [4, 70], got [4, 35]}}
  %0 = "flycc.mx_dequantize"(%d, %s) : (!torch.vtensor<[4,35],f4E2M1FN>, !torch.vtensor<[4,3],f8E8M0FNU>) -> !torch.vtensor<[4,35],bf16>
  return
}

// Round trip of flycc.mx_quantize and flycc.mx_dequantize: what is printed parses to the same text.
// RUN: flycc-opt %s -o %t && flycc-opt %t | diff %t - && filecheck %s --input-file %t

// CHECK-LABEL: func.func @both
// CHECK: %0:3 = "flycc.mx_quantize"(%arg0) {format = "e2m1", rounding = "even"}
// CHECK: "flycc.mx_dequantize"(%0#0, %0#1)
func.func @both(%x: !torch.vtensor<[4,70],bf16>) -> !torch.vtensor<[4,70],f32> {
  %d, %s, %r = "flycc.mx_quantize"(%x) {format = "e2m1", rounding = "even"} : (!torch.vtensor<[4,70],bf16>) -> (!torch.vtensor<[4,35],f4E2M1FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  %y = "flycc.mx_dequantize"(%d, %s) : (!torch.vtensor<[4,35],f4E2M1FN>, !torch.vtensor<[4,3],f8E8M0FNU>) -> !torch.vtensor<[4,70],f32>
  return %y : !torch.vtensor<[4,70],f32>
}

// An odd number of elements, sizes that are not known.
// CHECK-LABEL: func.func @sizes
// CHECK: "flycc.mx_quantize"
// CHECK: "flycc.mx_quantize"
func.func @sizes(%x: !torch.vtensor<[33],f16>, %y: !torch.vtensor<[?,2,?],f32>) {
  %0:3 = "flycc.mx_quantize"(%x) {format = "e2m1", rounding = "floor"} : (!torch.vtensor<[33],f16>) -> (!torch.vtensor<[17],f4E2M1FN>, !torch.vtensor<[2],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  %1:3 = "flycc.mx_quantize"(%y) {format = "e5m2", rounding = "ceil"} : (!torch.vtensor<[?,2,?],f32>) -> (!torch.vtensor<[?,2,?],f8E5M2>, !torch.vtensor<[?,2,?],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return
}

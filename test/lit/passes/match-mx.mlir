// What match-mx raises.
// RUN: flycc-opt %s --match-mx --flycc-dce | filecheck %s

// Results that nobody uses are still results.
// CHECK-LABEL: func.func @quantize
// CHECK: %[[Q:.*]]:3 = "flycc.mx_quantize"(%arg0) {flycc.consumed = ["q"], flycc.results = {{\[\[}}"q#0"], ["q#1"], ["q#2"]],
// CHECK-SAME: format = "e2m1", rounding = "even"}
// CHECK-NEXT: return %[[Q]]#0
func.func @quantize(%x: !torch.vtensor<[4,70],bf16>) -> !torch.vtensor<[4,35],f4E2M1FN> {
  %e2m1 = torch.constant.str "e2m1"
  %even = torch.constant.str "even"
  %q:3 = torch.operator "torch.flycc.mx_quantize"(%x, %e2m1, %even) {flycc.node = "q", flycc.shapes = [["4", "35"], ["4", "3"], ["3"]]} : (!torch.vtensor<[4,70],bf16>, !torch.str, !torch.str) -> (!torch.vtensor<[4,35],f4E2M1FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.vtensor<[3],si32>)
  return %q#0 : !torch.vtensor<[4,35],f4E2M1FN>
}

// CHECK-LABEL: func.func @dequantize
// CHECK: "flycc.mx_dequantize"(%arg0, %arg1)
func.func @dequantize(%d: !torch.vtensor<[4,70],f8E4M3FN>, %s: !torch.vtensor<[4,3],f8E8M0FNU>) -> !torch.vtensor<[4,70],bf16> {
  %bf16 = torch.constant.int 15
  %y = torch.operator "torch.flycc.mx_dequantize"(%d, %s, %bf16) : (!torch.vtensor<[4,70],f8E4M3FN>, !torch.vtensor<[4,3],f8E8M0FNU>, !torch.int) -> !torch.vtensor<[4,70],bf16>
  return %y : !torch.vtensor<[4,70],bf16>
}

// Guards and versioned results that the verifiers accept.
// RUN: flycc-opt %s | filecheck %s

// Of scales and of a range, with both forms.
// CHECK-LABEL: func.func @both
// CHECK: %[[G:.*]] = "flycc.scale_guard"(%arg0, %arg1)
// CHECK-SAME: placement = "element"
// CHECK-SAME: tree = "any"
// CHECK-NEXT: "flycc.versioned"(%[[G]])
func.func @both(%sa: !torch.vtensor<[4,2],f8E8M0FNU>, %sb: !torch.vtensor<[3],si32>, %x: !torch.vtensor<[4,16],bf16>, %y: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %g = "flycc.scale_guard"(%sa, %sb) {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 0 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[3],si32>) -> !torch.vtensor<[],i1>
  %r = "flycc.versioned"(%g) ({
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],bf16>) -> ()
  }, {
    "flycc.yield"(%y) : (!torch.vtensor<[4,16],bf16>) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!torch.vtensor<[],i1>) -> !torch.vtensor<[4,16],bf16>
  return %r : !torch.vtensor<[4,16],bf16>
}

// One operand has scales; and a form that nothing guards.
// CHECK-LABEL: func.func @relaxed
// CHECK: "flycc.scale_guard"(%arg0)
// CHECK: "flycc.versioned"()
func.func @relaxed(%sb: !torch.vtensor<[?,?],f8E8M0FNU>, %x: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %g = "flycc.scale_guard"(%sb) {placement = "hoisted", tree = "mfma", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 508 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 0, 1>} : (!torch.vtensor<[?,?],f8E8M0FNU>) -> !torch.vtensor<[],i1>
  %r = "flycc.versioned"() ({
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],f32>) -> ()
  }, {
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],f32>) -> ()
  }) {operandSegmentSizes = array<i32: 0>} : () -> !torch.vtensor<[4,16],f32>
  return %r : !torch.vtensor<[4,16],f32>
}

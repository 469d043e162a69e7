// Every message of the verifiers of flycc.scale_guard and flycc.versioned.
// RUN: flycc-opt %s --split-input-file --verify-diagnostics

// A placement whose tree is not stated.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{flycc.scale_guard: tree must be stated: what "element" is equal to depends on it}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[],i1>
  return
}

// -----

// A placement that there is not.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{placement must be one of element, product, one_sided, block, operand, hoisted, got nowhere}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "nowhere", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[],i1>
  return
}

// -----

// A tree that there is not.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{tree must be one of mfma, balanced, chain, any, got bush}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", tree = "bush", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[],i1>
  return
}

// -----

// A bound beyond the bytes.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{b_max must be from 0 to 254, got 255}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 255 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[],i1>
  return
}

// -----

// Nothing to ask.
func.func @guard() {
  // expected-error @below {{a or b must be given: without, nothing is left to ask at run time}}
  %g = "flycc.scale_guard"() {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 0, 0>} : () -> !torch.vtensor<[],i1>
  return
}

// -----

// Scales that are no E8M0 bytes.
func.func @guard(%x0: !torch.vtensor<[4,2],f32>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{a must be of f8E8M0FNU, or a range of si32 [3], got f32[4, 2]}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f32>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[],i1>
  return
}

// -----

// A range of more than three numbers.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4],si32>) {
  // expected-error @below {{b, a range, must be [3], got [4]}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4],si32>) -> !torch.vtensor<[],i1>
  return
}

// -----

// A verdict that is no truth value.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{element type of result must be i1, got si32}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[],si32>
  return
}

// -----

// Many verdicts.
func.func @guard(%x0: !torch.vtensor<[4,2],f8E8M0FNU>, %x1: !torch.vtensor<[4,2],f8E8M0FNU>) {
  // expected-error @below {{result must be [], got [2]}}
  %g = "flycc.scale_guard"(%x0, %x1) {placement = "element", tree = "any", a_min = 0 : i64, a_max = 254 : i64, b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 508 : i64, spread = 4 : i64, a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>} : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[4,2],f8E8M0FNU>) -> !torch.vtensor<[2],i1>
  return
}

// -----

// A guard that is no truth value.
func.func @versioned(%g: !torch.vtensor<[1],i1>, %x: !torch.vtensor<[4,16],bf16>, %y: !torch.vtensor<[4,16],f32>) {
  // expected-error @below {{guard must be !torch.vtensor<[],i1>, got !torch.vtensor<[1],i1>}}
  %r = "flycc.versioned"(%g) ({
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],bf16>) -> ()
  }, {
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],bf16>) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!torch.vtensor<[1],i1>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A form of another type.
func.func @versioned(%g: !torch.vtensor<[],i1>, %x: !torch.vtensor<[4,16],bf16>, %y: !torch.vtensor<[4,16],f32>) {
  // expected-error @below {{written must yield the type of the result, !torch.vtensor<[4,16],bf16>, got !torch.vtensor<[4,16],f32>}}
  %r = "flycc.versioned"(%g) ({
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],bf16>) -> ()
  }, {
    "flycc.yield"(%y) : (!torch.vtensor<[4,16],f32>) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!torch.vtensor<[],i1>) -> !torch.vtensor<[4,16],bf16>
  return
}

// -----

// A form that ends with something else.
func.func @versioned(%g: !torch.vtensor<[],i1>, %x: !torch.vtensor<[4,16],bf16>, %y: !torch.vtensor<[4,16],f32>) {
  // expected-error @below {{guarded must end with a flycc.yield}}
  %r = "flycc.versioned"(%g) ({
    %z = torch.constant.int 1
  }, {
    "flycc.yield"(%x) : (!torch.vtensor<[4,16],bf16>) -> ()
  }) {operandSegmentSizes = array<i32: 1>} : (!torch.vtensor<[],i1>) -> !torch.vtensor<[4,16],bf16>
  return
}

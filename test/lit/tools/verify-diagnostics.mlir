// --verify-diagnostics itself: an expectation not met and an error not expected both fail.
// RUN: not flycc-opt %s --split-input-file --verify-diagnostics 2>&1 | filecheck %s
// CHECK: verify-diagnostics.mlir:9:1: error: expected error not seen: there is none
// CHECK-NEXT: verify-diagnostics.mlir:17:1: error: expected error not seen: something else
// CHECK-NEXT: verify-diagnostics.mlir:24:{{[0-9]+}}: error: unexpected: operation being parsed with an unregistered dialect
// CHECK-NOT: error
func.func @fine() {
  // expected-error @+1 {{there is none}}
  return
}

// -----

func.func @met_and_not_met() {
  // expected-error @+2 {{unregistered dialect}}
  // expected-error @below {{something else}}
  "mine.op"() : () -> ()
  return
}

// -----

func.func @unexpected() {
  "mine.op"() : () -> ()
  return
}

// -----

func.func @same_line() {
  "mine.op"() : () -> () // expected-error {{unregistered dialect}}
  return
}

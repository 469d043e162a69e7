// What looks like attention, and the reason why match-sdpa does not raise it; gradients of more of PyTorch's ops.
// RUN: flycc-opt %s --match-sdpa --flycc-dce | filecheck %s

// No softcap: what goes into tanh and what comes out are scaled by other numbers.
// CHECK-LABEL: func.func @softcap
// CHECK: torch.aten._softmax {{.*}}its softcap is not cap * tanh(scores / cap){{.*}}sdpa.softcap
func.func @softcap(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %a = torch.aten.mul.Scalar %s, %quarter : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %b = torch.aten.tanh %a : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.mul.Scalar %b, %three : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A softcap that is scaled again.
// CHECK-LABEL: func.func @softcap_scaled
// CHECK: torch.aten._softmax {{.*}}its softcap is followed by another factor{{.*}}sdpa.softcap
func.func @softcap_scaled(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %a = torch.aten.div.Scalar %s, %three : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %b = torch.aten.tanh %a : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %c = torch.aten.mul.Scalar %b, %three : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.mul.Scalar %c, %quarter : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Scores times a tensor.
// CHECK-LABEL: func.func @tensor
// CHECK: torch.aten._softmax {{.*}}aten.mul.Tensor stands between its scores and the softmax{{.*}}sdpa.form
func.func @tensor(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[6,1,1],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.mul.Tensor %s, %m : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[6,1,1],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Scores that are turned around.
// CHECK-LABEL: func.func @negative
// CHECK: torch.aten._softmax {{.*}}its scores are multiplied with -3.0; a positive number is needed{{.*}}sdpa.scale
func.func @negative(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %minus = torch.constant.float -3.000000e+00
  %x = torch.aten.mul.Scalar %s, %minus : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A mask that is added with a factor.
// CHECK-LABEL: func.func @alpha
// CHECK: torch.aten._softmax {{.*}}what is added to its scores is multiplied with alpha{{.*}}sdpa.mask
func.func @alpha(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %two = torch.constant.int 2
  %x = torch.aten.add.Tensor %s, %m, %two : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Scores of keys by queries.
// CHECK-LABEL: func.func @turned
// CHECK: torch.aten._softmax {{.*}}its scores are rearranged, or broadcast, before the softmax{{.*}}sdpa.form
func.func @turned(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %rows = torch.constant.int -2
  %x = torch.aten.transpose.int %s, %rows, %last : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A mask of integers.
// CHECK-LABEL: func.func @not_masked_by_numbers
// CHECK: torch.aten._softmax {{.*}}its mask is !torch.vtensor<[5,5],si64>; bools or floats are needed{{.*}}sdpa.mask
func.func @not_masked_by_numbers(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],si64>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %quarter = torch.constant.float 2.500000e-01
  %three = torch.constant.float 3.000000e+00
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.add.Tensor %s, %m, %one : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],si64>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Gradients of memory-efficient attention.
// CHECK-LABEL: func.func @efficient_backward
// CHECK: "flycc.sdpa_backward"(%arg0, %arg1, %arg2, %arg3, %arg5, %arg6, %{{.*}}, %arg4)
func.func @efficient_backward(%g: !torch.vtensor<[2,4,6,32],bf16>, %q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>, %out: !torch.vtensor<[2,4,6,32],bf16>, %lse: !torch.vtensor<[2,4,6],f32>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %o:4 = torch.operator "torch.aten._scaled_dot_product_efficient_attention_backward"(%g, %q, %k, %v, %bias, %out, %lse, %none, %none, %zero, %true, %true, %true, %false, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.float, !torch.bool, !torch.bool, !torch.bool, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Its lse as CUDA pads it.
// CHECK-LABEL: func.func @efficient_padded
// CHECK: torch.operator {{.*}}its lse is [2, 4, 32]; that of [2, 4, 6, 32] without the last size is needed{{.*}}sdpa.lse
func.func @efficient_padded(%g: !torch.vtensor<[2,4,6,32],bf16>, %q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>, %out: !torch.vtensor<[2,4,6,32],bf16>, %lse: !torch.vtensor<[2,4,32],f32>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %o:4 = torch.operator "torch.aten._scaled_dot_product_efficient_attention_backward"(%g, %q, %k, %v, %bias, %out, %lse, %none, %none, %zero, %true, %true, %true, %false, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,32],f32>, !torch.none, !torch.none, !torch.float, !torch.bool, !torch.bool, !torch.bool, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// The gradient of a mask.
// CHECK-LABEL: func.func @efficient_bias
// CHECK: torch.operator {{.*}}the gradient of its mask is used, which kernels do not make{{.*}}sdpa.results
func.func @efficient_bias(%g: !torch.vtensor<[2,4,6,32],bf16>, %q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>, %out: !torch.vtensor<[2,4,6,32],bf16>, %lse: !torch.vtensor<[2,4,6],f32>) -> !torch.vtensor<[2,1,6,6],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %o:4 = torch.operator "torch.aten._scaled_dot_product_efficient_attention_backward"(%g, %q, %k, %v, %bias, %out, %lse, %none, %none, %zero, %true, %true, %true, %false, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.float, !torch.bool, !torch.bool, !torch.bool, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>)
  return %o#3 : !torch.vtensor<[2,1,6,6],bf16>
}

// Weights that are scaled before they meet V.
// CHECK-LABEL: func.func @scaled_weights
// CHECK: torch.aten._softmax {{.*}}aten.mul.Scalar changes its weights before they meet the values{{.*}}sdpa.weights
func.func @scaled_weights(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %false = torch.constant.bool false
  %three = torch.constant.float 3.000000e+00
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %s, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %w = torch.aten.mul.Scalar %p, %three : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %w, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Weights that come from their logarithms.
// CHECK-LABEL: func.func @logarithms
// CHECK: torch.aten._log_softmax {{.*}}aten.exp changes its weights before they meet the values{{.*}}sdpa.weights
func.func @logarithms(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %false = torch.constant.bool false
  %three = torch.constant.float 3.000000e+00
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._log_softmax %s, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %w = torch.aten.exp %p : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %w, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Scores of which the least gets most weight.
// CHECK-LABEL: func.func @negated
// CHECK: torch.aten._softmax {{.*}}aten.neg stands between its scores and the softmax{{.*}}sdpa.form
func.func @negated(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %false = torch.constant.bool false
  %three = torch.constant.float 3.000000e+00
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %n = torch.aten.neg %s : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %w = torch.aten._softmax %n, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %w, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A gated layer is no attention: what a softmax gives meets another product before the last one.
// CHECK-LABEL: func.func @gated
// CHECK-NOT: sdpa
func.func @gated(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %false = torch.constant.bool false
  %three = torch.constant.float 3.000000e+00
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %s, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %g = torch.aten.matmul %v, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %w = torch.aten.mul.Tensor %p, %g : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %w, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Nor are logarithms that a product reads, or weights that it reads the other way round, as experts are given rows.
// CHECK-LABEL: func.func @other_products
// CHECK-NOT: sdpa
func.func @other_products(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,7],bf16>, %v: !torch.vtensor<[2,6,7,16],bf16>) -> (!torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,7,16],bf16>) {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %false = torch.constant.bool false
  %three = torch.constant.float 3.000000e+00
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,7],bf16> -> !torch.vtensor<[2,6,5,7],bf16>
  %l = torch.aten._log_softmax %s, %last, %false : !torch.vtensor<[2,6,5,7],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,7],bf16>
  %a = torch.aten.matmul %l, %v : !torch.vtensor<[2,6,5,7],bf16>, !torch.vtensor<[2,6,7,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  %p = torch.aten._softmax %s, %last, %false : !torch.vtensor<[2,6,5,7],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,7],bf16>
  %m = torch.aten.mul.Scalar %p, %three : !torch.vtensor<[2,6,5,7],bf16>, !torch.float -> !torch.vtensor<[2,6,5,7],bf16>
  %t = torch.aten.transpose.int %m, %last, %rows : !torch.vtensor<[2,6,5,7],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,6,7,5],bf16>
  %b = torch.aten.matmul %t, %q : !torch.vtensor<[2,6,7,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,7,16],bf16>
  return %a, %b : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,7,16],bf16>
}

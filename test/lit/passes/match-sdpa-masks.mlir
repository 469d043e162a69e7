// Masks of attention: what match-sdpa knows to be a band, and what it loads.
// RUN: flycc-opt %s --match-sdpa --flycc-dce | filecheck %s

// Everything above the diagonal of a tril.
// CHECK-LABEL: func.func @tril
// CHECK: "flycc.sdpa"(%arg0, %{{.*}}, %arg2, %{{.*}}, %{{.*}}) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>
func.func @tril(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %seen = torch.aten.tril %ones, %zero : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %hidden = torch.aten.logical_not %seen : !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %x = torch.aten.masked_fill.Scalar %s, %hidden, %inf : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A finite fill above a diagonal: every query sees itself.
// CHECK-LABEL: func.func @triu
// CHECK: "flycc.sdpa"({{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>
func.func @triu(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %later = torch.aten.triu %ones, %one : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %x = torch.aten.masked_fill.Scalar %s, %later, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Strictly causal: the first query sees nothing, and with a finite fill has equal weights, which no band says.
// CHECK-LABEL: func.func @first_sees_none
// CHECK: torch.aten.mul.Scalar %{{.*}}, %float-3.000000e38
// CHECK: "flycc.sdpa"({{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @first_sees_none(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %later = torch.aten.triu %ones, %zero : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %x = torch.aten.masked_fill.Scalar %s, %later, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Causal, and what only the run knows: it is loaded, and the band says what need not be looked at.
// CHECK-LABEL: func.func @part
// CHECK: %[[BOTH:.*]] = torch.aten.logical_and
// CHECK: %[[NOT:.*]] = torch.aten.logical_not %[[BOTH]]
// CHECK: "flycc.sdpa"({{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0>
func.func @part(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %seen = torch.aten.tril %ones, %zero : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %both = torch.aten.logical_and %seen, %m : !torch.vtensor<[5,5],i1>, !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %hidden = torch.aten.logical_not %both : !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %x = torch.aten.masked_fill.Scalar %s, %hidden, %inf : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// The same with a finite fill: a query may see nothing, so that all keys count.
// CHECK-LABEL: func.func @finite_part
// CHECK: "flycc.sdpa"({{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @finite_part(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %seen = torch.aten.tril %ones, %zero : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %both = torch.aten.logical_and %seen, %m : !torch.vtensor<[5,5],i1>, !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %hidden = torch.aten.logical_not %both : !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %x = torch.aten.masked_fill.Scalar %s, %hidden, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Two fills of one number hide what one of them hides.
// CHECK-LABEL: func.func @twice
// CHECK: %[[EITHER:.*]] = torch.aten.logical_or
// CHECK: torch.aten._to_copy %[[EITHER]]
// CHECK: "flycc.sdpa"({{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @twice(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %later = torch.aten.triu %ones, %one : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %y = torch.aten.masked_fill.Scalar %s, %later, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.masked_fill.Scalar %y, %m, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Fills of two numbers.
// CHECK-LABEL: func.func @two_numbers
// CHECK: torch.aten._softmax {{.*}}masked scores become -1e+30, -1e+09, one after the other; one number but for -inf is needed{{.*}}sdpa.mask
func.func @two_numbers(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
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
  %other = torch.constant.float -1.000000e+09
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %bool = torch.constant.int 11
  %ones = torch.aten.ones %size, %bool, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5,5],i1>
  %later = torch.aten.triu %ones, %one : !torch.vtensor<[5,5],i1>, !torch.int -> !torch.vtensor<[5,5],i1>
  %y = torch.aten.masked_fill.Scalar %s, %later, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.masked_fill.Scalar %y, %m, %other : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Keys up to a query's position in a longer sequence, by a length that only the run knows; the mask of an op of PyTorch.
// CHECK-LABEL: func.func @run_time
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, %{{.*}}, %arg3) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>
func.func @run_time(%q: !torch.vtensor<[2,6,5,16],bf16>, %k: !torch.vtensor<[2,6,?,16],bf16> {flycc.shape = ["2", "6", "s0 + 5", "16"]}, %v: !torch.vtensor<[2,6,?,16],bf16> {flycc.shape = ["2", "6", "s0 + 5", "16"]}, %past: !torch.int {flycc.size = "s0"}, %keys: !torch.int {flycc.size = "s0 + 5"}) -> !torch.vtensor<[2,6,5,16],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %fzero = torch.constant.float 0.000000e+00
  %one = torch.constant.int 1
  %five = torch.constant.int 5
  %i = torch.aten.arange %five, %none, %none, %none, %none : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[5],si64>
  %at = torch.aten.add.Scalar %i, %past, %one : !torch.vtensor<[5],si64>, !torch.int, !torch.int -> !torch.vtensor<[5],si64>
  %row = torch.aten.unsqueeze %at, %one : !torch.vtensor<[5],si64>, !torch.int -> !torch.vtensor<[5,1],si64>
  %j = torch.aten.arange %keys, %none, %none, %none, %none {flycc.shape = ["s0 + 5"]} : !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[?],si64>
  %m = torch.aten.le.Tensor %j, %row {flycc.shape = ["5", "s0 + 5"]} : !torch.vtensor<[?],si64>, !torch.vtensor<[5,1],si64> -> !torch.vtensor<[5,?],i1>
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %fzero, %false, %m, %none) : (!torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,?,16],bf16>, !torch.vtensor<[2,6,?,16],bf16>, !torch.float, !torch.bool, !torch.vtensor<[5,?],i1>, !torch.none) -> (!torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,5],f32>)
  return %o#0 : !torch.vtensor<[2,6,5,16],bf16>
}

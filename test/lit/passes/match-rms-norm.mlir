// What match-rms-norm raises, and the reason it gives for what only looks like it.
// RUN: flycc-opt %s --match-rms-norm --flycc-dce | filecheck %s

// Llama, behind a residual addition: the sum is the op's second result.
// CHECK-LABEL: func.func @llama
// CHECK: %[[N:.*]]:2 = "flycc.rms_norm"(%arg0, %float{{.*}}, %arg2, %arg1) {cast_before_weight = true, operandSegmentSizes = array<i32: 1, 1, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 0>, weight_offset = false}
// CHECK-NEXT: return %[[N]]#0, %[[N]]#1
func.func @llama(%p: !torch.vtensor<[4,8],bf16>, %q: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>) {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %x = torch.aten.add.Tensor %p, %q, %one : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.int -> !torch.vtensor<[4,8],bf16>
  %h = torch.aten._to_copy %x, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[4,8],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,8],f32>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  %a = torch.aten.add.Scalar %m, %eps, %one : !torch.vtensor<[4,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[4,1],f32>
  %r = torch.aten.rsqrt %a : !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  %c = torch.aten._to_copy %n, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,8],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,8],bf16>
  %y = torch.aten.mul.Tensor %w, %c : !torch.vtensor<[8],bf16>, !torch.vtensor<[4,8],bf16> -> !torch.vtensor<[4,8],bf16>
  return %y, %x : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>
}

// Gemma: 1 + weight, and the cast last.
// CHECK-LABEL: func.func @gemma
// CHECK: %[[N:.*]] = "flycc.rms_norm"(%arg0, %float{{.*}}, %arg1) {cast_before_weight = false, {{.*}}weight_offset = true}
// CHECK-NEXT: return %[[N]]
func.func @gemma(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>) -> !torch.vtensor<[4,8],bf16> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %h = torch.aten._to_copy %x, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[4,8],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,8],f32>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  %a = torch.aten.add.Scalar %m, %eps, %one : !torch.vtensor<[4,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[4,1],f32>
  %r = torch.aten.rsqrt %a : !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  %v = torch.aten._to_copy %w, %f32, %none, %none, %none, %false, %none : !torch.vtensor<[8],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[8],f32>
  %o = torch.aten.add.Scalar %v, %one, %one : !torch.vtensor<[8],f32>, !torch.int, !torch.int -> !torch.vtensor<[8],f32>
  %s = torch.aten.mul.Tensor %n, %o : !torch.vtensor<[4,8],f32>, !torch.vtensor<[8],f32> -> !torch.vtensor<[4,8],f32>
  %y = torch.aten._to_copy %s, %bf16, %none, %none, %none, %false, %none : !torch.vtensor<[4,8],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[4,8],bf16>
  return %y : !torch.vtensor<[4,8],bf16>
}

// PyTorch's own, kept whole, with what its backward pass needs; and that.
// CHECK-LABEL: func.func @whole
// CHECK: "flycc.rms_norm"(%arg0, %float{{.*}}, %arg1) {{.*}}resultSegmentSizes = array<i32: 1, 0, 1>
// CHECK: "flycc.rms_norm_backward"(%arg2, %arg0, {{.*}}, %arg1)
// CHECK-NOT: torch.operator
func.func @whole(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>, %g: !torch.vtensor<[4,8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>) {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %eight = torch.constant.int 8
  %shape = torch.prim.ListConstruct %eight : (!torch.int) -> !torch.list<int>
  %y:2 = torch.operator "torch.flycc.rms_norm"(%x, %shape, %w, %none, %false, %false, %none) : (!torch.vtensor<[4,8],bf16>, !torch.list<int>, !torch.vtensor<[8],bf16>, !torch.none, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>)
  %d:2 = torch.operator "torch.flycc.rms_norm_backward"(%g, %x, %y#1, %shape, %w, %none, %false, %false, %none) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.list<int>, !torch.vtensor<[8],bf16>, !torch.none, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return %y#0, %d#0, %d#1 : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>
}

// A norm written by hand, kept whole: its flags come last, and the type of its result (here that of x).
// CHECK-LABEL: func.func @written
// CHECK: "flycc.rms_norm"(%arg0, %float{{.*}}, %arg1) {cast_before_weight = true, {{.*}}weight_offset = false}
// CHECK: "flycc.rms_norm_backward"(%arg2, %arg0, {{.*}}, %arg1) {cast_before_weight = false, {{.*}}weight_offset = true}
// CHECK-NOT: torch.operator
func.func @written(%x: !torch.vtensor<[4,8],bf16>, %w: !torch.vtensor<[8],bf16>, %g: !torch.vtensor<[4,8],bf16>) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>) {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %eps = torch.constant.float 1.000000e-06
  %bf16 = torch.constant.int 15
  %eight = torch.constant.int 8
  %shape = torch.prim.ListConstruct %eight : (!torch.int) -> !torch.list<int>
  %y:2 = torch.operator "torch.flycc.rms_norm"(%x, %shape, %w, %eps, %true, %false, %bf16) : (!torch.vtensor<[4,8],bf16>, !torch.list<int>, !torch.vtensor<[8],bf16>, !torch.float, !torch.bool, !torch.bool, !torch.int) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>)
  %d:2 = torch.operator "torch.flycc.rms_norm_backward"(%g, %x, %y#1, %shape, %w, %eps, %false, %true, %bf16) : (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4],f32>, !torch.list<int>, !torch.vtensor<[8],bf16>, !torch.float, !torch.bool, !torch.bool, !torch.int) -> (!torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>)
  return %y#0, %d#0, %d#1 : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16>
}

// CHECK-LABEL: func.func @eps_outside
// CHECK: torch.aten.mean.dim {{.*}}flycc.reason = "the root is added to, or clamped; eps belongs under it", flycc.reason_code = "rms-norm.eps-outside-root"
func.func @eps_outside(%h: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  %s = torch.aten.sqrt %m : !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,1],f32>
  %a = torch.aten.add.Scalar %s, %eps, %one : !torch.vtensor<[4,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.div.Tensor %h, %a : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  return %n : !torch.vtensor<[4,8],f32>
}

// What a kernel does not write is used elsewhere.
// CHECK-LABEL: func.func @intermediate
// CHECK: torch.aten.mean.dim {{.*}}flycc.reason_code = "rms-norm.intermediate"
func.func @intermediate(%h: !torch.vtensor<[4,8],f32>) -> (!torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32>) {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  %a = torch.aten.add.Scalar %m, %eps, %one : !torch.vtensor<[4,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[4,1],f32>
  %r = torch.aten.rsqrt %a : !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  return %n, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32>
}

// A mean of squares that makes no norm needs no reason.
// CHECK-LABEL: func.func @loss
// CHECK-NOT: flycc.reason
func.func @loss(%h: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,1],f32> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %f32 = torch.constant.int 6
  %bf16 = torch.constant.int 15
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  return %m : !torch.vtensor<[4,1],f32>
}

// The mean drops its dimension, which is put back later.
// CHECK-LABEL: func.func @unsqueezed
// CHECK: "flycc.rms_norm"(%arg0, %float{{.*}})
func.func @unsqueezed(%h: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %eight = torch.constant.int 8
  %f16 = torch.constant.int 5
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %false, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4],f32>
  %a = torch.aten.add.Scalar %m, %eps, %one : !torch.vtensor<[4],f32>, !torch.float, !torch.int -> !torch.vtensor<[4],f32>
  %i = torch.aten.rsqrt %a : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %r = torch.aten.unsqueeze %i, %last : !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  return %n : !torch.vtensor<[4,8],f32>
}

// A sum over the number of its terms is a mean.
// CHECK-LABEL: func.func @sum_over_n
// CHECK: "flycc.rms_norm"(%arg0, %float{{.*}})
func.func @sum_over_n(%h: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %eight = torch.constant.int 8
  %f16 = torch.constant.int 5
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %t = torch.aten.sum.dim_IntList %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  %m = torch.aten.div.Scalar %t, %eight : !torch.vtensor<[4,1],f32>, !torch.int -> !torch.vtensor<[4,1],f32>
  %a = torch.aten.add.Scalar %m, %eps, %one : !torch.vtensor<[4,1],f32>, !torch.float, !torch.int -> !torch.vtensor<[4,1],f32>
  %r = torch.aten.rsqrt %a : !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  return %n : !torch.vtensor<[4,8],f32>
}

// Statistics in f16 are not the kernel's.
// CHECK-LABEL: func.func @mean_in_f16
// CHECK: torch.aten.mean.dim {{.*}}flycc.reason_code = "rms-norm.statistics"
func.func @mean_in_f16(%h: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %eight = torch.constant.int 8
  %f16 = torch.constant.int 5
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %f16 : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.int -> !torch.vtensor<[4,1],f16>
  %a = torch.aten.add.Scalar %m, %eps, %one : !torch.vtensor<[4,1],f16>, !torch.float, !torch.int -> !torch.vtensor<[4,1],f16>
  %r = torch.aten.rsqrt %a : !torch.vtensor<[4,1],f16> -> !torch.vtensor<[4,1],f16>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f16> -> !torch.vtensor<[4,8],f32>
  return %n : !torch.vtensor<[4,8],f32>
}

// eps is a bound, not a term.
// CHECK-LABEL: func.func @clamped
// CHECK: torch.aten.mean.dim {{.*}}flycc.reason_code = "rms-norm.eps"
func.func @clamped(%h: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],f32> {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %eight = torch.constant.int 8
  %f16 = torch.constant.int 5
  %eps = torch.constant.float 1.000000e-06
  %last = torch.constant.int -1
  %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
  %sq = torch.aten.pow.Tensor_Scalar %h, %two : !torch.vtensor<[4,8],f32>, !torch.int -> !torch.vtensor<[4,8],f32>
  %m = torch.aten.mean.dim %sq, %dims, %true, %none : !torch.vtensor<[4,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[4,1],f32>
  %a = torch.aten.clamp_min %m, %eps : !torch.vtensor<[4,1],f32>, !torch.float -> !torch.vtensor<[4,1],f32>
  %r = torch.aten.rsqrt %a : !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,1],f32>
  %n = torch.aten.mul.Tensor %h, %r : !torch.vtensor<[4,8],f32>, !torch.vtensor<[4,1],f32> -> !torch.vtensor<[4,8],f32>
  return %n : !torch.vtensor<[4,8],f32>
}

// Every reason that match-gemm gives for leaving a product as it is.
// RUN: flycc-opt %s --match-gemm --flycc-dce | filecheck %s

// Element types.
// CHECK-LABEL: func.func @f32
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm: a is f32, b is f32, the result is f32; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @f32(%a: !torch.vtensor<[4,8],f32>, %b: !torch.vtensor<[8,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,8],f32>, !torch.vtensor<[8,16],f32> -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @f64
// CHECK: torch.aten.bmm {{.*}} {flycc.reason = "bmm: a is f64, b is f64, the result is f64; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @f64(%a: !torch.vtensor<[2,4,8],f64>, %b: !torch.vtensor<[2,8,16],f64>) -> !torch.vtensor<[2,4,16],f64> {
  %y = torch.aten.bmm %a, %b : !torch.vtensor<[2,4,8],f64>, !torch.vtensor<[2,8,16],f64> -> !torch.vtensor<[2,4,16],f64>
  return %y : !torch.vtensor<[2,4,16],f64>
}

// CHECK-LABEL: func.func @integers
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm: a is si64, b is si64, the result is si64; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @integers(%a: !torch.vtensor<[4,8],si64>, %b: !torch.vtensor<[8,16],si64>) -> !torch.vtensor<[4,16],si64> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,8],si64>, !torch.vtensor<[8,16],si64> -> !torch.vtensor<[4,16],si64>
  return %y : !torch.vtensor<[4,16],si64>
}

// CHECK-LABEL: func.func @mixed
// CHECK: torch.aten.matmul {{.*}} {flycc.reason = "matmul: a is bf16, b is f16, the result is f32; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @mixed(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],f16>) -> !torch.vtensor<[4,16],f32> {
  %y = torch.aten.matmul %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],f16> -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @wider_result
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm: a is bf16, b is bf16, the result is f32; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @wider_result(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],f32> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @wide_bias
// CHECK: torch.aten.addmm {{.*}} {flycc.reason = "addmm: a is bf16, b is bf16, the result is bf16, the bias is f32; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @wide_bias(%bias: !torch.vtensor<[16],f32>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 1
  %y = torch.aten.addmm %bias, %a, %b, %c0, %c0 : !torch.vtensor<[16],f32>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Factors.
// CHECK-LABEL: func.func @beta
// CHECK: torch.aten.addmm {{.*}} {flycc.reason = "addmm: beta is 2; only 0 and 1 are accepted", flycc.reason_code = "gemm.factor"}
func.func @beta(%bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 2
  %c1 = torch.constant.int 1
  %y = torch.aten.addmm %bias, %a, %b, %c0, %c1 : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @alpha
// CHECK: torch.aten.baddbmm {{.*}} {flycc.reason = "baddbmm: alpha is 0.0; a normal float32 constant is needed", flycc.reason_code = "gemm.factor"}
func.func @alpha(%bias: !torch.vtensor<[2,4,16],bf16>, %a: !torch.vtensor<[2,4,8],bf16>, %b: !torch.vtensor<[2,8,16],bf16>) -> !torch.vtensor<[2,4,16],bf16> {
  %c0 = torch.constant.int 1
  %c1 = torch.constant.float 0.0
  %y = torch.aten.baddbmm %bias, %a, %b, %c0, %c1 : !torch.vtensor<[2,4,16],bf16>, !torch.vtensor<[2,4,8],bf16>, !torch.vtensor<[2,8,16],bf16>, !torch.int, !torch.float -> !torch.vtensor<[2,4,16],bf16>
  return %y : !torch.vtensor<[2,4,16],bf16>
}

// CHECK-LABEL: func.func @run_time_alpha
// CHECK: torch.aten.addmm {{.*}} {flycc.reason = "addmm: alpha is a run-time value; a normal float32 constant is needed", flycc.reason_code = "gemm.factor"}
func.func @run_time_alpha(%alpha: !torch.int, %bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 1
  %y = torch.aten.addmm %bias, %a, %b, %c0, %alpha : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// A wide result with a wide bias: kernels add what has the operands' type.
// CHECK-LABEL: func.func @wide_result_and_bias
// CHECK: torch.operator "torch.aten.addmm.dtype"{{.*}} {flycc.reason = "addmm.dtype: a is bf16, b is bf16, the result is f32, the bias is f32; all must be bf16 or all f16", flycc.reason_code = "gemm.dtype"}
func.func @wide_result_and_bias(%bias: !torch.vtensor<[16],f32>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],f32> {
  %c0 = torch.constant.int 1
  %f32 = torch.constant.int 6
  %y = torch.operator "torch.aten.addmm.dtype"(%bias, %a, %b, %f32, %c0, %c0) : (!torch.vtensor<[16],f32>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int, !torch.int) -> !torch.vtensor<[4,16],f32>
  return %y : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @run_time_factor
// CHECK: torch.aten.addmm {{.*}} {flycc.reason = "addmm: beta is a run-time value; only 0 and 1 are accepted", flycc.reason_code = "gemm.factor"}
func.func @run_time_factor(%beta: !torch.int, %bias: !torch.vtensor<[16],bf16>, %a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %c0 = torch.constant.int 1
  %y = torch.aten.addmm %bias, %a, %b, %beta, %c0 : !torch.vtensor<[16],bf16>, !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// Vectors.
// CHECK-LABEL: func.func @vector_left
// CHECK: torch.aten.matmul {{.*}} {flycc.reason = "matmul of bf16[8] and bf16[8, 16]: both operands need two dimensions or more", flycc.reason_code = "gemm.rank"}
func.func @vector_left(%a: !torch.vtensor<[8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[16],bf16> {
  %y = torch.aten.matmul %a, %b : !torch.vtensor<[8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[16],bf16>
  return %y : !torch.vtensor<[16],bf16>
}

// CHECK-LABEL: func.func @vector_right
// CHECK: torch.aten.matmul {{.*}} {flycc.reason = "matmul of bf16[4, 8] and bf16[8]: both operands need two dimensions or more", flycc.reason_code = "gemm.rank"}
func.func @vector_right(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8],bf16>) -> !torch.vtensor<[4],bf16> {
  %y = torch.aten.matmul %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8],bf16> -> !torch.vtensor<[4],bf16>
  return %y : !torch.vtensor<[4],bf16>
}

// Empty sizes, of the sum and of the rows.
// CHECK-LABEL: func.func @empty_sum
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm of bf16[4, 0] and bf16[0, 16]: every size must be at least 1", flycc.reason_code = "gemm.empty"}
func.func @empty_sum(%a: !torch.vtensor<[4,0],bf16>, %b: !torch.vtensor<[0,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,0],bf16>, !torch.vtensor<[0,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @empty_rows
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm of bf16[0, 8] and bf16[8, 16]: every size must be at least 1", flycc.reason_code = "gemm.empty"}
func.func @empty_rows(%a: !torch.vtensor<[0,8],bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[0,16],bf16> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[0,8],bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[0,16],bf16>
  return %y : !torch.vtensor<[0,16],bf16>
}

// Types that say too little.
// CHECK-LABEL: func.func @unranked
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm: a is !torch.vtensor<*,bf16>; a value tensor of known rank is needed", flycc.reason_code = "gemm.type"}
func.func @unranked(%a: !torch.vtensor<*,bf16>, %b: !torch.vtensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<*,bf16>, !torch.vtensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

// CHECK-LABEL: func.func @not_a_value
// CHECK: torch.aten.mm {{.*}} {flycc.reason = "mm: b is !torch.tensor<[8,16],bf16>; a value tensor of known rank is needed", flycc.reason_code = "gemm.type"}
func.func @not_a_value(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.tensor<[8,16],bf16>) -> !torch.vtensor<[4,16],bf16> {
  %y = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.tensor<[8,16],bf16> -> !torch.vtensor<[4,16],bf16>
  return %y : !torch.vtensor<[4,16],bf16>
}

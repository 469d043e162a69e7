// What match-sdpa raises, and the reason it gives for what it does not.
// RUN: flycc-opt %s --match-sdpa --flycc-dce | filecheck %s

// flycc's composite, causal, nine heads to three; the scale is 1 / sqrt(64), and nobody reads lse.
// CHECK-LABEL: func.func @causal
// CHECK-DAG: %[[SCALE:.*]] = torch.constant.float 1.250000e-01
// CHECK-DAG: %[[UPPER:.*]] = torch.constant.int 0
// CHECK: %[[O:.*]] = "flycc.sdpa"(%arg0, %arg1, %arg2, %[[SCALE]], %[[UPPER]]) {dropout_p = 0.000000e+00 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>, softcap = 0.000000e+00 : f64}
// CHECK-NEXT: return %[[O]]
func.func @causal(%q: !torch.vtensor<[1,9,5,64],bf16>, %k: !torch.vtensor<[1,3,5,64],bf16>, %v: !torch.vtensor<[1,3,5,64],bf16>) -> !torch.vtensor<[1,9,5,64],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %o:2 = torch.operator "torch.flycc.sdpa"(%q, %k, %v, %false, %none, %true, %none, %true, %zero, %none, %none, %none, %none, %none, %none, %zero) : (!torch.vtensor<[1,9,5,64],bf16>, !torch.vtensor<[1,3,5,64],bf16>, !torch.vtensor<[1,3,5,64],bf16>, !torch.bool, !torch.none, !torch.bool, !torch.none, !torch.bool, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none, !torch.float) -> (!torch.vtensor<[1,9,5,64],bf16>, !torch.vtensor<[0],f32>)
  return %o#0 : !torch.vtensor<[1,9,5,64],bf16>
}

// All the composite takes, and its gradients; sizes and the band are known at run time.
// CHECK-LABEL: func.func @all
// CHECK: %[[O:.*]]:2 = "flycc.sdpa"(%arg0, %arg1, %arg2, %[[SCALE:.*]], %arg10, %arg11, %arg4, %arg5, %arg6, %arg7, %arg8) {dropout_p = 2.500000e-01 : f64, {{.*}}softcap = 3.000000e+01 : f64}
// CHECK: %[[D:.*]]:3 = "flycc.sdpa_backward"(%arg9, %arg0, %arg1, %arg2, %[[O]]#0, %[[O]]#1, %[[SCALE]], %arg10, %arg11, %arg4, %arg5, %arg6, %arg7, %arg8) {dropout_p = 2.500000e-01 : f64, {{.*}}softcap = 3.000000e+01 : f64}
// CHECK-NEXT: return %[[D]]#0, %[[D]]#1, %[[D]]#2
func.func @all(%q: !torch.vtensor<[2,4,?,32],f16>, %k: !torch.vtensor<[2,2,?,32],f16>, %v: !torch.vtensor<[2,2,?,16],f16>, %unused: !torch.int, %mask: !torch.vtensor<[4,1,?],i1>, %qd: !torch.vtensor<[2,?],si32>, %kd: !torch.vtensor<[2,?],si32>, %slopes: !torch.vtensor<[4],f32>, %seed: !torch.vtensor<[2],si64>, %g: !torch.vtensor<[2,4,?,16],f16>, %lower: !torch.int, %upper: !torch.int) -> (!torch.vtensor<[2,4,?,32],f16>, !torch.vtensor<[2,2,?,32],f16>, !torch.vtensor<[2,2,?,16],f16>) {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %scale = torch.constant.float 3.000000e-01
  %p = torch.constant.float 2.500000e-01
  %cap = torch.constant.float 3.000000e+01
  %o:2 = torch.operator "torch.flycc.sdpa"(%q, %k, %v, %true, %mask, %false, %scale, %true, %p, %seed, %qd, %kd, %slopes, %lower, %upper, %cap) : (!torch.vtensor<[2,4,?,32],f16>, !torch.vtensor<[2,2,?,32],f16>, !torch.vtensor<[2,2,?,16],f16>, !torch.bool, !torch.vtensor<[4,1,?],i1>, !torch.bool, !torch.float, !torch.bool, !torch.float, !torch.vtensor<[2],si64>, !torch.vtensor<[2,?],si32>, !torch.vtensor<[2,?],si32>, !torch.vtensor<[4],f32>, !torch.int, !torch.int, !torch.float) -> (!torch.vtensor<[2,4,?,16],f16>, !torch.vtensor<[2,4,?],f32>)
  %d:3 = torch.operator "torch.flycc.sdpa_backward"(%g, %q, %k, %v, %o#0, %o#1, %mask, %false, %scale, %true, %p, %seed, %qd, %kd, %slopes, %lower, %upper, %cap) : (!torch.vtensor<[2,4,?,16],f16>, !torch.vtensor<[2,4,?,32],f16>, !torch.vtensor<[2,2,?,32],f16>, !torch.vtensor<[2,2,?,16],f16>, !torch.vtensor<[2,4,?,16],f16>, !torch.vtensor<[2,4,?],f32>, !torch.vtensor<[4,1,?],i1>, !torch.bool, !torch.float, !torch.bool, !torch.float, !torch.vtensor<[2],si64>, !torch.vtensor<[2,?],si32>, !torch.vtensor<[2,?],si32>, !torch.vtensor<[4],f32>, !torch.int, !torch.int, !torch.float) -> (!torch.vtensor<[2,4,?,32],f16>, !torch.vtensor<[2,2,?,32],f16>, !torch.vtensor<[2,2,?,16],f16>)
  return %d#0, %d#1, %d#2 : !torch.vtensor<[2,4,?,32],f16>, !torch.vtensor<[2,2,?,32],f16>, !torch.vtensor<[2,2,?,16],f16>
}

// PyTorch's ops of devices.
// CHECK-LABEL: func.func @flash
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>
func.func @flash(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:9 = torch.operator "torch.aten._scaled_dot_product_flash_attention"(%q, %k, %v, %zero, %true, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.int, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Its last two results are dropout's.
// CHECK-LABEL: func.func @efficient
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @efficient(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:4 = torch.operator "torch.aten._scaled_dot_product_efficient_attention"(%q, %k, %v, %bias, %false, %zero, %false, %some) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>, !torch.bool, !torch.float, !torch.bool, !torch.float) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// With a mask of numbers.
// CHECK-LABEL: func.func @cudnn
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0>
func.func @cudnn(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:9 = torch.operator "torch.aten._scaled_dot_product_cudnn_attention"(%q, %k, %v, %bias, %false, %zero, %true, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>, !torch.bool, !torch.float, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.int, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// The one of other devices.
// CHECK-LABEL: func.func @overrideable
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0>
func.func @overrideable(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:9 = torch.operator "torch.aten._scaled_dot_product_fused_attention_overrideable"(%q, %k, %v, %none, %zero, %false, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.none, !torch.float, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.int, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// That of the CPU has its mask behind.
// CHECK-LABEL: func.func @cpu
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @cpu(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %bias, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.vtensor<[2,1,6,6],bf16>, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Gradients.
// CHECK-LABEL: func.func @cpu_backward
// CHECK: "flycc.sdpa_backward"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>
func.func @cpu_backward(%g: !torch.vtensor<[2,4,6,32],bf16>, %q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %out: !torch.vtensor<[2,4,6,32],bf16>, %lse: !torch.vtensor<[2,4,6],f32>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:3 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu_backward"(%g, %q, %k, %v, %out, %lse, %zero, %true, %none, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Gradients of a device.
// CHECK-LABEL: func.func @flash_backward
// CHECK: "flycc.sdpa_backward"(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>
func.func @flash_backward(%g: !torch.vtensor<[2,4,6,32],bf16>, %q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %out: !torch.vtensor<[2,4,6,32],bf16>, %lse: !torch.vtensor<[2,4,6],f32>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:3 = torch.operator "torch.aten._scaled_dot_product_flash_attention_backward"(%g, %q, %k, %v, %out, %lse, %none, %none, %six, %six, %zero, %true, %none, %none, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.int, !torch.int, !torch.float, !torch.bool, !torch.none, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Random numbers that only PyTorch draws.
// CHECK-LABEL: func.func @dropout
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: its random numbers are PyTorch's own, which kernels do not draw", flycc.reason_code = "sdpa.dropout"
func.func @dropout(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %some, %false, %none, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// A result that kernels do not give.
// CHECK-LABEL: func.func @debug_mask
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention: a mask for debugging is asked for", flycc.reason_code = "sdpa.option"
func.func @debug_mask(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:9 = torch.operator "torch.aten._scaled_dot_product_flash_attention"(%q, %k, %v, %zero, %true, %true, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.int, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Another one, used.
// CHECK-LABEL: func.func @other_results
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention: more is used of it than its output and lse", flycc.reason_code = "sdpa.results"
func.func @other_results(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2],si64> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:9 = torch.operator "torch.aten._scaled_dot_product_flash_attention"(%q, %k, %v, %zero, %true, %false, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.bool, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>, !torch.none, !torch.none, !torch.int, !torch.int, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>, !torch.vtensor<[2,4,6,32],bf16>)
  return %o#6 : !torch.vtensor<[2],si64>
}

// A mask of float64.
// CHECK-LABEL: func.func @mask_dtype
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: the mask is f64; it must be bool or a float", flycc.reason_code = "sdpa.mask"
func.func @mask_dtype(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %f64: !torch.vtensor<[6,6],f64>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %f64, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.vtensor<[6,6],f64>, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// A mask of other scores.
// CHECK-LABEL: func.func @mask_shape
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: mask must be broadcastable to [2, 4, 6, 6], got [5, 6]", flycc.reason_code = "sdpa.mask"
func.func @mask_shape(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bad: !torch.vtensor<[5,6],i1>) -> !torch.vtensor<[2,4,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %bad, %none) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.float, !torch.bool, !torch.vtensor<[5,6],i1>, !torch.none) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6],f32>)
  return %o#0 : !torch.vtensor<[2,4,6,32],bf16>
}

// Types that no kernel takes.
// CHECK-LABEL: func.func @dtype
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: query is f32; it must be one of bf16, f16", flycc.reason_code = "sdpa.dtype"
func.func @dtype(%q: !torch.vtensor<[2,4,6,32],f32>, %k: !torch.vtensor<[2,4,6,32],f32>, %v: !torch.vtensor<[2,4,6,32],f32>) -> !torch.vtensor<[2,4,6,32],f32> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %none, %none) : (!torch.vtensor<[2,4,6,32],f32>, !torch.vtensor<[2,4,6,32],f32>, !torch.vtensor<[2,4,6,32],f32>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,6,32],f32>, !torch.vtensor<[2,4],f32>)
  return %o#0 : !torch.vtensor<[2,4,6,32],f32>
}

// Without a batch, and with two sizes in its place.
// CHECK-LABEL: func.func @ranks
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, %{{.*}}, %arg3) {{.*}} -> !torch.vtensor<[6,5,32],bf16>
// CHECK: "flycc.sdpa"(%arg4, %arg5, %arg6, %{{.*}}) {{.*}} -> !torch.vtensor<[2,3,6,5,32],bf16>
func.func @ranks(%q: !torch.vtensor<[6,5,32],bf16>, %k: !torch.vtensor<[2,7,32],bf16>, %v: !torch.vtensor<[2,7,32],bf16>, %m: !torch.vtensor<[6,1,7],i1>, %q5: !torch.vtensor<[2,3,6,5,32],bf16>, %k5: !torch.vtensor<[2,3,1,7,32],bf16>, %v5: !torch.vtensor<[2,3,1,7,32],bf16>) -> (!torch.vtensor<[6,5,32],bf16>, !torch.vtensor<[2,3,6,5,32],bf16>) {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %o:2 = torch.operator "torch.flycc.sdpa"(%q, %k, %v, %false, %m, %false, %none, %true, %zero, %none, %none, %none, %none, %none, %none, %zero) : (!torch.vtensor<[6,5,32],bf16>, !torch.vtensor<[2,7,32],bf16>, !torch.vtensor<[2,7,32],bf16>, !torch.bool, !torch.vtensor<[6,1,7],i1>, !torch.bool, !torch.none, !torch.bool, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none, !torch.float) -> (!torch.vtensor<[6,5,32],bf16>, !torch.vtensor<[0],f32>)
  %p:2 = torch.operator "torch.flycc.sdpa"(%q5, %k5, %v5, %false, %none, %false, %none, %true, %zero, %none, %none, %none, %none, %none, %none, %zero) : (!torch.vtensor<[2,3,6,5,32],bf16>, !torch.vtensor<[2,3,1,7,32],bf16>, !torch.vtensor<[2,3,1,7,32],bf16>, !torch.bool, !torch.none, !torch.bool, !torch.none, !torch.bool, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none, !torch.float) -> (!torch.vtensor<[2,3,6,5,32],bf16>, !torch.vtensor<[0],f32>)
  return %o#0, %p#0 : !torch.vtensor<[6,5,32],bf16>, !torch.vtensor<[2,3,6,5,32],bf16>
}

// Sizes in the place of a batch that K has not.
// CHECK-LABEL: func.func @rank
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: key is [6, 32]; [..., length, dim] of the rank of query is needed", flycc.reason_code = "sdpa.rank"
func.func @rank(%q: !torch.vtensor<[2,6,32],bf16>, %k: !torch.vtensor<[6,32],bf16>, %v: !torch.vtensor<[2,6,32],bf16>) -> !torch.vtensor<[2,6,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %none, %none) : (!torch.vtensor<[2,6,32],bf16>, !torch.vtensor<[6,32],bf16>, !torch.vtensor<[2,6,32],bf16>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,6,32],bf16>, !torch.vtensor<[2,4],f32>)
  return %o#0 : !torch.vtensor<[2,6,32],bf16>
}

// Nothing to attend to.
// CHECK-LABEL: func.func @empty
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: query is [2, 4, 0, 32]; every size must be at least 1", flycc.reason_code = "sdpa.empty"
func.func @empty(%q: !torch.vtensor<[2,4,0,32],bf16>, %k: !torch.vtensor<[2,4,0,32],bf16>, %v: !torch.vtensor<[2,4,0,32],bf16>) -> !torch.vtensor<[2,4,0,32],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %none, %none) : (!torch.vtensor<[2,4,0,32],bf16>, !torch.vtensor<[2,4,0,32],bf16>, !torch.vtensor<[2,4,0,32],bf16>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,0,32],bf16>, !torch.vtensor<[2,4],f32>)
  return %o#0 : !torch.vtensor<[2,4,0,32],bf16>
}

// A head that is too wide.
// CHECK-LABEL: func.func @head_dim
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_flash_attention_for_cpu: query is [2, 4, 6, 513]; a head may have at most 512 elements", flycc.reason_code = "sdpa.head-dim"
func.func @head_dim(%q: !torch.vtensor<[2,4,6,513],bf16>, %k: !torch.vtensor<[2,4,6,513],bf16>, %v: !torch.vtensor<[2,4,6,513],bf16>) -> !torch.vtensor<[2,4,6,513],bf16> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:2 = torch.operator "torch.aten._scaled_dot_product_flash_attention_for_cpu"(%q, %k, %v, %zero, %false, %none, %none) : (!torch.vtensor<[2,4,6,513],bf16>, !torch.vtensor<[2,4,6,513],bf16>, !torch.vtensor<[2,4,6,513],bf16>, !torch.float, !torch.bool, !torch.none, !torch.none) -> (!torch.vtensor<[2,4,6,513],bf16>, !torch.vtensor<[2,4],f32>)
  return %o#0 : !torch.vtensor<[2,4,6,513],bf16>
}

// An lse that has more places than there are queries.
// CHECK-LABEL: func.func @padded_lse
// CHECK: torch.operator {{.*}}flycc.reason = "_scaled_dot_product_efficient_attention: its lse is used in a form that kernels do not give", flycc.reason_code = "sdpa.lse"
func.func @padded_lse(%q: !torch.vtensor<[2,4,6,32],bf16>, %k: !torch.vtensor<[2,4,6,32],bf16>, %v: !torch.vtensor<[2,4,6,32],bf16>, %bias: !torch.vtensor<[2,1,6,6],bf16>) -> !torch.vtensor<[2,4,32],f32> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %zero = torch.constant.float 0.000000e+00
  %some = torch.constant.float 5.000000e-01
  %six = torch.constant.int 6
  %o:4 = torch.operator "torch.aten._scaled_dot_product_efficient_attention"(%q, %k, %v, %bias, %false, %zero, %false, %some) : (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,1,6,6],bf16>, !torch.bool, !torch.float, !torch.bool, !torch.float) -> (!torch.vtensor<[2,4,6,32],bf16>, !torch.vtensor<[2,4,32],f32>, !torch.vtensor<[2],si64>, !torch.vtensor<[2],si64>)
  return %o#1 : !torch.vtensor<[2,4,32],f32>
}

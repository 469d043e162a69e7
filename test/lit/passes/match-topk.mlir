// What match-topk raises, and the reason it gives for the rest.
// RUN: flycc-opt %s --match-topk --flycc-dce | filecheck %s

// CHECK-LABEL: func.func @topk
// CHECK: "flycc.topk"(%arg0, %int3) {dim = 1 : i64, {{.*}}keep_dim = true, largest = false, sorted = true}
// CHECK-NOT: torch.aten.topk
func.func @topk(%x: !torch.vtensor<[4,16],f32>) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>) {
  %k = torch.constant.int 3
  %dim = torch.constant.int -1
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %v, %i = torch.aten.topk %x, %k, %dim, %false, %true {flycc.node = "topk", flycc.shapes = [["4", "3"], ["4", "3"]]} : !torch.vtensor<[4,16],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>
  return %v, %i : !torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>
}

// A stable sort of which the first places are used; the op stands for the slice.
// CHECK-LABEL: func.func @sort
// CHECK: flycc.consumed = ["sort", "slice"]
// CHECK-SAME: flycc.results = {{\[\[}}"slice"], []]
// CHECK-SAME: -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
// CHECK-NEXT: return
func.func @sort(%x: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,3],f32> {
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %k = torch.constant.int 3
  %true = torch.constant.bool true
  %s:2 = torch.operator "torch.aten.sort.stable"(%x, %true, %1, %true) {flycc.node = "sort", flycc.shapes = [["4", "16"], ["4", "16"]]} : (!torch.vtensor<[4,16],f32>, !torch.bool, !torch.int, !torch.bool) -> (!torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],si64>)
  %f = torch.aten.slice.Tensor %s#0, %1, %0, %k, %1 {flycc.node = "slice", flycc.shape = ["4", "3"]} : !torch.vtensor<[4,16],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[4,3],f32>
  return %f : !torch.vtensor<[4,3],f32>
}

// One of integers too wide to select from is none either: there was nothing to raise, whatever the operand.
// CHECK-LABEL: func.func @full_sort_of_si64
// CHECK: torch.aten.sort {{.*}}flycc.reason_code = "topk.full-sort"
func.func @full_sort_of_si64(%x: !torch.vtensor<[16],si64>) -> !torch.vtensor<[16],si64> {
  %0 = torch.constant.int 0
  %false = torch.constant.bool false
  %v, %i = torch.aten.sort %x, %0, %false : !torch.vtensor<[16],si64>, !torch.int, !torch.bool -> !torch.vtensor<[16],si64>, !torch.vtensor<[16],si64>
  return %i : !torch.vtensor<[16],si64>
}

// CHECK-LABEL: func.func @full_sort
// CHECK: torch.aten.sort {{.*}}flycc.reason_code = "topk.full-sort"
func.func @full_sort(%x: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,16],f32> {
  %1 = torch.constant.int 1
  %true = torch.constant.bool true
  %v, %i = torch.aten.sort %x, %1, %true : !torch.vtensor<[4,16],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4,16],f32>, !torch.vtensor<[4,16],si64>
  return %v : !torch.vtensor<[4,16],f32>
}

// CHECK-LABEL: func.func @max
// CHECK: "flycc.topk"{{.*}}dim = 0 : i64, {{.*}}keep_dim = false, largest = true
func.func @max(%x: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[16],si64> {
  %0 = torch.constant.int 0
  %false = torch.constant.bool false
  %v, %i = torch.aten.max.dim %x, %0, %false : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[16],bf16>, !torch.vtensor<[16],si64>
  return %i : !torch.vtensor<[16],si64>
}

// CHECK-LABEL: func.func @argmax
// CHECK: "flycc.topk"{{.*}}dim = 1 : i64, {{.*}}keep_dim = true, largest = true
func.func @argmax(%x: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[4,1],si64> {
  %last = torch.constant.int -1
  %true = torch.constant.bool true
  %i = torch.aten.argmax %x, %last, %true : !torch.vtensor<[4,16],f32>, !torch.int, !torch.bool -> !torch.vtensor<[4,1],si64>
  return %i : !torch.vtensor<[4,1],si64>
}

// CHECK-LABEL: func.func @argmax_of_all
// CHECK: torch.aten.argmax {{.*}}flycc.reason_code = "topk.dims"
func.func @argmax_of_all(%x: !torch.vtensor<[4,16],f32>) -> !torch.vtensor<[],si64> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %i = torch.aten.argmax %x, %none, %false : !torch.vtensor<[4,16],f32>, !torch.none, !torch.bool -> !torch.vtensor<[],si64>
  return %i : !torch.vtensor<[],si64>
}

// CHECK-LABEL: func.func @min
// CHECK: torch.aten.min.dim {{.*}}flycc.reason = "min.dim: x is bf16: a minimum is NaN if any element is, {{.*}}flycc.reason_code = "topk.nan"
func.func @min(%x: !torch.vtensor<[4,16],bf16>) -> !torch.vtensor<[16],si64> {
  %0 = torch.constant.int 0
  %false = torch.constant.bool false
  %v, %i = torch.aten.min.dim %x, %0, %false : !torch.vtensor<[4,16],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[16],bf16>, !torch.vtensor<[16],si64>
  return %i : !torch.vtensor<[16],si64>
}

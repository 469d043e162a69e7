// Attention written as two products and a softmax: what match-sdpa raises, and the reason for what it does not.
// RUN: flycc-opt %s --match-sdpa --flycc-dce | filecheck %s

// As Dynamo and AOTAutograd leave it: heads of K and V repeated, an additive mask, and a softmax in f32.
// CHECK-LABEL: func.func @llama
// CHECK: "flycc.sdpa"(%arg2, %arg0, %arg1, %float2.500000e-01, %arg3) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @llama(%arg0: !torch.vtensor<[2,2,5,16],bf16>, %arg1: !torch.vtensor<[2,2,5,16],bf16>, %arg2: !torch.vtensor<[2,6,5,16],bf16>, %arg3: !torch.vtensor<[2,1,5,5],bf16>) -> !torch.vtensor<[2,5,6,16],bf16> {
  %int2 = torch.constant.int 2
  %0 = torch.aten.unsqueeze %arg0, %int2 : !torch.vtensor<[2,2,5,16],bf16>, !torch.int -> !torch.vtensor<[2,2,1,5,16],bf16>
  %int2_0 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int5 = torch.constant.int 5
  %int16 = torch.constant.int 16
  %1 = torch.prim.ListConstruct %int2_0, %int2_0, %int3, %int5, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false = torch.constant.bool false
  %2 = torch.aten.expand %0, %1, %false : !torch.vtensor<[2,2,1,5,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,2,3,5,16],bf16>
  %int0 = torch.constant.int 0
  %3 = torch.aten.clone %2, %int0 : !torch.vtensor<[2,2,3,5,16],bf16>, !torch.int -> !torch.vtensor<[2,2,3,5,16],bf16>
  %int2_1 = torch.constant.int 2
  %int6 = torch.constant.int 6
  %int5_2 = torch.constant.int 5
  %int16_3 = torch.constant.int 16
  %4 = torch.prim.ListConstruct %int2_1, %int6, %int5_2, %int16_3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %5 = torch.aten._unsafe_view %3, %4 : !torch.vtensor<[2,2,3,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16],bf16>
  %int2_4 = torch.constant.int 2
  %6 = torch.aten.unsqueeze %arg1, %int2_4 : !torch.vtensor<[2,2,5,16],bf16>, !torch.int -> !torch.vtensor<[2,2,1,5,16],bf16>
  %int2_5 = torch.constant.int 2
  %int3_6 = torch.constant.int 3
  %int5_7 = torch.constant.int 5
  %int16_8 = torch.constant.int 16
  %7 = torch.prim.ListConstruct %int2_5, %int2_5, %int3_6, %int5_7, %int16_8 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_9 = torch.constant.bool false
  %8 = torch.aten.expand %6, %7, %false_9 : !torch.vtensor<[2,2,1,5,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,2,3,5,16],bf16>
  %int0_10 = torch.constant.int 0
  %9 = torch.aten.clone %8, %int0_10 : !torch.vtensor<[2,2,3,5,16],bf16>, !torch.int -> !torch.vtensor<[2,2,3,5,16],bf16>
  %int2_11 = torch.constant.int 2
  %int6_12 = torch.constant.int 6
  %int5_13 = torch.constant.int 5
  %int16_14 = torch.constant.int 16
  %10 = torch.prim.ListConstruct %int2_11, %int6_12, %int5_13, %int16_14 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %11 = torch.aten._unsafe_view %9, %10 : !torch.vtensor<[2,2,3,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16],bf16>
  %int2_15 = torch.constant.int 2
  %int3_16 = torch.constant.int 3
  %12 = torch.aten.transpose.int %5, %int2_15, %int3_16 : !torch.vtensor<[2,6,5,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,6,16,5],bf16>
  %int2_17 = torch.constant.int 2
  %int6_18 = torch.constant.int 6
  %int5_19 = torch.constant.int 5
  %int16_20 = torch.constant.int 16
  %13 = torch.prim.ListConstruct %int2_17, %int6_18, %int5_19, %int16_20 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_21 = torch.constant.bool false
  %14 = torch.aten.expand %arg2, %13, %false_21 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,5,16],bf16>
  %int12 = torch.constant.int 12
  %int5_22 = torch.constant.int 5
  %int16_23 = torch.constant.int 16
  %15 = torch.prim.ListConstruct %int12, %int5_22, %int16_23 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %16 = torch.aten.view %14, %15 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,16],bf16>
  %int2_24 = torch.constant.int 2
  %int6_25 = torch.constant.int 6
  %int16_26 = torch.constant.int 16
  %int5_27 = torch.constant.int 5
  %17 = torch.prim.ListConstruct %int2_24, %int6_25, %int16_26, %int5_27 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_28 = torch.constant.bool false
  %18 = torch.aten.expand %12, %17, %false_28 : !torch.vtensor<[2,6,16,5],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,16,5],bf16>
  %int12_29 = torch.constant.int 12
  %int16_30 = torch.constant.int 16
  %int5_31 = torch.constant.int 5
  %19 = torch.prim.ListConstruct %int12_29, %int16_30, %int5_31 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %20 = torch.aten.view %18, %19 : !torch.vtensor<[2,6,16,5],bf16>, !torch.list<int> -> !torch.vtensor<[12,16,5],bf16>
  %21 = torch.aten.bmm %16, %20 : !torch.vtensor<[12,5,16],bf16>, !torch.vtensor<[12,16,5],bf16> -> !torch.vtensor<[12,5,5],bf16>
  %int2_32 = torch.constant.int 2
  %int6_33 = torch.constant.int 6
  %int5_34 = torch.constant.int 5
  %22 = torch.prim.ListConstruct %int2_32, %int6_33, %int5_34, %int5_34 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %23 = torch.aten.view %21, %22 : !torch.vtensor<[12,5,5],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,5],bf16>
  %float2.500000e-01 = torch.constant.float 2.500000e-01
  %24 = torch.aten.mul.Scalar %23, %float2.500000e-01 : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %int1 = torch.constant.int 1
  %25 = torch.aten.add.Tensor %24, %arg3, %int1 : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,1,5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %int6_35 = torch.constant.int 6
  %int0_36 = torch.constant.int 0
  %cpu = torch.constant.device "cpu"
  %none = torch.constant.none
  %false_37 = torch.constant.bool false
  %26 = torch.aten._to_copy %25, %int6_35, %int0_36, %cpu, %none, %false_37, %none : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.int, !torch.Device, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2,6,5,5],f32>
  %int-1 = torch.constant.int -1
  %false_38 = torch.constant.bool false
  %27 = torch.aten._softmax %26, %int-1, %false_38 : !torch.vtensor<[2,6,5,5],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],f32>
  %int15 = torch.constant.int 15
  %none_39 = torch.constant.none
  %false_40 = torch.constant.bool false
  %28 = torch.aten._to_copy %27, %int15, %none_39, %none_39, %none_39, %false_40, %none_39 : !torch.vtensor<[2,6,5,5],f32>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2,6,5,5],bf16>
  %int2_41 = torch.constant.int 2
  %int6_42 = torch.constant.int 6
  %int5_43 = torch.constant.int 5
  %29 = torch.prim.ListConstruct %int2_41, %int6_42, %int5_43, %int5_43 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_44 = torch.constant.bool false
  %30 = torch.aten.expand %28, %29, %false_44 : !torch.vtensor<[2,6,5,5],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %int12_45 = torch.constant.int 12
  %int5_46 = torch.constant.int 5
  %31 = torch.prim.ListConstruct %int12_45, %int5_46, %int5_46 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %32 = torch.aten.view %30, %31 : !torch.vtensor<[2,6,5,5],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,5],bf16>
  %int2_47 = torch.constant.int 2
  %int6_48 = torch.constant.int 6
  %int5_49 = torch.constant.int 5
  %int16_50 = torch.constant.int 16
  %33 = torch.prim.ListConstruct %int2_47, %int6_48, %int5_49, %int16_50 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_51 = torch.constant.bool false
  %34 = torch.aten.expand %11, %33, %false_51 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,5,16],bf16>
  %int12_52 = torch.constant.int 12
  %int5_53 = torch.constant.int 5
  %int16_54 = torch.constant.int 16
  %35 = torch.prim.ListConstruct %int12_52, %int5_53, %int16_54 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %36 = torch.aten.view %34, %35 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,16],bf16>
  %37 = torch.aten.bmm %32, %36 : !torch.vtensor<[12,5,5],bf16>, !torch.vtensor<[12,5,16],bf16> -> !torch.vtensor<[12,5,16],bf16>
  %int2_55 = torch.constant.int 2
  %int6_56 = torch.constant.int 6
  %int5_57 = torch.constant.int 5
  %int16_58 = torch.constant.int 16
  %38 = torch.prim.ListConstruct %int2_55, %int6_56, %int5_57, %int16_58 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %39 = torch.aten.view %37, %38 : !torch.vtensor<[12,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16],bf16>
  %int1_59 = torch.constant.int 1
  %int2_60 = torch.constant.int 2
  %40 = torch.aten.transpose.int %39, %int1_59, %int2_60 : !torch.vtensor<[2,6,5,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,5,6,16],bf16>
  %int0_61 = torch.constant.int 0
  %41 = torch.aten.clone %40, %int0_61 : !torch.vtensor<[2,5,6,16],bf16>, !torch.int -> !torch.vtensor<[2,5,6,16],bf16>
  return {flycc.impure} %41 : !torch.vtensor<[2,5,6,16],bf16>
}

// einsum, a softcap, and a mask made of -inf above the diagonal.
// CHECK-LABEL: func.func @gemma
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, %{{.*}}, %int0) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0>{{.*}}softcap = 3.000000e+01
func.func @gemma(%arg0: !torch.vtensor<[2,6,5,16],bf16>, %arg1: !torch.vtensor<[2,6,5,16],bf16>, %arg2: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %int4 = torch.constant.int 4
  %0 = torch.aten.unsqueeze %arg0, %int4 : !torch.vtensor<[2,6,5,16],bf16>, !torch.int -> !torch.vtensor<[2,6,5,16,1],bf16>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4_0 = torch.constant.int 4
  %int3 = torch.constant.int 3
  %1 = torch.prim.ListConstruct %int0, %int1, %int2, %int4_0, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %2 = torch.aten.permute %0, %1 : !torch.vtensor<[2,6,5,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,1,16],bf16>
  %int4_1 = torch.constant.int 4
  %3 = torch.aten.unsqueeze %arg1, %int4_1 : !torch.vtensor<[2,6,5,16],bf16>, !torch.int -> !torch.vtensor<[2,6,5,16,1],bf16>
  %int0_2 = torch.constant.int 0
  %int1_3 = torch.constant.int 1
  %int4_4 = torch.constant.int 4
  %int2_5 = torch.constant.int 2
  %int3_6 = torch.constant.int 3
  %4 = torch.prim.ListConstruct %int0_2, %int1_3, %int4_4, %int2_5, %int3_6 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %5 = torch.aten.permute %3, %4 : !torch.vtensor<[2,6,5,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,1,5,16],bf16>
  %int0_7 = torch.constant.int 0
  %int1_8 = torch.constant.int 1
  %int2_9 = torch.constant.int 2
  %int4_10 = torch.constant.int 4
  %int3_11 = torch.constant.int 3
  %6 = torch.prim.ListConstruct %int0_7, %int1_8, %int2_9, %int4_10, %int3_11 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %7 = torch.aten.permute %2, %6 : !torch.vtensor<[2,6,5,1,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16,1],bf16>
  %int12 = torch.constant.int 12
  %int5 = torch.constant.int 5
  %int16 = torch.constant.int 16
  %8 = torch.prim.ListConstruct %int12, %int5, %int16 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %9 = torch.aten.view %7, %8 : !torch.vtensor<[2,6,5,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,16],bf16>
  %int0_12 = torch.constant.int 0
  %int1_13 = torch.constant.int 1
  %int4_14 = torch.constant.int 4
  %int3_15 = torch.constant.int 3
  %int2_16 = torch.constant.int 2
  %10 = torch.prim.ListConstruct %int0_12, %int1_13, %int4_14, %int3_15, %int2_16 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %11 = torch.aten.permute %5, %10 : !torch.vtensor<[2,6,1,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,16,5,1],bf16>
  %int12_17 = torch.constant.int 12
  %int16_18 = torch.constant.int 16
  %int5_19 = torch.constant.int 5
  %12 = torch.prim.ListConstruct %int12_17, %int16_18, %int5_19 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %13 = torch.aten.view %11, %12 : !torch.vtensor<[2,6,16,5,1],bf16>, !torch.list<int> -> !torch.vtensor<[12,16,5],bf16>
  %14 = torch.aten.bmm %9, %13 : !torch.vtensor<[12,5,16],bf16>, !torch.vtensor<[12,16,5],bf16> -> !torch.vtensor<[12,5,5],bf16>
  %int2_20 = torch.constant.int 2
  %int6 = torch.constant.int 6
  %int5_21 = torch.constant.int 5
  %int1_22 = torch.constant.int 1
  %15 = torch.prim.ListConstruct %int2_20, %int6, %int5_21, %int1_22, %int5_21 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %16 = torch.aten.view %14, %15 : !torch.vtensor<[12,5,5],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,1,5],bf16>
  %int0_23 = torch.constant.int 0
  %int1_24 = torch.constant.int 1
  %int2_25 = torch.constant.int 2
  %int4_26 = torch.constant.int 4
  %int3_27 = torch.constant.int 3
  %17 = torch.prim.ListConstruct %int0_23, %int1_24, %int2_25, %int4_26, %int3_27 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %18 = torch.aten.permute %16, %17 : !torch.vtensor<[2,6,5,1,5],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,5,1],bf16>
  %int2_28 = torch.constant.int 2
  %int6_29 = torch.constant.int 6
  %int5_30 = torch.constant.int 5
  %19 = torch.prim.ListConstruct %int2_28, %int6_29, %int5_30, %int5_30 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %20 = torch.aten.view %18, %19 : !torch.vtensor<[2,6,5,5,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,5],bf16>
  %int30 = torch.constant.int 30
  %21 = torch.aten.div.Scalar %20, %int30 : !torch.vtensor<[2,6,5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %22 = torch.aten.tanh %21 : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %int30_31 = torch.constant.int 30
  %23 = torch.aten.mul.Scalar %22, %int30_31 : !torch.vtensor<[2,6,5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %int5_32 = torch.constant.int 5
  %24 = torch.prim.ListConstruct %int5_32, %int5_32 : (!torch.int, !torch.int) -> !torch.list<int>
  %float-Inf = torch.constant.float 0xFFF0000000000000
  %int15 = torch.constant.int 15
  %none = torch.constant.none
  %cpu = torch.constant.device "cpu"
  %false = torch.constant.bool false
  %25 = torch.aten.full %24, %float-Inf, %int15, %none, %cpu, %false : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[5,5],bf16>
  %int1_33 = torch.constant.int 1
  %26 = torch.aten.triu %25, %int1_33 : !torch.vtensor<[5,5],bf16>, !torch.int -> !torch.vtensor<[5,5],bf16>
  %int1_34 = torch.constant.int 1
  %27 = torch.aten.add.Tensor %23, %26, %int1_34 : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %int6_35 = torch.constant.int 6
  %none_36 = torch.constant.none
  %false_37 = torch.constant.bool false
  %28 = torch.aten._to_copy %27, %int6_35, %none_36, %none_36, %none_36, %false_37, %none_36 : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2,6,5,5],f32>
  %int-1 = torch.constant.int -1
  %false_38 = torch.constant.bool false
  %29 = torch.aten._softmax %28, %int-1, %false_38 : !torch.vtensor<[2,6,5,5],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],f32>
  %int15_39 = torch.constant.int 15
  %int0_40 = torch.constant.int 0
  %cpu_41 = torch.constant.device "cpu"
  %none_42 = torch.constant.none
  %false_43 = torch.constant.bool false
  %30 = torch.aten._to_copy %29, %int15_39, %int0_40, %cpu_41, %none_42, %false_43, %none_42 : !torch.vtensor<[2,6,5,5],f32>, !torch.int, !torch.int, !torch.Device, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2,6,5,5],bf16>
  %int4_44 = torch.constant.int 4
  %31 = torch.aten.unsqueeze %30, %int4_44 : !torch.vtensor<[2,6,5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5,1],bf16>
  %int0_45 = torch.constant.int 0
  %int1_46 = torch.constant.int 1
  %int2_47 = torch.constant.int 2
  %int4_48 = torch.constant.int 4
  %int3_49 = torch.constant.int 3
  %32 = torch.prim.ListConstruct %int0_45, %int1_46, %int2_47, %int4_48, %int3_49 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %33 = torch.aten.permute %31, %32 : !torch.vtensor<[2,6,5,5,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,1,5],bf16>
  %int4_50 = torch.constant.int 4
  %34 = torch.aten.unsqueeze %arg2, %int4_50 : !torch.vtensor<[2,6,5,16],bf16>, !torch.int -> !torch.vtensor<[2,6,5,16,1],bf16>
  %int0_51 = torch.constant.int 0
  %int1_52 = torch.constant.int 1
  %int4_53 = torch.constant.int 4
  %int3_54 = torch.constant.int 3
  %int2_55 = torch.constant.int 2
  %35 = torch.prim.ListConstruct %int0_51, %int1_52, %int4_53, %int3_54, %int2_55 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %36 = torch.aten.permute %34, %35 : !torch.vtensor<[2,6,5,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,1,16,5],bf16>
  %int0_56 = torch.constant.int 0
  %int1_57 = torch.constant.int 1
  %int2_58 = torch.constant.int 2
  %int4_59 = torch.constant.int 4
  %int3_60 = torch.constant.int 3
  %37 = torch.prim.ListConstruct %int0_56, %int1_57, %int2_58, %int4_59, %int3_60 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %38 = torch.aten.permute %33, %37 : !torch.vtensor<[2,6,5,1,5],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,5,1],bf16>
  %int12_61 = torch.constant.int 12
  %int5_62 = torch.constant.int 5
  %39 = torch.prim.ListConstruct %int12_61, %int5_62, %int5_62 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %40 = torch.aten.view %38, %39 : !torch.vtensor<[2,6,5,5,1],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,5],bf16>
  %int0_63 = torch.constant.int 0
  %int1_64 = torch.constant.int 1
  %int4_65 = torch.constant.int 4
  %int3_66 = torch.constant.int 3
  %int2_67 = torch.constant.int 2
  %41 = torch.prim.ListConstruct %int0_63, %int1_64, %int4_65, %int3_66, %int2_67 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %42 = torch.aten.permute %36, %41 : !torch.vtensor<[2,6,1,16,5],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16,1],bf16>
  %int12_68 = torch.constant.int 12
  %int5_69 = torch.constant.int 5
  %int16_70 = torch.constant.int 16
  %43 = torch.prim.ListConstruct %int12_68, %int5_69, %int16_70 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %44 = torch.aten.view %42, %43 : !torch.vtensor<[2,6,5,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,16],bf16>
  %45 = torch.aten.bmm %40, %44 : !torch.vtensor<[12,5,5],bf16>, !torch.vtensor<[12,5,16],bf16> -> !torch.vtensor<[12,5,16],bf16>
  %int2_71 = torch.constant.int 2
  %int6_72 = torch.constant.int 6
  %int5_73 = torch.constant.int 5
  %int1_74 = torch.constant.int 1
  %int16_75 = torch.constant.int 16
  %46 = torch.prim.ListConstruct %int2_71, %int6_72, %int5_73, %int1_74, %int16_75 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %47 = torch.aten.view %45, %46 : !torch.vtensor<[12,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,1,16],bf16>
  %int0_76 = torch.constant.int 0
  %int1_77 = torch.constant.int 1
  %int2_78 = torch.constant.int 2
  %int4_79 = torch.constant.int 4
  %int3_80 = torch.constant.int 3
  %48 = torch.prim.ListConstruct %int0_76, %int1_77, %int2_78, %int4_79, %int3_80 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %49 = torch.aten.permute %47, %48 : !torch.vtensor<[2,6,5,1,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16,1],bf16>
  %int2_81 = torch.constant.int 2
  %int6_82 = torch.constant.int 6
  %int5_83 = torch.constant.int 5
  %int16_84 = torch.constant.int 16
  %50 = torch.prim.ListConstruct %int2_81, %int6_82, %int5_83, %int16_84 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %51 = torch.aten.view %49, %50 : !torch.vtensor<[2,6,5,16,1],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16],bf16>
  return {flycc.impure} %51 : !torch.vtensor<[2,6,5,16],bf16>
}

// A window of three keys, from differences of indices; Q is what is scaled, and -1e9 what masks.
// CHECK-LABEL: func.func @window
// CHECK: "flycc.sdpa"(%arg0, %arg1, %arg2, %float2.500000e-01{{.*}}, %int-2, %int0{{.*}}) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0>
func.func @window(%arg0: !torch.vtensor<[2,6,5,16],bf16>, %arg1: !torch.vtensor<[2,6,5,16],bf16>, %arg2: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %float2.500000e-01 = torch.constant.float 2.500000e-01
  %0 = torch.aten.mul.Scalar %arg0, %float2.500000e-01 : !torch.vtensor<[2,6,5,16],bf16>, !torch.float -> !torch.vtensor<[2,6,5,16],bf16>
  %int3 = torch.constant.int 3
  %int2 = torch.constant.int 2
  %1 = torch.aten.transpose.int %arg1, %int3, %int2 : !torch.vtensor<[2,6,5,16],bf16>, !torch.int, !torch.int -> !torch.vtensor<[2,6,16,5],bf16>
  %int2_0 = torch.constant.int 2
  %int6 = torch.constant.int 6
  %int5 = torch.constant.int 5
  %int16 = torch.constant.int 16
  %2 = torch.prim.ListConstruct %int2_0, %int6, %int5, %int16 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false = torch.constant.bool false
  %3 = torch.aten.expand %0, %2, %false : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,5,16],bf16>
  %int12 = torch.constant.int 12
  %int5_1 = torch.constant.int 5
  %int16_2 = torch.constant.int 16
  %4 = torch.prim.ListConstruct %int12, %int5_1, %int16_2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %5 = torch.aten.view %3, %4 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,16],bf16>
  %int2_3 = torch.constant.int 2
  %int6_4 = torch.constant.int 6
  %int16_5 = torch.constant.int 16
  %int5_6 = torch.constant.int 5
  %6 = torch.prim.ListConstruct %int2_3, %int6_4, %int16_5, %int5_6 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_7 = torch.constant.bool false
  %7 = torch.aten.expand %1, %6, %false_7 : !torch.vtensor<[2,6,16,5],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,16,5],bf16>
  %int12_8 = torch.constant.int 12
  %int16_9 = torch.constant.int 16
  %int5_10 = torch.constant.int 5
  %8 = torch.prim.ListConstruct %int12_8, %int16_9, %int5_10 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %9 = torch.aten.view %7, %8 : !torch.vtensor<[2,6,16,5],bf16>, !torch.list<int> -> !torch.vtensor<[12,16,5],bf16>
  %10 = torch.aten.bmm %5, %9 : !torch.vtensor<[12,5,16],bf16>, !torch.vtensor<[12,16,5],bf16> -> !torch.vtensor<[12,5,5],bf16>
  %int2_11 = torch.constant.int 2
  %int6_12 = torch.constant.int 6
  %int5_13 = torch.constant.int 5
  %11 = torch.prim.ListConstruct %int2_11, %int6_12, %int5_13, %int5_13 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %12 = torch.aten.view %10, %11 : !torch.vtensor<[12,5,5],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,5],bf16>
  %int5_14 = torch.constant.int 5
  %none = torch.constant.none
  %cpu = torch.constant.device "cpu"
  %false_15 = torch.constant.bool false
  %13 = torch.aten.arange %int5_14, %none, %none, %cpu, %false_15 : !torch.int, !torch.none, !torch.none, !torch.Device, !torch.bool -> !torch.vtensor<[5],si64>
  %int1 = torch.constant.int 1
  %14 = torch.aten.unsqueeze %13, %int1 : !torch.vtensor<[5],si64>, !torch.int -> !torch.vtensor<[5,1],si64>
  %int0 = torch.constant.int 0
  %15 = torch.aten.unsqueeze %13, %int0 : !torch.vtensor<[5],si64>, !torch.int -> !torch.vtensor<[1,5],si64>
  %int1_16 = torch.constant.int 1
  %16 = torch.aten.sub.Tensor %14, %15, %int1_16 : !torch.vtensor<[5,1],si64>, !torch.vtensor<[1,5],si64>, !torch.int -> !torch.vtensor<[5,5],si64>
  %int0_17 = torch.constant.int 0
  %17 = torch.aten.ge.Scalar %16, %int0_17 : !torch.vtensor<[5,5],si64>, !torch.int -> !torch.vtensor<[5,5],i1>
  %int3_18 = torch.constant.int 3
  %18 = torch.aten.lt.Scalar %16, %int3_18 : !torch.vtensor<[5,5],si64>, !torch.int -> !torch.vtensor<[5,5],i1>
  %19 = torch.aten.bitwise_and.Tensor %17, %18 : !torch.vtensor<[5,5],i1>, !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %20 = torch.aten.bitwise_not %19 : !torch.vtensor<[5,5],i1> -> !torch.vtensor<[5,5],i1>
  %float-1.000000e09 = torch.constant.float -1.000000e+09
  %21 = torch.aten.masked_fill.Scalar %12, %20, %float-1.000000e09 : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %int-1 = torch.constant.int -1
  %false_19 = torch.constant.bool false
  %22 = torch.aten._softmax %21, %int-1, %false_19 : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %int2_20 = torch.constant.int 2
  %int6_21 = torch.constant.int 6
  %int5_22 = torch.constant.int 5
  %23 = torch.prim.ListConstruct %int2_20, %int6_21, %int5_22, %int5_22 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_23 = torch.constant.bool false
  %24 = torch.aten.expand %22, %23, %false_23 : !torch.vtensor<[2,6,5,5],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %int12_24 = torch.constant.int 12
  %int5_25 = torch.constant.int 5
  %25 = torch.prim.ListConstruct %int12_24, %int5_25, %int5_25 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %26 = torch.aten.view %24, %25 : !torch.vtensor<[2,6,5,5],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,5],bf16>
  %int2_26 = torch.constant.int 2
  %int6_27 = torch.constant.int 6
  %int5_28 = torch.constant.int 5
  %int16_29 = torch.constant.int 16
  %27 = torch.prim.ListConstruct %int2_26, %int6_27, %int5_28, %int16_29 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %false_30 = torch.constant.bool false
  %28 = torch.aten.expand %arg2, %27, %false_30 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,6,5,16],bf16>
  %int12_31 = torch.constant.int 12
  %int5_32 = torch.constant.int 5
  %int16_33 = torch.constant.int 16
  %29 = torch.prim.ListConstruct %int12_31, %int5_32, %int16_33 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %30 = torch.aten.view %28, %29 : !torch.vtensor<[2,6,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[12,5,16],bf16>
  %31 = torch.aten.bmm %26, %30 : !torch.vtensor<[12,5,5],bf16>, !torch.vtensor<[12,5,16],bf16> -> !torch.vtensor<[12,5,16],bf16>
  %int2_34 = torch.constant.int 2
  %int6_35 = torch.constant.int 6
  %int5_36 = torch.constant.int 5
  %int16_37 = torch.constant.int 16
  %32 = torch.prim.ListConstruct %int2_34, %int6_35, %int5_36, %int16_37 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %33 = torch.aten.view %31, %32 : !torch.vtensor<[12,5,16],bf16>, !torch.list<int> -> !torch.vtensor<[2,6,5,16],bf16>
  return {flycc.impure} %33 : !torch.vtensor<[2,6,5,16],bf16>
}

// A mask that only the run knows is loaded: of bools where others get -inf ...
// CHECK-LABEL: func.func @bools
// CHECK: %[[SEEN:.*]] = torch.aten.logical_not %arg3
// CHECK: "flycc.sdpa"(%arg0, %{{.*}}, %arg2, %{{.*}}, %[[SEEN]]) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0>
func.func @bools(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[2,1,1,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %t = torch.aten.mul.Scalar %s, %quarter : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.masked_fill.Scalar %t, %m, %inf : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,1,1,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// ... and of numbers where they get a finite one: a query that sees nothing has equal weights.
// CHECK-LABEL: func.func @finite
// CHECK: %[[WIDE:.*]] = torch.aten._to_copy %arg3
// CHECK: %[[ADDED:.*]] = torch.aten.mul.Scalar %[[WIDE]], %float-3.000000e38
// CHECK: "flycc.sdpa"(%arg0, %{{.*}}, %arg2, %{{.*}}, %[[ADDED]])
func.func @finite(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[2,1,1,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %t = torch.aten.mul.Scalar %s, %quarter : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.masked_fill.Scalar %t, %m, %low : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,1,1,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Weights that the graph returns.
// CHECK-LABEL: func.func @returned
// CHECK: torch.aten._softmax {{.*}}the graph returns its weights{{.*}}sdpa.training
func.func @returned(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> (!torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,5,5],bf16>) {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %s, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o, %p : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,5,5],bf16>
}

// A softmax over queries.
// CHECK-LABEL: func.func @over_queries
// CHECK: torch.aten._softmax {{.*}}its softmax is not over keys, the last dimension{{.*}}sdpa.softmax-dim
func.func @over_queries(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %s, %rows, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A mask that hides too little.
// CHECK-LABEL: func.func @hides_little
// CHECK: torch.aten._softmax {{.*}}masked scores become -10.0; -inf or at most -10000 is needed{{.*}}sdpa.mask
func.func @hides_little(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[2,1,1,5],i1>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.masked_fill.Scalar %s, %m, %little : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,1,1,5],i1>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// A mask that is added before the scale.
// CHECK-LABEL: func.func @scaled_mask
// CHECK: torch.aten._softmax {{.*}}its scores are multiplied with a number, or capped, after they are masked{{.*}}sdpa.mask
func.func @scaled_mask(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>, %m: !torch.vtensor<[5,5],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %t = torch.aten.add.Tensor %s, %m, %one : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[5,5],bf16>, !torch.int -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.mul.Scalar %t, %quarter : !torch.vtensor<[2,6,5,5],bf16>, !torch.float -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Something else between scores and softmax.
// CHECK-LABEL: func.func @other
// CHECK-NOT: sdpa
func.func @other(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> !torch.vtensor<[2,6,5,16],bf16> {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  %x = torch.aten.relu %s : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %x, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  return %o : !torch.vtensor<[2,6,5,16],bf16>
}

// Weights with another use.
// CHECK-LABEL: func.func @weights
// CHECK: torch.aten._softmax {{.*}}its weights are also used by aten.relu{{.*}}sdpa.weights
func.func @weights(%q: !torch.vtensor<[2,6,5,16],bf16>, %kt: !torch.vtensor<[2,6,16,5],bf16>, %v: !torch.vtensor<[2,6,5,16],bf16>) -> (!torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,5,5],bf16>) {
  %last = torch.constant.int -1
  %rows = torch.constant.int -2
  %one = torch.constant.int 1
  %false = torch.constant.bool false
  %quarter = torch.constant.float 2.500000e-01
  %inf = torch.constant.float 0xFFF0000000000000
  %low = torch.constant.float -1.000000e+30
  %little = torch.constant.float -1.000000e+01
  %s = torch.aten.matmul %q, %kt : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,16,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>

  %p = torch.aten._softmax %s, %last, %false : !torch.vtensor<[2,6,5,5],bf16>, !torch.int, !torch.bool -> !torch.vtensor<[2,6,5,5],bf16>
  %o = torch.aten.matmul %p, %v : !torch.vtensor<[2,6,5,5],bf16>, !torch.vtensor<[2,6,5,16],bf16> -> !torch.vtensor<[2,6,5,16],bf16>
  %r = torch.aten.relu %p : !torch.vtensor<[2,6,5,5],bf16> -> !torch.vtensor<[2,6,5,5],bf16>
  return %o, %r : !torch.vtensor<[2,6,5,16],bf16>, !torch.vtensor<[2,6,5,5],bf16>
}

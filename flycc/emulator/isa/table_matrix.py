"""The matrix instructions: number, name, D = A B C, or for a sparse smfmac D = A B index.

Syntax in opcodes.py. For shape MxNxK with B blocks a lane holds M*K*B/64 elements of A (half as many where A
is sparse), N*K*B/64 of B and M*N*B/64 of C and D.
"""

MAI = """
  45 v_mfma_f32_16x16x128_f8f6f4     f32x4  = mxa mxb f32x4
  46 v_mfma_f32_32x32x64_f8f6f4      f32x16 = mxa mxb f32x16
  53 v_mfma_f32_16x16x32_bf16        f32x4  = bf16x8 bf16x8 f32x4
  54 v_mfma_i32_16x16x64_i8          i32x4  = i8x16 i8x16 i32x4
  55 v_mfma_f32_32x32x16_bf16        f32x16 = bf16x8 bf16x8 f32x16
  56 v_mfma_i32_32x32x32_i8          i32x16 = i8x16 i8x16 i32x16
  57 v_smfmac_f32_16x16x64_bf16      f32x4  = bf16x8 bf16x16 v:b32
  58 v_smfmac_i32_16x16x128_i8       i32x4  = i8x16 i8x32 v:b32
  59 v_smfmac_f32_16x16x128_bf8_bf8  f32x4  = bf8x16 bf8x32 v:b32
  60 v_smfmac_f32_16x16x128_bf8_fp8  f32x4  = bf8x16 fp8x32 v:b32
  61 v_smfmac_f32_16x16x128_fp8_bf8  f32x4  = fp8x16 bf8x32 v:b32
  64 v_mfma_f32_32x32x1_2b_f32       f32x32 = f32 f32 f32x32
  65 v_mfma_f32_16x16x1_4b_f32       f32x16 = f32 f32 f32x16
  66 v_mfma_f32_4x4x1_16b_f32        f32x4  = f32 f32 f32x4
  67 v_smfmac_f32_16x16x128_fp8_fp8  f32x4  = fp8x16 fp8x32 v:b32
  68 v_mfma_f32_32x32x2_f32          f32x16 = f32 f32 f32x16
  69 v_mfma_f32_16x16x4_f32          f32x4  = f32 f32 f32x4
  70 v_smfmac_f32_32x32x32_bf16      f32x16 = bf16x8 bf16x16 v:b32
  71 v_smfmac_i32_32x32x64_i8        i32x16 = i8x16 i8x32 v:b32
  72 v_mfma_f32_32x32x4_2b_f16       f32x32 = f16x4 f16x4 f32x32
  73 v_mfma_f32_16x16x4_4b_f16       f32x16 = f16x4 f16x4 f32x16
  74 v_mfma_f32_4x4x4_16b_f16        f32x4  = f16x4 f16x4 f32x4
  75 v_smfmac_f32_32x32x64_bf8_bf8   f32x16 = bf8x16 bf8x32 v:b32
  76 v_mfma_f32_32x32x8_f16          f32x16 = f16x4 f16x4 f32x16
  77 v_mfma_f32_16x16x16_f16         f32x4  = f16x4 f16x4 f32x4
  78 v_smfmac_f32_32x32x64_bf8_fp8   f32x16 = bf8x16 fp8x32 v:b32
  79 v_smfmac_f32_32x32x64_fp8_bf8   f32x16 = fp8x16 bf8x32 v:b32
  80 v_mfma_i32_32x32x4_2b_i8        i32x32 = i8x4 i8x4 i32x32
  81 v_mfma_i32_16x16x4_4b_i8        i32x16 = i8x4 i8x4 i32x16
  82 v_mfma_i32_4x4x4_16b_i8         i32x4  = i8x4 i8x4 i32x4
  83 v_smfmac_f32_32x32x64_fp8_fp8   f32x16 = fp8x16 fp8x32 v:b32
  84 v_mfma_f32_16x16x32_f16         f32x4  = f16x8 f16x8 f32x4
  85 v_mfma_f32_32x32x16_f16         f32x16 = f16x8 f16x8 f32x16
  86 v_mfma_i32_32x32x16_i8          i32x16 = i8x8 i8x8 i32x16
  87 v_mfma_i32_16x16x32_i8          i32x4  = i8x8 i8x8 i32x4
  88 v_accvgpr_read_b32              v:b32  = a:b32
  89 v_accvgpr_write_b32             a:b32  = data:b32
  90 v_smfmac_f32_16x16x64_f16       f32x4  = f16x8 f16x16 v:b32
  91 v_smfmac_f32_32x32x32_f16       f32x16 = f16x8 f16x16 v:b32
  93 v_mfma_f32_32x32x4_2b_bf16      f32x32 = bf16x4 bf16x4 f32x32
  94 v_mfma_f32_16x16x4_4b_bf16      f32x16 = bf16x4 bf16x4 f32x16
  95 v_mfma_f32_4x4x4_16b_bf16       f32x4  = bf16x4 bf16x4 f32x4
  96 v_mfma_f32_32x32x8_bf16         f32x16 = bf16x4 bf16x4 f32x16
  97 v_mfma_f32_16x16x16_bf16        f32x4  = bf16x4 bf16x4 f32x4
  98 v_smfmac_f32_16x16x32_f16       f32x4  = f16x4 f16x8 v:b32
 100 v_smfmac_f32_32x32x16_f16       f32x16 = f16x4 f16x8 v:b32
 102 v_smfmac_f32_16x16x32_bf16      f32x4  = bf16x4 bf16x8 v:b32
 104 v_smfmac_f32_32x32x16_bf16      f32x16 = bf16x4 bf16x8 v:b32
 106 v_smfmac_i32_16x16x64_i8        i32x4  = i8x8 i8x16 v:b32
 108 v_smfmac_i32_32x32x32_i8        i32x16 = i8x8 i8x16 v:b32
 110 v_mfma_f64_16x16x4_f64          f64x4  = f64 f64 f64x4
 111 v_mfma_f64_4x4x4_4b_f64         f64    = f64 f64 f64
 112 v_mfma_f32_16x16x32_bf8_bf8     f32x4  = bf8x8 bf8x8 f32x4
 113 v_mfma_f32_16x16x32_bf8_fp8     f32x4  = bf8x8 fp8x8 f32x4
 114 v_mfma_f32_16x16x32_fp8_bf8     f32x4  = fp8x8 bf8x8 f32x4
 115 v_mfma_f32_16x16x32_fp8_fp8     f32x4  = fp8x8 fp8x8 f32x4
 116 v_mfma_f32_32x32x16_bf8_bf8     f32x16 = bf8x8 bf8x8 f32x16
 117 v_mfma_f32_32x32x16_bf8_fp8     f32x16 = bf8x8 fp8x8 f32x16
 118 v_mfma_f32_32x32x16_fp8_bf8     f32x16 = fp8x8 bf8x8 f32x16
 119 v_mfma_f32_32x32x16_fp8_fp8     f32x16 = fp8x8 fp8x8 f32x16
 120 v_smfmac_f32_16x16x64_bf8_bf8   f32x4  = bf8x8 bf8x16 v:b32
 121 v_smfmac_f32_16x16x64_bf8_fp8   f32x4  = bf8x8 fp8x16 v:b32
 122 v_smfmac_f32_16x16x64_fp8_bf8   f32x4  = fp8x8 bf8x16 v:b32
 123 v_smfmac_f32_16x16x64_fp8_fp8   f32x4  = fp8x8 fp8x16 v:b32
 124 v_smfmac_f32_32x32x32_bf8_bf8   f32x16 = bf8x8 bf8x16 v:b32
 125 v_smfmac_f32_32x32x32_bf8_fp8   f32x16 = bf8x8 fp8x16 v:b32
 126 v_smfmac_f32_32x32x32_fp8_bf8   f32x16 = fp8x8 bf8x16 v:b32
 127 v_smfmac_f32_32x32x32_fp8_fp8   f32x16 = fp8x8 fp8x16 v:b32
"""

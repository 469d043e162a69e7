; Each v_and aligns an address: 16 bytes and 8 bytes in LDS, 4 bytes in out; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_mul_u32_u24_e32 v1, 12, v0
  v_mov_b32_e32 v2, v1
  v_mul_u32_u24_e32 v3, 18, v0
  v_and_b32_e32 v1, -16, v1
  v_and_b32_e32 v2, -8, v2
  v_and_b32_e32 v3, -4, v3
  v_mov_b32_e32 v4, 1
  v_mov_b32_e32 v5, 2
  v_mov_b32_e32 v6, 3
  v_mov_b32_e32 v7, 4
  ds_write_b128 v1, v[4:7]
  ds_write_b64 v2, v[4:5]
  s_waitcnt lgkmcnt(0)
  ds_read_b64 v[8:9], v2
  s_waitcnt lgkmcnt(0)
  global_store_dwordx2 v3, v[8:9], s[4:5]
  s_endpgm

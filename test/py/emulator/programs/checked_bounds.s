; Each v_and keeps an index within 32 dwords of out, of 128 bytes of LDS, of 16 bytes of scratch; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, v1
  v_mov_b32_e32 v3, v1
  v_and_b32_e32 v1, 0x7c, v1
  v_and_b32_e32 v2, 0x78, v2
  v_and_b32_e32 v3, 12, v3
  ds_write_b32 v2, v0
  scratch_store_dword v3, v0, off
  s_waitcnt vmcnt(0) lgkmcnt(0)
  ds_read_b32 v4, v2
  scratch_load_dword v5, v3, off
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_add_u32_e32 v6, v4, v5
  global_store_dword v1, v6, s[4:5]
  s_endpgm

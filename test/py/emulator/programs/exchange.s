; Every wave w of 4 loops w + 1 times, then passes its sum to wave 3 - w through LDS; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshrrev_b32_e32 v1, 6, v0
  v_readfirstlane_b32 s6, v1
  s_mov_b32 s7, 0
  v_mov_b32_e32 v2, 0
again:
  v_add_u32_e32 v2, v2, v0
  s_add_u32 s7, s7, 1
  s_cmp_le_u32 s7, s6
  s_cbranch_scc1 again
  v_lshlrev_b32_e32 v3, 2, v0
  ds_write_b32 v3, v2
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_xor_b32_e32 v4, 0x300, v3
  ds_read_b32 v5, v4
  s_lshl_b32 s8, s2, 10
  v_add_u32_e32 v3, s8, v3
  s_waitcnt lgkmcnt(0)
  global_store_dword v3, v5, s[4:5]
  s_endpgm

; Two waves swap 64 dwords through LDS, twice in the same place; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_xor_b32_e32 v2, 0x100, v1
  s_lshl_b32 s6, s2, 9
  v_add_u32_e32 v5, s6, v1
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(1)
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_nop 1
  ds_write_b32 v1, v3
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_nop 2
  ds_read_b32 v4, v2
  s_waitcnt lgkmcnt(0)
  global_store_dword v5, v4, s[4:5]
  s_endpgm

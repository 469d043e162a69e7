; Loads through every counter, each with the wait it needs; kernarg: in, out.
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  global_load_dword v3, v1, s[4:5] offset:256
  ds_write_b32 v1, v0
  s_waitcnt vmcnt(1)
  v_add_u32_e32 v4, 1, v2
  ds_read_b32 v5, v1
  ds_read_b32 v6, v1 offset:0
  s_waitcnt lgkmcnt(1)
  v_add_u32_e32 v4, v4, v5
  s_waitcnt vmcnt(0) lgkmcnt(0)
  v_mov_b32_e32 v3, 0
  v_mov_b32_e32 v6, 0
  global_store_dword v1, v4, s[6:7]
  s_endpgm

; Both waves store the same values to the same place; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_and_b32_e32 v1, 63, v0
  v_lshlrev_b32_e32 v1, 2, v1
  v_mov_b32_e32 v2, v0
  v_and_b32_e32 v2, 63, v2
  ds_write_b32 v1, v2
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v2, s[4:5]
  s_endpgm

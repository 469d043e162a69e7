; Two waves swap 64 dwords through `work`, every workgroup in its own part; kernarg: work, out.
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_lshl_b32 s8, s2, 9
  v_add_u32_e32 v1, s8, v1
  v_xor_b32_e32 v2, 0x100, v1
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v0, s[4:5]
  s_waitcnt vmcnt(0)
  s_barrier
  global_load_dword v3, v2, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dword v1, v3, s[6:7]
  s_endpgm

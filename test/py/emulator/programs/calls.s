; A call through registers that doubles v2, twice; kernarg: out.
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_mov_b32_e32 v2, 3
  s_getpc_b64 s[8:9]
base:
  s_add_u32 s8, s8, double-base
  s_addc_u32 s9, s9, 0
  s_swappc_b64 s[10:11], s[8:9]
  s_swappc_b64 s[10:11], s[8:9]
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v2, s[4:5]
  s_endpgm
double:
  v_add_u32_e32 v2, v2, v2
  s_setpc_b64 s[10:11]

"""Facts about gfx950 that kernels are written for. Imports nothing."""

WAVE_SIZE = 64
COMPUTE_UNITS = 256
#: Dies, to which workgroups go in turns; each has an L2 of its own.
XCDS = 8
#: SIMDs of a compute unit, to which waves of a workgroup go in turns.
SIMDS = 4
#: LDS of a compute unit, all of which one workgroup may have.
LDS_BYTES = 160 * 1024
#: The largest access of a lane to memory or LDS.
ACCESS_BYTES = 16
#: Work-items of a workgroup.
MAX_THREADS = 1024
#: Launch limits: workgroups along y and z; work-items along x, which are counted in a 32-bit integer.
MAX_GRID_YZ = 65535
MAX_WORK_ITEMS = (1 << 31) - 1
#: Bytes that kernels let a buffer resource cover: 32-bit offsets from here on are out of range.
OFFSET_LIMIT = 1 << 31

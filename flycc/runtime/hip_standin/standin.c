/* A libamdhip64 without a GPU: every entry point passes its arguments to one handler, which Python installs.
 *
 * Pointers travel as numbers; the handler reads and writes through them. What is kept here is what belongs to
 * the calling thread (its last error and its current device) and the description of the devices. Values and
 * layouts are those of the ABI that hip_runtime_api.h defines for HIP 6 and 7.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uintptr_t address; /* any pointer */
typedef int (*handler_t)(const char *name, int device, const uint64_t *args, int count);

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    DEINITIALIZED = 4,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
};

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {4, "hipErrorDeinitialized", "driver shutting down"},
    {9, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {98, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {200, "hipErrorInvalidImage", "device kernel image is invalid"},
    {209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {301, "hipErrorFileNotFound", "file not found"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {702, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {906, "hipErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {999, "hipErrorUnknown", "unknown error"},
};

static handler_t handler;
static int devices;
static char arch[256];
static uint64_t device_memory;
static _Thread_local int last_error, current_device;

/* With a null handler every call fails as after the end of the process's HIP runtime. */
void flycc_standin_install(handler_t new_handler, int count, const char *gcn_arch, uint64_t memory) {
    devices = count;
    strncpy(arch, gcn_arch, sizeof arch - 1);
    device_memory = memory;
    last_error = current_device = 0;
    __atomic_store_n(&handler, new_handler, __ATOMIC_SEQ_CST);
}

/* A handler that does nothing, to measure what callers cost. */
int flycc_standin_ignore(const char *name, int device, const uint64_t *args, int count) {
    (void)name, (void)device, (void)args, (void)count;
    return SUCCESS;
}

static int record(int error) {
    if (error) last_error = error;
    return error;
}

static int usable(void) {
    if (!__atomic_load_n(&handler, __ATOMIC_SEQ_CST)) return DEINITIALIZED;
    return devices ? SUCCESS : NO_DEVICE;
}

static int forward(const char *name, const uint64_t *args, size_t count) {
    int error = usable();
    return record(error ? error : handler(name, current_device, args, (int)count));
}

#define FORWARD(...) \
    forward(__func__, (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Errors */
int hipGetLastError(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}
int hipPeekAtLastError(void) { return last_error; }

static size_t error_index(int error) {
    size_t at = 0;
    while (at < sizeof ERRORS / sizeof *ERRORS - 1 && ERRORS[at].code != error) at++;
    return at;
}
const char *hipGetErrorName(int error) { return ERRORS[error_index(error)].name; }
const char *hipGetErrorString(int error) { return ERRORS[error_index(error)].text; }

/* Devices */
int hipInit(unsigned flags) { return record(flags ? INVALID_VALUE : usable()); }
int hipRuntimeGetVersion(int *version) { return *version = 70000000, SUCCESS; }
int hipDriverGetVersion(int *version) { return hipRuntimeGetVersion(version); }

int hipGetDeviceCount(int *count) {
    *count = usable() == SUCCESS ? devices : 0;
    return record(usable());
}

static int bad_device(int device) {
    int error = usable();
    return error ? error : device < 0 || device >= devices ? INVALID_DEVICE : SUCCESS;
}

int hipSetDevice(int device) {
    int error = bad_device(device);
    if (!error) current_device = device;
    return record(error);
}

int hipGetDevice(int *device) {
    *device = current_device;
    return record(usable());
}

/* The emulated device: only what the architecture fixes, and MI350's number of compute units. */
enum {
    COMPUTE_UNITS = 256,
    WAVE = 64,
    LDS_BYTES = 160 * 1024,
    MAX_BLOCK = 1024,
    MAX_RESIDENT = 2048,
    MAX_GRID = 0x7fffffff,
};
static const char NAME[] = "flycc emulated GPU";

/* Byte offsets in hipDeviceProp_tR0600, and its size. */
enum {
    PROP_NAME = 0,
    PROP_TOTAL_GLOBAL_MEM = 288,
    PROP_SHARED_MEM_PER_BLOCK = 296,
    PROP_WARP_SIZE = 308,
    PROP_MAX_THREADS_PER_BLOCK = 320,
    PROP_MAX_THREADS_DIM = 324,
    PROP_MAX_GRID_SIZE = 336,
    PROP_MAJOR = 360,
    PROP_MINOR = 364,
    PROP_MULTI_PROCESSOR_COUNT = 388,
    PROP_MAX_THREADS_PER_MULTI_PROCESSOR = 624,
    PROP_SHARED_MEM_PER_MULTIPROCESSOR = 640,
    PROP_GCN_ARCH_NAME = 1160,
    PROP_MAX_SHARED_MEMORY_PER_MULTI_PROCESSOR = 1416,
    PROP_BYTES = 1472,
};

static void put_int(char *at, int value) { memcpy(at, &value, sizeof value); }
static void put_size(char *at, size_t value) { memcpy(at, &value, sizeof value); }

int hipGetDevicePropertiesR0600(char *prop, int device) {
    int error = bad_device(device);
    if (error) return record(error);
    memset(prop, 0, PROP_BYTES);
    memcpy(prop + PROP_NAME, NAME, sizeof NAME);
    memcpy(prop + PROP_GCN_ARCH_NAME, arch, sizeof arch);
    put_size(prop + PROP_TOTAL_GLOBAL_MEM, device_memory);
    put_size(prop + PROP_SHARED_MEM_PER_BLOCK, LDS_BYTES);
    put_size(prop + PROP_SHARED_MEM_PER_MULTIPROCESSOR, LDS_BYTES);
    put_size(prop + PROP_MAX_SHARED_MEMORY_PER_MULTI_PROCESSOR, LDS_BYTES);
    put_int(prop + PROP_WARP_SIZE, WAVE);
    put_int(prop + PROP_MAX_THREADS_PER_BLOCK, MAX_BLOCK);
    put_int(prop + PROP_MAX_THREADS_PER_MULTI_PROCESSOR, MAX_RESIDENT);
    put_int(prop + PROP_MULTI_PROCESSOR_COUNT, COMPUTE_UNITS);
    put_int(prop + PROP_MAJOR, 9);
    put_int(prop + PROP_MINOR, 5);
    for (int i = 0; i < 3; i++) {
        put_int(prop + PROP_MAX_THREADS_DIM + 4 * i, MAX_BLOCK);
        put_int(prop + PROP_MAX_GRID_SIZE + 4 * i, MAX_GRID);
    }
    return SUCCESS;
}

int hipDeviceGetAttribute(int *value, int attribute, int device) {
    int error = bad_device(device);
    if (error) return record(error);
    switch (attribute) {
    case 23: *value = 9; break;                                              /* ComputeCapabilityMajor */
    case 61: *value = 5; break;                                              /* ComputeCapabilityMinor */
    case 26: case 27: case 28: case 56: *value = MAX_BLOCK; break;           /* MaxBlockDim, MaxThreadsPerBlock */
    case 29: case 30: case 31: *value = MAX_GRID; break;                     /* MaxGridDim */
    case 57: *value = MAX_RESIDENT; break;                                   /* MaxThreadsPerMultiProcessor */
    case 63: *value = COMPUTE_UNITS; break;                                  /* MultiprocessorCount */
    case 74: case 10002: *value = LDS_BYTES; break;                          /* MaxSharedMemoryPer... */
    case 87: *value = WAVE; break;                                           /* WarpSize */
    default: return record(INVALID_VALUE);
    }
    return SUCCESS;
}

int hipDeviceGetName(char *name, int size, int device) {
    int error = bad_device(device);
    if (error || size < 1) return record(error ? error : INVALID_VALUE);
    strncpy(name, NAME, (size_t)size - 1);
    name[size - 1] = 0;
    return SUCCESS;
}

int hipDeviceTotalMem(size_t *bytes, int device) {
    int error = bad_device(device);
    if (!error) *bytes = device_memory;
    return record(error);
}

int hipDeviceSynchronize(void) { return FORWARD(0); }
int hipMemGetInfo(address available, address total) { return FORWARD(available, total); }

/* Modules */
int hipModuleLoad(address module, address file) { return FORWARD(module, file); }
int hipModuleLoadData(address module, address image) { return FORWARD(module, image); }
int hipModuleLoadDataEx(address module, address image, unsigned count, address options, address values) {
    (void)count, (void)options, (void)values; /* options of a just-in-time compiler, which code objects do not need */
    return hipModuleLoadData(module, image);
}
/* Destructors unload modules at the end of a process, when the devices are gone and the modules with them. */
int hipModuleUnload(address module) { return usable() == DEINITIALIZED ? SUCCESS : FORWARD(module); }
int hipModuleGetFunction(address function, address module, address name) { return FORWARD(function, module, name); }
int hipModuleLaunchKernel(address function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, address stream, address params,
                          address extra) {
    return FORWARD(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra);
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(address count, address function, int block, size_t shared) {
    return FORWARD(count, function, (uint64_t)block, shared);
}

/* Memory */
int hipMalloc(address pointer, size_t size) { return FORWARD(pointer, size); }
int hipFree(address pointer) { return FORWARD(pointer); }
int hipHostRegister(address pointer, size_t size, unsigned flags) { return FORWARD(pointer, size, flags); }
int hipHostUnregister(address pointer) { return FORWARD(pointer); }
int hipHostGetDevicePointer(address device, address host, unsigned flags) { return FORWARD(device, host, flags); }
int hipMemcpy(address to, address from, size_t size, int kind) { return FORWARD(to, from, size, (uint64_t)kind); }
int hipMemcpyHtoD(address to, address from, size_t size) { return hipMemcpy(to, from, size, 1); }
int hipMemcpyDtoH(address to, address from, size_t size) { return hipMemcpy(to, from, size, 2); }
int hipMemcpyAsync(address to, address from, size_t size, int kind, address stream) {
    return FORWARD(to, from, size, (uint64_t)kind, stream);
}
int hipMemcpyHtoDAsync(address to, address from, size_t size, address stream) {
    return hipMemcpyAsync(to, from, size, 1, stream);
}
int hipMemcpyDtoHAsync(address to, address from, size_t size, address stream) {
    return hipMemcpyAsync(to, from, size, 2, stream);
}
/* (address, value, bytes of an element, number of elements, stream) */
static int fill(address to, uint64_t value, uint64_t width, size_t count, address stream) {
    const uint64_t args[] = {to, value, width, count, stream};
    return forward("fill", args, sizeof args / sizeof *args);
}
int hipMemsetAsync(address to, int value, size_t size, address stream) { return fill(to, (uint8_t)value, 1, size, stream); }
int hipMemsetD8Async(address to, unsigned char value, size_t count, address stream) {
    return fill(to, value, 1, count, stream);
}
int hipMemsetD16Async(address to, unsigned short value, size_t count, address stream) {
    return fill(to, value, 2, count, stream);
}
int hipMemsetD32Async(address to, int value, size_t count, address stream) {
    return fill(to, (uint32_t)value, 4, count, stream);
}
int hipMemset(address to, int value, size_t size) { return hipMemsetAsync(to, value, size, 0); }

/* Streams and events */
int hipStreamCreateWithPriority(address stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    return FORWARD(stream);
}
int hipStreamCreateWithFlags(address stream, unsigned flags) { return hipStreamCreateWithPriority(stream, flags, 0); }
int hipStreamCreate(address stream) { return hipStreamCreateWithPriority(stream, 0, 0); }
int hipStreamDestroy(address stream) { return FORWARD(stream); }
int hipStreamSynchronize(address stream) { return FORWARD(stream); }
int hipStreamQuery(address stream) { return FORWARD(stream); }
int hipStreamWaitEvent(address stream, address event, unsigned flags) { return FORWARD(stream, event, flags); }
int hipEventCreateWithFlags(address event, unsigned flags) { return FORWARD(event, flags); }
int hipEventCreate(address event) { return hipEventCreateWithFlags(event, 0); }
int hipEventDestroy(address event) { return FORWARD(event); }
int hipEventRecord(address event, address stream) { return FORWARD(event, stream); }
int hipEventSynchronize(address event) { return FORWARD(event); }
int hipEventQuery(address event) { return FORWARD(event); }
int hipEventElapsedTime(address milliseconds, address start, address stop) {
    return FORWARD(milliseconds, start, stop);
}

/* Graphs */
int hipStreamIsCapturing(address stream, address status) { return FORWARD(stream, status); }
int hipStreamGetCaptureInfo(address stream, address status, address id) { return FORWARD(stream, status, id); }
int hipStreamBeginCapture(address stream, int mode) { return FORWARD(stream, (uint64_t)mode); }
int hipStreamEndCapture(address stream, address graph) { return FORWARD(stream, graph); }
int hipGraphInstantiate(address executable, address graph, address node, address log, size_t log_size) {
    (void)node, (void)log, (void)log_size;
    return FORWARD(executable, graph);
}
int hipGraphLaunch(address executable, address stream) { return FORWARD(executable, stream); }
int hipGraphExecDestroy(address executable) { return FORWARD(executable); }
int hipGraphDestroy(address graph) { return FORWARD(graph); }

/* A C program's view of libamdhip64: compiled against HIP's own headers, it checks our prototypes and layouts. */
#include <hip/hip_runtime_api.h>
#include <string.h>

#define CHECK(condition) \
    if (!(condition)) return __LINE__

/* Returns 0, or the line of the first check that fails. */
int check_hip(int devices, const char *arch, size_t memory) {
    int count = 0, value = 0, status = -1;
    hipDeviceProp_t prop;
    char name[64];
    void *pointer = NULL, *host = NULL;
    size_t available = 0, total = 0;
    unsigned char bytes[64];
    hipStream_t stream;
    hipEvent_t first, last;
    hipGraph_t graph;
    hipGraphExec_t executable;
    float milliseconds = -1;

    CHECK(hipInit(0) == hipSuccess);
    CHECK(hipGetDeviceCount(&count) == hipSuccess && count == devices);
    CHECK(hipGetDeviceProperties(&prop, devices) == hipErrorInvalidDevice);
    CHECK(hipPeekAtLastError() == hipErrorInvalidDevice);
    CHECK(hipGetLastError() == hipErrorInvalidDevice && hipGetLastError() == hipSuccess);
    CHECK(hipGetDeviceProperties(&prop, 0) == hipSuccess);
    CHECK(!strcmp(prop.gcnArchName, arch) && prop.totalGlobalMem == memory);
    CHECK(prop.warpSize == 64 && prop.multiProcessorCount == 256 && prop.major == 9 && prop.minor == 5);
    CHECK(prop.maxThreadsPerBlock == 1024 && prop.maxThreadsDim[2] == 1024 && prop.maxGridSize[2] == 0x7fffffff);
    CHECK(prop.sharedMemPerBlock == 163840 && prop.maxSharedMemoryPerMultiProcessor == 163840);
    CHECK(prop.maxThreadsPerMultiProcessor == 2048 && prop.sharedMemPerMultiprocessor == 163840);
    CHECK(hipDeviceGetName(name, sizeof name, 0) == hipSuccess && !strcmp(name, prop.name));
    CHECK(hipDeviceTotalMem(&total, 0) == hipSuccess && total == memory);

    const struct { hipDeviceAttribute_t attribute; int value; } attributes[] = {
        {hipDeviceAttributeComputeCapabilityMajor, 9},
        {hipDeviceAttributeComputeCapabilityMinor, 5},
        {hipDeviceAttributeMaxBlockDimX, 1024},
        {hipDeviceAttributeMaxBlockDimY, 1024},
        {hipDeviceAttributeMaxBlockDimZ, 1024},
        {hipDeviceAttributeMaxThreadsPerBlock, 1024},
        {hipDeviceAttributeMaxGridDimX, 0x7fffffff},
        {hipDeviceAttributeMaxGridDimY, 0x7fffffff},
        {hipDeviceAttributeMaxGridDimZ, 0x7fffffff},
        {hipDeviceAttributeMaxThreadsPerMultiProcessor, 2048},
        {hipDeviceAttributeMultiprocessorCount, 256},
        {hipDeviceAttributeMaxSharedMemoryPerBlock, 163840},
        {hipDeviceAttributeMaxSharedMemoryPerMultiprocessor, 163840},
        {hipDeviceAttributeWarpSize, 64},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        CHECK(hipDeviceGetAttribute(&value, attributes[i].attribute, 0) == hipSuccess);
        CHECK(value == attributes[i].value);
    }

    CHECK(hipMalloc(&pointer, 64) == hipSuccess && pointer);
    CHECK(hipMemGetInfo(&available, &total) == hipSuccess && available == memory - 64 && total == memory);
    CHECK(hipMalloc(&host, memory) == hipErrorOutOfMemory);
    CHECK(hipMemset(pointer, 0x101, 64) == hipSuccess);
    CHECK(hipMemsetD8Async(pointer, 2, 8, NULL) == hipSuccess);
    CHECK(hipMemsetD16Async((char *)pointer + 8, 0x0304, 4, NULL) == hipSuccess);
    CHECK(hipMemsetD32Async((char *)pointer + 16, 0x05060708, 2, NULL) == hipSuccess);
    CHECK(hipMemset((char *)pointer + 60, 0, 5) == hipErrorInvalidValue);
    CHECK(hipMemcpy(bytes, pointer, 64, hipMemcpyDeviceToHost) == hipSuccess);
    CHECK(bytes[0] == 2 && bytes[7] == 2 && bytes[8] == 4 && bytes[15] == 3 && bytes[16] == 8 && bytes[23] == 5);
    CHECK(bytes[24] == 1 && bytes[63] == 1);
    CHECK(hipMemcpy(pointer, bytes, 65, hipMemcpyHostToDevice) == hipErrorInvalidValue);
    CHECK(hipMemcpy(bytes, bytes + 8, 8, hipMemcpyDefault) == hipSuccess && bytes[0] == 4);
    CHECK(hipHostRegister(bytes, 64, hipHostRegisterMapped) == hipSuccess);
    CHECK(hipHostRegister(bytes + 1, 1, 0) == hipErrorHostMemoryAlreadyRegistered);
    CHECK(hipHostGetDevicePointer(&host, bytes, 0) == hipSuccess && host == bytes);
    CHECK(hipMemset(bytes, 9, 64) == hipSuccess && hipDeviceSynchronize() == hipSuccess && bytes[63] == 9);
    CHECK(hipHostUnregister(bytes) == hipSuccess);
    CHECK(hipHostUnregister(bytes) == hipErrorHostMemoryNotRegistered);
    CHECK(hipHostGetDevicePointer(&host, bytes, 0) == hipErrorInvalidValue);

    CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking) == hipSuccess);
    CHECK(hipEventCreate(&first) == hipSuccess);
    CHECK(hipEventCreateWithFlags(&last, hipEventDisableTiming) == hipSuccess);
    CHECK(hipEventRecord(first, stream) == hipSuccess && hipEventQuery(first) == hipErrorNotReady);
    CHECK(hipMemsetAsync(pointer, 3, 64, stream) == hipSuccess);
    CHECK(hipEventRecord(last, stream) == hipSuccess && hipStreamQuery(stream) == hipErrorNotReady);
    CHECK(hipStreamWaitEvent(NULL, last, 0) == hipSuccess);
    CHECK(hipEventSynchronize(last) == hipSuccess && hipStreamQuery(stream) == hipSuccess);
    CHECK(hipEventElapsedTime(&milliseconds, first, last) == hipSuccess && milliseconds >= 0);
    CHECK(hipEventDestroy(first) == hipSuccess && hipEventQuery(first) == hipErrorInvalidHandle);

    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal) == hipSuccess);
    CHECK(hipStreamIsCapturing(stream, (hipStreamCaptureStatus *)&status) == hipSuccess);
    CHECK(status == hipStreamCaptureStatusActive);
    CHECK(hipMemsetAsync(pointer, 4, 64, stream) == hipSuccess);
    CHECK(hipStreamEndCapture(stream, &graph) == hipSuccess);
    CHECK(hipGraphInstantiate(&executable, graph, NULL, NULL, 0) == hipSuccess);
    CHECK(hipMemcpy(bytes, pointer, 64, hipMemcpyDeviceToHost) == hipSuccess && bytes[5] == 3);
    CHECK(hipGraphLaunch(executable, stream) == hipSuccess && hipStreamSynchronize(stream) == hipSuccess);
    CHECK(hipMemcpy(bytes, pointer, 64, hipMemcpyDeviceToHost) == hipSuccess && bytes[5] == 4);
    CHECK(hipGraphExecDestroy(executable) == hipSuccess && hipGraphDestroy(graph) == hipSuccess);

    /* Unsafe calls spoil a global capture, and the null stream does. */
    for (int i = 0; i < 2; i++) {
        CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal) == hipSuccess);
        CHECK((i ? hipMemsetAsync(pointer, 4, 64, NULL) : hipMalloc(&host, 8)) ==
              (i ? hipErrorStreamCaptureImplicit : hipErrorStreamCaptureUnsupported));
        CHECK(hipStreamIsCapturing(stream, (hipStreamCaptureStatus *)&status) == hipSuccess);
        CHECK(status == hipStreamCaptureStatusInvalidated);
        CHECK(hipStreamEndCapture(stream, &graph) == hipErrorStreamCaptureInvalidated && !graph);
    }
    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeRelaxed) == hipSuccess);
    CHECK(hipMalloc(&host, 8) == hipSuccess && hipFree(host) == hipSuccess);
    CHECK(hipStreamEndCapture(stream, &graph) == hipSuccess && hipGraphDestroy(graph) == hipSuccess);

    CHECK(hipStreamDestroy(stream) == hipSuccess && hipStreamSynchronize(stream) == hipErrorInvalidHandle);
    CHECK(hipFree(pointer) == hipSuccess && hipFree(NULL) == hipSuccess);
    CHECK(hipModuleLoad((hipModule_t *)&host, "/nonexistent") == hipErrorFileNotFound);
    CHECK(!strcmp(hipGetErrorName(hipErrorFileNotFound), "hipErrorFileNotFound"));
    CHECK(!strcmp(hipGetErrorName(hipErrorTbd), "hipErrorUnknown") && hipGetErrorString(hipSuccess));
    return 0;
}

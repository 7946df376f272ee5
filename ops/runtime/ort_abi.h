// The part of ONNX Runtime's C ABI that a custom-op library needs.
//
// No package ships ONNX Runtime's headers, but its C interface only ever grows at the end: OrtApi is a table of
// function pointers whose order is fixed since 1.0, and OrtCustomOp is a struct whose `version` says how many members
// the caller filled in. So a few slot numbers and one struct work on every release that knows version 18 (1.18 and
// later). Source of names, order and signatures: include/onnxruntime/core/session/onnxruntime_c_api.h of ONNX
// Runtime 1.18 (MIT); tests/ops/test_ops.py checks them against onnxruntime-training 1.19.2 and onnxruntime 1.31.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtStatus;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtOp;
struct OrtOpAttr;
struct OrtLogger;
struct OrtApi;  // a table of function pointers: see ort_api.h for the slots in use

// What ONNX Runtime passes to RegisterCustomOps.
struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // nullptr where the runtime is older than `version`
  const char* (*GetVersionString)();
};

// One custom operator. Members up to ReleaseAliasMap exist since version 18.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);  // nullptr result: CPU
  int (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  // The last four get no operator: pairs of (input, output) indices, as two arrays of the returned length.
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

}  // extern "C"

namespace poet {

constexpr uint32_t kOrtApiVersion = 18;  // the newest that 1.19.2 offers to custom ops

// OrtErrorCode
constexpr int kOrtFail = 1;

// OrtCustomOpInputOutputCharacteristic
constexpr int kRequired = 0, kOptional = 1;
constexpr int kVariadic = 2;

// OrtOpAttrType
constexpr int kAttributeInt = 1;
constexpr int kAttributeInts = 2;
constexpr int kAttributeFloat = 3;

// OrtAllocatorType
constexpr int kDeviceAllocator = 0;

// ONNXTensorElementDataType: the numbers of onnx.TensorProto.DataType.
constexpr int32_t kUndefined = 0;
constexpr int32_t kFloat = 1;
constexpr int32_t kUint8 = 2;
constexpr int32_t kInt32 = 6;
constexpr int32_t kInt64 = 7;
constexpr int32_t kBool = 9;
constexpr int32_t kDouble = 11;

}  // namespace poet

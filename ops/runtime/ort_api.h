// The OrtApi functions in use, by name, and the bridge between OrtStatus and C++ exceptions.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "process/error.h"
#include "runtime/ort_abi.h"

namespace poet {

// Function pointers out of OrtApi's table. The slot of each is in ort_api.cpp.
struct Api {
  OrtStatus* (*create_status)(int code, const char* message);
  const char* (*get_error_message)(const OrtStatus*);
  void (*release_status)(OrtStatus*);

  OrtStatus* (*create_custom_op_domain)(const char* name, OrtCustomOpDomain**);
  OrtStatus* (*custom_op_domain_add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus* (*add_custom_op_domain)(OrtSessionOptions*, OrtCustomOpDomain*);
  OrtStatus* (*has_session_config_entry)(const OrtSessionOptions*, const char* key, int* has);
  OrtStatus* (*get_session_config_entry)(const OrtSessionOptions*, const char* key, char* value, size_t* size);

  OrtStatus* (*get_tensor_mutable_data)(OrtValue*, void**);
  OrtStatus* (*get_tensor_type_and_shape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  OrtStatus* (*get_tensor_memory_info)(const OrtValue*, const OrtMemoryInfo**);
  OrtStatus* (*memory_info_get_type)(const OrtMemoryInfo*, int*);
  OrtStatus* (*allocator_alloc)(OrtAllocator*, size_t bytes, void**);
  OrtStatus* (*allocator_free)(OrtAllocator*, void*);
  OrtStatus* (*get_allocator_with_default_options)(OrtAllocator**);
  OrtStatus* (*cast_type_info_to_tensor_info)(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**);
  void (*release_type_info)(OrtTypeInfo*);

  OrtStatus* (*create_tensor_type_and_shape_info)(OrtTensorTypeAndShapeInfo**);
  OrtStatus* (*set_tensor_element_type)(OrtTensorTypeAndShapeInfo*, int);
  OrtStatus* (*set_dimensions)(OrtTensorTypeAndShapeInfo*, const int64_t*, size_t);
  OrtStatus* (*set_symbolic_dimensions)(OrtTensorTypeAndShapeInfo*, const char**, size_t);
  OrtStatus* (*get_tensor_element_type)(const OrtTensorTypeAndShapeInfo*, int*);
  OrtStatus* (*get_dimensions_count)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*get_dimensions)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  void (*release_tensor_type_and_shape_info)(OrtTensorTypeAndShapeInfo*);

  OrtStatus* (*kernel_info_get_float)(const OrtKernelInfo*, const char* name, float*);
  OrtStatus* (*kernel_info_get_int)(const OrtKernelInfo*, const char* name, int64_t*);
  OrtStatus* (*kernel_info_get_string)(const OrtKernelInfo*, const char* name, char*, size_t*);
  OrtStatus* (*kernel_info_get_ints)(const OrtKernelInfo*, const char* name, int64_t*, size_t*);
  OrtStatus* (*kernel_info_get_input_type_info)(const OrtKernelInfo*, size_t index, OrtTypeInfo**);
  OrtStatus* (*kernel_info_get_node_name)(const OrtKernelInfo*, char*, size_t*);
  OrtStatus* (*kernel_info_get_logger)(const OrtKernelInfo*, const OrtLogger**);
  OrtStatus* (*kernel_context_get_input_count)(const OrtKernelContext*, size_t*);
  OrtStatus* (*kernel_context_get_input)(const OrtKernelContext*, size_t index, const OrtValue**);
  OrtStatus* (*kernel_context_get_output)(OrtKernelContext*, size_t index, const int64_t*, size_t, OrtValue**);

  // Calls function(data, index) for every index below `total` on the session's threads.
  OrtStatus* (*kernel_context_parallel_for)(const OrtKernelContext*, void (*function)(void* data, size_t index),
                                            size_t total, size_t batches, void* data);

  OrtStatus* (*infer_get_input)(const OrtShapeInferContext*, size_t index, OrtTensorTypeAndShapeInfo**);
  OrtStatus* (*infer_get_attribute)(const OrtShapeInferContext*, const char* name, const OrtOpAttr**);
  OrtStatus* (*infer_set_output)(const OrtShapeInferContext*, size_t index, const OrtTensorTypeAndShapeInfo*);
  OrtStatus* (*read_op_attribute)(const OrtOpAttr*, int type, void* data, size_t size_bytes, size_t* needed_bytes);

  // Operators of the runtime's own, called from within a kernel.
  OrtStatus* (*create_op_attr)(const char* name, const void* data, int count, int type, OrtOpAttr**);
  void (*release_op_attr)(OrtOpAttr*);
  OrtStatus* (*create_op)(const OrtKernelInfo*, const char* name, const char* domain, int version,
                          const char** type_constraints, const int* types, int type_count,
                          const OrtOpAttr* const* attributes, int attribute_count, int input_count, int output_count,
                          OrtOp**);
  OrtStatus* (*invoke_op)(const OrtKernelContext*, const OrtOp*, const OrtValue* const* inputs, int input_count,
                          OrtValue* const* outputs, int output_count);
  void (*release_op)(OrtOp*);
  OrtStatus* (*create_cpu_memory_info)(int allocator_type, int memory_type, OrtMemoryInfo**);
  void (*release_memory_info)(OrtMemoryInfo*);
  OrtStatus* (*create_tensor_with_data)(const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* dimensions,
                                        size_t rank, int type, OrtValue**);
  void (*release_value)(OrtValue*);

  explicit Api(const OrtApi* table);  // of version kOrtApiVersion or newer
  // The one function that is needed of an older table, to say that it is too old.
  static decltype(create_status) create_status_of(const OrtApi* table);

  // Turns a failed status into an Error with the runtime's own words.
  void check(OrtStatus* status) const;
  // True where the call worked; a failure is released and forgotten (for questions that may have no answer).
  bool succeeded(OrtStatus* status) const noexcept;
};

// Runs `body` for a C caller: whatever it throws becomes an OrtStatus.
template <class Body>
OrtStatus* guarded(const Api& api, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return api.create_status(kOrtFail, "out of memory in the poet ops library");
  } catch (const std::exception& error) {
    return api.create_status(kOrtFail, error.what());
  } catch (...) {
    return api.create_status(kOrtFail, "unknown failure in the poet ops library");
  }
}

}  // namespace poet

#include "runtime/ort_api.h"

#include <cstring>

namespace poet {
namespace {

template <class Function>
void take(Function& function, const OrtApi* table, size_t slot) {
  static_assert(sizeof(function) == sizeof(void*), "OrtApi is a table of plain function pointers");
  std::memcpy(&function, reinterpret_cast<const char*>(table) + slot * sizeof(void*), sizeof(void*));
}

}  // namespace

Api::Api(const OrtApi* table) {
  take(create_status, table, 0);
  take(get_error_message, table, 2);
  take(create_custom_op_domain, table, 26);
  take(custom_op_domain_add, table, 27);
  take(add_custom_op_domain, table, 28);
  take(create_tensor_with_data, table, 49);
  take(get_tensor_mutable_data, table, 51);
  take(cast_type_info_to_tensor_info, table, 55);
  take(create_tensor_type_and_shape_info, table, 57);
  take(set_tensor_element_type, table, 58);
  take(set_dimensions, table, 59);
  take(get_tensor_element_type, table, 60);
  take(get_dimensions_count, table, 61);
  take(get_dimensions, table, 62);
  take(get_tensor_type_and_shape, table, 65);
  take(create_cpu_memory_info, table, 69);
  take(memory_info_get_type, table, 74);
  take(allocator_alloc, table, 75);
  take(allocator_free, table, 76);
  take(get_allocator_with_default_options, table, 78);
  take(kernel_info_get_float, table, 85);
  take(kernel_info_get_int, table, 86);
  take(kernel_info_get_string, table, 87);
  take(kernel_context_get_input_count, table, 88);
  take(kernel_context_get_input, table, 90);
  take(kernel_context_get_output, table, 91);
  take(release_status, table, 93);
  take(release_memory_info, table, 94);
  take(release_value, table, 96);
  take(release_type_info, table, 98);
  take(release_tensor_type_and_shape_info, table, 99);
  take(kernel_info_get_ints, table, 163);
  take(get_tensor_memory_info, table, 194);
  take(create_op_attr, table, 211);
  take(release_op_attr, table, 212);
  take(create_op, table, 213);
  take(invoke_op, table, 214);
  take(release_op, table, 215);
  take(kernel_info_get_input_type_info, table, 234);
  take(has_session_config_entry, table, 237);
  take(get_session_config_entry, table, 238);
  take(kernel_info_get_node_name, table, 244);
  take(kernel_info_get_logger, table, 245);
  take(infer_get_input, table, 268);
  take(infer_get_attribute, table, 269);
  take(infer_set_output, table, 270);
  take(set_symbolic_dimensions, table, 271);
  take(read_op_attribute, table, 272);
  take(kernel_context_parallel_for, table, 274);
}

decltype(Api::create_status) Api::create_status_of(const OrtApi* table) {
  decltype(create_status) function;
  take(function, table, 0);
  return function;
}

void Api::check(OrtStatus* status) const {
  if (status == nullptr) return;
  std::string message = get_error_message(status);
  release_status(status);
  throw Error(message);
}

bool Api::succeeded(OrtStatus* status) const noexcept {
  if (status == nullptr) return true;
  release_status(status);
  return false;
}

}  // namespace poet

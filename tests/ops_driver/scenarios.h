// Scenarios of integrity.cpp, which driver.cpp runs.
#pragma once

namespace driver {

void named_files_are_unlinked();
void missing_libcrypto_is_named();
void checksums_are_those_of_the_specification();
void every_call_may_fail();
void harmless_faults_are_completed();
void altered_pages_are_noticed();

}  // namespace driver

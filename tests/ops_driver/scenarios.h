// Scenarios of integrity.cpp and trust.cpp, which driver.cpp runs.
#pragma once

namespace driver {

void named_files_are_unlinked();
void missing_libcrypto_is_named();
void checksums_are_those_of_the_specification();
void every_call_may_fail();
void harmless_faults_are_completed();
void altered_pages_are_noticed();

void slots_keep_to_their_plan();
void room_is_taken_for_tensors_alone();
void tokens_are_their_stores_own();
void memory_of_a_page_in_shows_nothing_else();
void transfers_may_have_no_end();

}  // namespace driver

// Scenarios of blocks.cpp, integrity.cpp, trust.cpp, arena.cpp, packing.cpp and parameters.cpp, which driver.cpp runs.
#pragma once

namespace driver {

void blocks_of_a_kernel_share_threads();
void errors_of_blocks_do_not_depend_on_threads();

void named_files_are_unlinked();
void missing_libcrypto_is_named();
void checksums_are_those_of_the_specification();
void sums_of_pages_are_those_of_the_specification();
void every_call_may_fail();
void harmless_faults_are_completed();
void altered_pages_are_noticed();

void calls_of_a_parameter_store_may_fail();
void damaged_parameter_stores_are_refused();
void parameter_stores_that_were_made_up_do_no_harm();

void slots_keep_to_their_plan();
void room_is_taken_for_tensors_alone();
void tokens_are_their_stores_own();
void memory_of_a_page_in_shows_nothing_else();
void transfers_may_have_no_end();

void layouts_of_a_region_are_checked();
void gaps_of_a_region_are_poisoned();
void runs_that_keep_to_their_layout_need_no_malloc();
void any_run_is_served_rightly();
void threads_share_an_arena_or_not();
void faults_of_an_arena_are_harmless();
void slots_that_live_at_once_never_overlap();
void models_of_any_bytes_are_written_or_refused();
void a_child_of_a_fork_has_its_own_region();

}  // namespace driver

"""The gate, `sudo ./test.sh`: what `--unit` runs, and of each protection that btrkeep gives the tests that are named here.

PROTECTIONS is the one place. A test that is not named here runs in `./test.sh --all`, and in CI when a change touches its module or
it is its module's turn (tests/beds/touched.py). The gate takes ten minutes on two quiet cores; each test that is added lets another
one go.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from hypothesis import settings

PROTECTIONS: Mapping[str, tuple[str, ...]] = {
    "a backup is what the host had": (
        "btrfs/test_fidelity.py::test_source_and_backup_are_identical_after_a_first_and_a_second_night[on this machine]",
        "btrfs/test_fidelity.py::test_source_and_backup_are_identical_after_a_first_and_a_second_night[over ssh]",
        "btrfs/test_fidelity.py::test_the_parents_of_a_source_path_keep_their_owners_and_modes",
        "btrfs/test_fidelity.py::test_other_ways_of_writing_bring_back_the_same",
        "btrfs/test_counted.py::test_new_counts_data_without_holes_and_files_counts_files",
        "btrfs/test_counted.py::test_a_backup_whose_own_tree_cannot_be_read_is_not_complete",
        "btrfs/test_sharing.py::test_a_night_without_changes_stores_nothing",
        "btrfs/test_sharing.py::test_a_new_sparse_file_with_links_and_an_odd_name_has_its_holes_in_a_later_night",
        "btrfs/test_sharing.py::test_a_file_rewritten_in_the_same_second_at_the_same_size_is_fetched",
        "btrfs/test_record_files.py::test_the_numbers_are_those_of_the_source_and_of_what_was_sent",
        "btrfs/test_hazard_passes.py::test_a_hard_link_that_is_broken_between_the_passes_corrupts_no_other_name",
    ),
    "a host's files stand still while they are read, and its keys allow no more than they must": (
        "btrfs/test_source_program.py::test_a_session_is_one_moment_while_files_are_written_and_a_live_transfer_is_not",
        "btrfs/test_source_program.py::test_a_database_under_load_is_whole_in_a_session_and_in_a_dump[WAL]",
        "btrfs/test_source_sessions.py::test_two_servers_have_their_own_sessions",
        "btrfs/test_source_sessions.py::test_a_killed_rsync_leaves_no_mount_and_the_next_begin_removes_its_session",
        "btrfs/test_source_attacks.py::test_a_session_reads_only_the_paths_that_it_was_begun_with",
        "btrfs/test_source_attacks.py::test_a_restore_writes_below_its_folders_and_nowhere_else",
        "btrfs/test_source_restores.py::test_with_the_two_lines_that_setup_prints_a_host_is_backed_up_and_files_come_back[required]",
        "btrfs/test_consistent_source.py::test_two_nights_are_of_the_moments_at_which_their_sessions_began",
        "btrfs/test_consistent_source.py::test_a_dump_is_in_the_backup_and_one_that_fails_makes_it_suspect",
        "btrfs/test_no_snapshots.py::test_with_required_the_run_fails_with_the_reason_and_no_file_is_fetched",
    ),
    "a hard link broken at the source harms no other name": (
        "btrfs/test_hardlinks.py::test_a_link_broken_at_the_source_comes_back_right_and_the_others_stay_links",
        "btrfs/test_hardlinks.py::test_every_kind_of_file_keeps_all_it_has_and_nothing_outside_is_touched",
        "btrfs/test_hazard_links.py::test_a_hard_link_broken_at_the_source_harms_no_name_and_links_that_hold_stay[always]",
        "btrfs/test_hazard_links_since.py::test_links_that_hold_for_nights_and_then_break_harm_no_name_in_a_tree_that_hardly_changes",
    ),
    "holes keep their place and change no content": (
        "btrfs/test_holes.py::test_a_sparse_file_that_is_new_in_the_second_night_has_its_holes",
        "btrfs/test_holes.py::test_owner_mode_capabilities_and_times_stay",
        "btrfs/test_holes.py::test_nothing_outside_of_the_backup_is_reached",
        "btrfs/test_holes.py::test_any_layout_keeps_its_content_and_has_the_holes_that_fallocate_digs[0]",
        "btrfs/test_holes.py::test_any_layout_keeps_its_content_and_has_the_holes_that_fallocate_digs[1]",
    ),
    "what is missing or unreadable at the source makes no silently complete backup": (
        "btrfs/test_hazard_missed.py::test_unreadable_files_within_the_limit_make_a_complete_backup_with_a_warning[always]",
        "btrfs/test_hazard_missed.py::test_a_path_of_which_nothing_could_be_read_is_suspect_whatever_the_limit",
        "btrfs/test_hazard_missed.py::test_a_folder_that_cannot_be_read_counts_for_all_that_the_base_has_below_it",
        "btrfs/test_hazard_mounts.py::test_a_filesystem_that_is_no_longer_mounted_makes_the_backup_suspect_until_it_is_back",
        "btrfs/test_hazard_paths.py::test_a_missing_source_path_fails_the_backup_but_other_paths_and_hosts_are_fetched",
        "btrfs/test_hazard_shrink.py::test_an_emptied_source_path_is_suspect_and_never_a_base_until_it_is_accepted",
        "btrfs/test_hazard_shrink.py::test_shrinking_by_files_alone_is_seen_beyond_the_limit_and_not_at_it",
        "btrfs/test_excluded_since.py::test_what_is_excluded_by_name_is_no_loss_and_a_loss_beside_it_is_one[True]",
    ),
    "a power cut loses no complete backup and invents none": (
        "btrfs/test_power_cut.py::test_a_file_that_has_its_new_time_and_its_old_content_after_a_power_cut_is_not_taken_for_the_new_one",
        "btrfs/test_power_cut.py::test_a_first_copy_that_has_sizes_and_no_data_after_a_power_cut_is_not_taken_for_whole",
        "btrfs/test_power_cut.py::test_what_a_run_has_called_complete_has_its_name_when_the_power_is_cut_at_its_end",
        "btrfs/test_power_cuts.py::test_a_log_of_the_kernel_is_replayed_to_what_was_safe_at_each_flush",
        "btrfs/test_after_crash.py::test_what_the_last_minutes_wrote_is_read_at_once_and_nothing_else",
        "btrfs/test_after_crash.py::test_a_night_reads_it_before_it_becomes_a_base",
        "btrfs/test_continued.py::test_a_working_whose_record_a_power_cut_left_empty_costs_its_host_nothing[a first copy-]",
    ),
    "a run that is killed at any step loses nothing": (
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[after-snapshot-made-1]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[after-working-subvolume-named-1]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[after-inode-copied-2]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[after-rsync-ended-1]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[before-backup-json-replaced-2]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[after-subvolume-made-read-only-1]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[before-backup-named-1]",
        "btrfs/test_crash_steps.py::test_a_run_killed_at_this_step_costs_nothing_that_was_there_and_the_next_one_ends_what_it_began[before-run-and-backup-finished-in-the-catalogue-1]",
        "btrfs/test_crash_steps.py::test_the_first_backup_of_a_host_may_be_killed_too[after-subvolume-created-1]",
        "btrfs/test_crash_steps.py::test_the_first_backup_of_a_host_may_be_killed_too[after-progress-of-rsync-noted-1]",
        "btrfs/test_crash_steps.py::test_the_run_that_ends_what_another_left_may_be_killed_as_well[after]",
        "btrfs/test_crash_steps.py::test_what_was_killed_while_links_were_split_is_discarded_when_it_does_not_fit_any_more",
        "btrfs/test_crash_orphans.py::test_kill_9_in_mid_transfer_and_started_again_at_once",
        "btrfs/test_crash_orphans.py::test_a_process_that_was_given_the_number_of_a_dead_receiver_is_left_alone",
        "btrfs/test_crash_foreign.py::test_what_lies_at_working_and_is_not_ours_is_in_the_way_and_says_so[a copy of a backup]",
        "btrfs/test_crash_foreign.py::test_what_lies_at_working_and_is_not_ours_is_in_the_way_and_says_so[a symlink]",
        "btrfs/test_continued.py::test_a_first_copy_that_was_killed_is_compared_and_not_sent_again",
        "btrfs/test_continued.py::test_one_with_a_base_that_was_killed_begins_again_from_the_base",
        "btrfs/test_continued.py::test_what_broke_off_before_its_host_got_an_exclusion_is_not_gone_on_with",
        "btrfs/test_signals.py::test_the_first_signal_stops_four_transfers_within_seconds_and_keeps_what_they_have[1-15]",
        "btrfs/test_signals.py::test_a_terminal_that_goes_away_stops_the_run_cleanly[lines]",
        "btrfs/test_signals.py::test_a_signal_while_a_backup_is_made_final_lets_it_become_final",
    ),
    "a disk that loses or damages data is found out": (
        "backupd/test_damages.py::test_every_damaged_backup_is_read_again_however_much_is_damaged[a twentieth of a pool]",
        "backupd/test_damages.py::test_every_damaged_backup_is_read_again_however_much_is_damaged[long paths]",
        "btrfs/test_lost_writes.py::test_a_run_whose_data_the_disk_did_not_take_has_failed_and_leaves_nothing_that_is_believed",
        "btrfs/test_lost_writes.py::test_a_restore_whose_data_the_disk_did_not_take_fails",
        "btrfs/test_damaged_base.py::test_a_changed_file_whose_base_cannot_be_read_any_more_is_whole_in_the_next_backup[there-always]",
        "btrfs/test_damaged_tree.py::test_the_oldest_backup_whose_metadata_is_damaged_is_kept_too",
        "btrfs/test_damaged.py::test_a_scrub_names_the_file_and_all_backups_that_share_what_was_spoilt",
        "btrfs/test_scrub.py::test_errors_are_told_and_fail_it_even_when_they_were_put_right",
        "btrfs/test_altered.py::test_a_changed_backup_is_no_base_and_no_parent_of_a_copy",
        "btrfs/test_altered.py::test_an_altered_backup_counts_for_nothing_and_is_kept",
    ),
    "verify finds damage, and repair mends it": (
        "btrfs/test_verify.py::test_what_the_disk_flipped_is_named_in_every_backup_that_shares_it",
        "btrfs/test_verify.py::test_a_file_that_reads_well_with_another_content_is_damaged",
        "btrfs/test_verify.py::test_a_sample_reads_what_is_known_to_be_damaged_also_when_no_checksum_says_so",
        "btrfs/test_verify.py::test_a_pass_goes_on_where_it_was_cut_off",
        "btrfs/test_verify_faults.py::test_an_end_in_the_middle_forgets_no_damage",
        "btrfs/test_verify_source.py::test_a_bit_that_flipped_behind_the_filesystem_is_found",
        "btrfs/test_verify_source.py::test_what_compares_can_write_nowhere",
        "btrfs/test_repair.py::test_the_copies_are_what_the_backups_were_and_stand_in_their_place",
        "btrfs/test_repair.py::test_a_folder_that_is_named_serves_only_what_was_recorded",
        "btrfs/test_repair.py::test_a_kill_at_any_step_leaves_whole_copies_and_one_of_each",
        "btrfs/test_drill.py::test_a_whole_backup_is_restored_compared_and_gone_again",
        "btrfs/test_drill.py::test_a_difference_between_the_backup_and_what_came_back_is_found[setfacl -b {top}/deep/er/file6-ACL]",
    ),
    "a hostile host harms itself alone": (
        "btrfs/test_hostile_senders.py::test_every_attack_harms_its_own_host_alone_and_the_next_night_is_well",
        "btrfs/test_confined.py::test_an_rsync_that_a_host_has_taken_over_can_do_nothing",
        "btrfs/test_untrusted.py::test_no_link_stands_where_a_folder_must_be_when_an_rsync_starts",
        "btrfs/test_untrusted.py::test_a_link_that_the_host_lists_for_a_folder_is_kept_as_a_link_and_never_followed",
        "btrfs/test_untrusted.py::test_a_name_that_was_not_asked_for_is_refused",
        "btrfs/test_untrusted.py::test_names_that_look_like_what_rsync_prints_do_not_confuse_what_is_read_from_it",
        "btrfs/test_untrusted.py::test_the_documented_key_line_works_as_it_stands",
        "btrfs/test_hazard_words.py::test_numbers_that_add_up_beyond_what_sqlite_holds_stay_that_hosts_own_trouble",
        "btrfs/test_hazard_words.py::test_a_host_that_prints_without_end_is_stopped_and_the_others_are_not[evil\\n]",
        "btrfs/test_hazard_paths.py::test_a_symlink_planted_where_a_parent_folder_must_be_is_not_followed",
        "btrfs/test_quotas.py::test_a_host_that_uses_its_quota_up_is_stopped_alone_and_completes_when_it_fits_again",
        "backupd/test_command.py::test_a_restricted_key_sends_the_right_folder_or_nothing",
    ),
    "hostile bytes end no parser": (
        "test_fuzz.py::test_whatever_the_bytes_are_nothing_unforeseen_happens[notes-json-2]",
        "backupd/test_serve_protocol.py",
        "btrkeep/test_config_mutations.py::test_a_valid_file_with_random_cuts_and_insertions_loads_or_is_a_config_error",
    ),
    "a pool that is full, read-only or elsewhere costs no backup that is complete": (
        "btrfs/test_full_pool.py::test_a_run_makes_the_reserve_and_it_is_one_percent_of_the_pool",
        "btrfs/test_full_pool.py::test_expire_marks_and_deletes_on_a_full_pool_and_the_pool_takes_backups_again",
        "btrfs/test_full_pool.py::test_what_fills_the_pool_and_is_unfinished_is_discarded",
        "btrfs/test_full_pool.py::test_notes_of_all_kinds_can_be_written_on_a_full_pool",
        "btrfs/test_full_pool.py::test_notes_that_not_even_the_reserve_has_room_for_are_refused_in_one_line_and_the_old_ones_stay",
        "btrfs/test_full_pool.py::test_a_lock_on_a_full_pool_is_held_and_its_holder_is_known_although_no_text_says_so",
        "btrfs/test_full_pool.py::test_without_room_for_metadata_what_is_marked_is_deleted",
        "btrfs/test_full_pool.py::test_files_of_locks_that_are_missing_are_made_by_the_next_run",
        "btrfs/test_hazard_pool.py::test_a_full_pool_is_a_failure_that_leaves_the_earlier_backup_intact_and_goes_on_when_there_is_room",
        "btrfs/test_hazard_pool.py::test_a_read_only_pool_is_unusable_and_nothing_starts",
        "btrfs/test_pool_twice.py::test_a_second_mount_of_the_pool_below_a_source_is_not_backed_up",
        "btrkeep/test_pool.py::test_a_pool_that_was_being_made_when_the_power_went_is_made_again",
        "btrkeep/test_pool.py::test_a_pool_that_is_not_mounted_is_no_pool",
        "btrkeep/test_pool.py::test_a_marker_that_was_copied_to_another_filesystem_makes_no_pool",
        "btrkeep/test_pool.py::test_a_damaged_marker_is_to_be_restored_and_not_made_anew",
        "btrkeep/test_pool.py::test_a_newer_format_is_left_to_the_newer_program",
        "btrkeep/test_pool.py::test_what_is_read_only_cannot_be_written_also_not_by_root",
        "btrkeep/test_pool.py::test_a_subvolume_is_deleted_by_its_id_even_if_another_one_has_its_name",
        "btrkeep/test_pool.py::test_a_symlink_is_never_followed_to_what_is_made_read_only_or_snapshotted",
        "btrkeep/test_pool.py::test_a_commit_brings_everything_to_the_disk",
        "backupd/test_cli_pool.py::test_a_pool_that_the_catalogue_knows_is_to_be_mounted_and_not_made_anew",
        "backupd/test_cli_pool.py::test_a_marker_that_cannot_be_understood_is_unusable",
    ),
    "storage that answers nothing keeps nobody waiting for ever": (
        "btrfs/test_stuck.py::test_a_stuck_process_costs_only_its_host_the_night_and_the_night_ends",
        "btrfs/test_stuck.py::test_a_night_whose_catalogue_does_not_answer_backs_up_all_hosts",
        "btrfs/test_stall.py::test_a_host_whose_rsync_stands_still_is_given_up_and_what_came_is_kept",
        "btrfs/test_dying_state.py::test_the_command_ends_as_its_child_does_and_prints_all_of_it",
    ),
    "a restore to a folder gives back what the backup has": (
        "btrfs/test_restore.py",
        "btrfs/test_restore_batches.py::test_the_result_is_the_same_with_one_processor_and_with_more[content-0-1]",
        "btrfs/test_restore_batches.py::test_a_killed_process_of_a_restore_ends_it_with_a_reason_and_the_next_one_goes_on",
        "btrfs/test_restore_groups.py::test_a_random_tree_comes_back_in_groups_and_one_by_one[0]",
        "btrfs/test_restore_whole_folders.py::test_what_a_killed_restore_left_is_deleted_and_what_is_not_its_stays",
        "btrfs/test_restore_content.py::test_all_mends_what_has_the_same_size_and_time_and_other_content",
        "btrfs/test_restore_privileged.py",
        "btrfs/test_restore_trusted.py",
        "btrfs/test_restore_stopped.py::test_killed_in_the_middle_it_goes_on_and_nothing_is_left_behind",
        "btrfs/test_restore_stopped.py::test_a_signal_ends_it_well",
        "btrfs/test_restore_expiry.py",
    ),
    "a restore to a tar or a zip holds what the backup has": (
        "btrfs/test_restore_archive.py::test_gnu_tar_extracts_all_that_a_backup_keeps",
        "btrfs/test_restore_archive.py::test_a_tar_of_the_root_holds_the_whole_backup",
        "btrfs/test_restore_archive.py::test_names_in_an_archive_are_whole_paths",
        "btrfs/test_restore_archive.py::test_a_path_below_another_one_is_in_the_archive_once",
        "btrfs/test_restore_archive.py::test_a_huge_sparse_file_is_a_small_tar_and_comes_back_whole",
        "btrfs/test_restore_archive.py::test_info_zip_extracts_files_folders_and_symlinks_with_modes_times_and_owners",
        "btrfs/test_restore_archive.py::test_names_that_are_no_utf8_are_readable_in_a_zip",
        "btrfs/test_restore_archive.py::test_what_is_mounted_in_a_backup_is_in_no_archive_and_ends_it",
        "btrfs/test_restore_archive.py::test_a_file_that_cannot_be_read_ends_the_archive",
        "btrfs/test_restore_archive.py::test_a_tar_that_ends_before_a_member_is_incomplete_for_every_reader",
        "btrfs/test_restore_archive.py::test_a_tar_that_a_signal_ends_between_two_members_is_incomplete_for_every_reader",
        "btrfs/test_restore_archive.py::test_a_tar_into_a_pipe_has_large_files_from_the_kernel_and_is_whole_only_at_its_end",
        "btrfs/test_restore_archive.py::test_a_large_file_that_ends_early_or_a_reader_that_leaves_is_named",
    ),
    "a restore to a host puts files where they were": (
        "btrfs/test_restore_to_host.py::test_all_comes_back_to_where_it_was",
        "btrfs/test_restore_to_host.py::test_the_whole_backup_goes_to_where_it_was_and_nowhere_else",
        "btrfs/test_restore_to_host.py::test_what_is_in_the_way_is_named_and_nothing_is_written",
        "btrfs/test_restore_to_host.py::test_what_is_of_another_kind_there_is_never_deleted_to_make_room",
        "btrfs/test_restore_to_host.py::test_a_symlink_in_the_place_of_a_folder_above_leads_nowhere",
        "btrfs/test_restore_refused_names.py::test_a_restore_over_ssh_counts_what_it_did",
    ),
    "a second pool has the same, and can take over": (
        "btrfs/test_replicate.py::test_what_is_fetched_is_the_same_and_a_difference_to_what_was_there",
        "btrfs/test_replicate.py::test_what_was_cut_off_or_garbled_leaves_nothing_and_is_fetched_again[flipped]",
        "btrfs/test_replicate.py::test_what_was_cut_off_or_garbled_leaves_nothing_and_is_fetched_again[cut]",
        "btrfs/test_replicate.py::test_a_kill_in_the_middle_leaves_what_the_next_one_clears_away",
        "btrfs/test_replicate.py::test_a_pool_that_took_the_place_of_another_is_not_fetched",
        "btrfs/test_replicate.py::test_a_change_by_hand_is_noticed_and_not_built_upon[ioctl]",
        "btrfs/test_replicate.py::test_the_last_common_backup_stays_on_both_sides",
        "btrfs/test_replicate_content.py::test_a_copy_and_the_copy_of_a_copy_are_the_same_and_share_what_did_not_change",
        "btrfs/test_replicate_content.py::test_a_file_that_changed_under_the_same_size_and_time_is_changed_in_the_copy_too",
        "btrfs/test_replicate_ways.py::test_there_and_back_nothing_is_transferred_twice_and_nothing_is_lost",
        "btrfs/test_replicate_together.py::test_what_comes_together_is_on_the_disk_by_one_sync_before_any_of_it_has_its_name",
        "btrfs/test_replicate_together.py::test_a_stream_that_does_not_come_whole_costs_none_that_came_before_it[flip-crc]",
        "btrfs/test_replicate_together.py::test_a_stream_that_would_change_the_one_before_it_makes_no_backup_of_anything_else[../../stolen-1]",
        "btrfs/test_replicate_damaged.py::test_what_is_damaged_here_comes_again_and_takes_its_place",
        "btrfs/test_replicate_damaged.py::test_a_kill_leaves_one_of_the_two_copies_and_the_next_time_the_good_one[after-damaged copy replaced]",  # noqa: E501
        "btrfs/test_promote.py::test_a_promote_that_was_killed_pins_nothing_and_can_be_given_again[after]",
        "btrfs/test_initial_copies.py::test_a_seed_becomes_a_copy_and_the_next_fetch_is_a_difference_to_it",
        "btrfs/test_push.py::test_what_is_sent_is_whole_the_next_time_a_difference_and_both_sides_tell_of_it",
    ),
    "a server that was taken over harms no second pool": (
        "btrfs/test_replicate_hostile.py::test_a_server_that_was_taken_over_writes_nothing_but_what_is_thrown_away",
        "btrfs/test_replicate_hostile.py::test_a_key_that_has_a_name_and_hosts_gets_no_others",
        "btrfs/test_replicate_data_symlink.py::test_a_copy_whose_data_is_a_symlink_is_refused",
        "btrfs/test_replicate_hostile.py::test_by_ssh_the_key_lists_and_sends_and_does_nothing_else",
        "btrfs/test_push.py::test_a_hostile_other_side_gets_and_changes_nothing[asked3]",
        "btrfs/test_initial_copies_hostile.py::test_nothing_on_a_changed_disk_is_trusted",
    ),
    "an offsite repository gives back what the host had": (
        "btrfs/test_offsite.py::test_plain_restic_gets_back_what_the_host_had_with_time_and_host",
        "btrfs/test_offsite.py::test_no_secret_is_in_the_catalogue_on_a_command_line_or_in_what_is_said",
        "btrfs/test_offsite.py::test_killed_in_the_middle_it_goes_on_and_nothing_counts_that_is_not_whole",
    ),
    "retention keeps what the policy says": (
        "backupd/test_retention_golden.py::test_five_years_pruned_after_each_backup_leave_what_the_golden_list_names[daily]",
        "backupd/test_retention_golden.py::test_five_years_with_a_grace_leave_what_the_golden_list_names_and_what_waits_for_the_end_of_its_grace[daily]",
        "backupd/test_retention_golden.py::test_what_is_kept_and_why_is_what_gnu_date_and_sqlite_say[Europe/Berlin]",
        "backupd/test_retention.py",
        "btrfs/test_wrong_clock.py::test_expiry_goes_on_every_morning_and_keeps_the_one_from_the_future",
    ),
    "expiry deletes what is due and nothing else": (
        "btrfs/test_expire.py::test_what_no_rule_keeps_is_marked_first_and_deleted_when_its_grace_is_over",
        "btrfs/test_expire.py::test_without_a_policy_everything_stays_and_that_is_said",
        "btrfs/test_expire.py::test_a_rehearsal_does_what_the_run_after_it_does",
        "btrfs/test_expire.py::test_the_last_complete_backup_stays_whatever_comes_after_it",
        "btrfs/test_expire.py::test_a_held_backup_stays_as_long_as_its_hold_lasts",
        "btrfs/test_expire.py::test_a_wrong_row_deletes_no_backup_that_must_stay_by_the_pool",
        "btrfs/test_expire.py::test_a_host_whose_backup_runs_is_left_to_the_next_run",
        "btrfs/test_expire.py::test_foreign_files_in_the_folder_of_a_forgotten_host_stay_and_are_named",
        "btrfs/test_expire_foreign.py::test_what_is_not_ours_stays_although_notes_and_rows_say_that_it_has_expired[a read-only snapshot of a backup]",  # noqa: E501
        "btrfs/test_expire_foreign.py::test_what_is_not_ours_stays_although_notes_and_rows_say_that_it_has_expired[a copy of a backup]",  # noqa: E501
        "btrfs/test_expire_foreign.py::test_a_backup_whose_record_cannot_be_read_stays_and_is_named[]",
        "btrfs/test_expire_foreign.py::test_a_host_whose_notes_cannot_be_read_loses_nothing_and_is_named[{]",
        "btrfs/test_expire_foreign.py::test_a_folder_that_was_renamed_stays_and_comes_back_unmarked",
        "btrfs/test_expire_foreign.py::test_a_newer_backup_that_turns_out_damaged_between_plan_and_act_keeps_the_older_one",
        "btrfs/test_expire_foreign.py::test_a_backup_that_is_replaced_in_the_last_moment_stays",
        "btrfs/test_expire_foreign.py::test_a_killed_run_that_was_about_to_delete_what_is_held_afterwards_does_not",
        "btrfs/test_expire_foreign.py::test_a_lost_catalogue_costs_no_hold_and_no_backup",
        "btrfs/test_expire_foreign.py::test_what_is_mounted_in_the_place_of_a_backup_has_no_other_deleted_by_its_number",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[after-catalogue-reconciled-with-the-pool-1]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[before-notes-json-replaced-1]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[after-notes-json-replaced-1]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[after-backups-marked-as-deleting-1]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[before-subvolume-deleted-2]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[after-filesystem-committed-1]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[before-rows-of-deleted-backups-dropped-1]",
        "btrfs/test_expire_steps.py::test_an_expiry_killed_at_this_step_takes_nothing_else_with_it_and_the_next_one_ends_what_it_began[before-expiry-ended-in-the-catalogue-1]",
        "btrfs/test_expire_steps.py::test_the_removal_of_a_host_that_was_given_up_may_be_killed_too[before-rows-of-the-host-dropped-1]",
        "btrfs/test_expire_guards.py::test_a_host_of_which_too_much_would_go_is_left_out_until_it_is_named",
        "btrfs/test_expire_guards.py::test_a_clock_that_went_back_stops_everything_until_it_is_said_to_be_right",
        "btrfs/test_expire_guards.py::test_a_clock_that_ran_ahead_ends_no_grace_in_this_run_and_does_a_night_later",
        "btrfs/test_delete.py::test_what_has_to_stay_is_refused_and_nothing_is_changed[last]",
        "btrfs/test_delete.py::test_what_has_to_stay_is_refused_and_nothing_is_changed[base]",
        "btrfs/test_delete.py::test_a_deletion_at_once_killed_at_a_step_is_ended_by_the_next_expiry[after-subvolume deleted-1]",
        "btrfs/test_hold.py::test_a_hold_is_in_the_notes_and_in_the_row",
        "btrfs/test_hold.py::test_holding_an_expired_backup_takes_the_mark_off_and_says_so",
        "btrfs/test_hold.py::test_what_is_being_deleted_cannot_be_kept",
        "btrfs/test_hold.py::test_notes_that_cannot_be_read_are_not_written_over",
        "btrfs/test_hold.py::test_a_hold_killed_at_a_step_is_there_or_not_and_given_again_is_done",
        "btrfs/test_hold.py::test_a_rebuild_brings_holds_and_marks_back",
        "btrfs/test_discard.py::test_what_is_unfinished_goes_for_good_and_the_final_backup_stays",
        "btrfs/test_discard.py::test_what_is_finished_or_not_ours_is_left_alone",
    ),
    "expiry keeps to its queue, its limits and the mount option": (
        "btrfs/test_expire_queue.py::test_a_signal_in_the_middle_of_deletions_leaves_no_row_that_says_deleting",
        "btrfs/test_expire_queue.py::test_it_waits_for_no_backup_while_the_pool_has_less_than_min_free",
        "btrfs/test_expire_option.py::test_it_is_switched_while_something_is_deleted_and_nothing_else_changes",
        "btrfs/test_expire_option.py::test_a_signal_puts_it_back[15-143]",
        "btrfs/test_expire_option.py::test_after_a_kill_the_next_start_puts_it_back[after-mount-option.json replaced]",
        "btrfs/test_expire_option.py::test_a_mount_option_that_was_changed_during_the_expiry_is_kept_and_reported",
        "btrfs/test_expire_balance.py::test_an_expiry_deletes_nothing_while_a_block_group_is_balanced",
    ),
    "the catalogue is a copy of what the pool says": (
        "btrfs/test_reconcile.py::test_a_row_whose_subvolume_was_deleted_is_deleted",
        "btrfs/test_reconcile.py::test_a_subvolume_without_a_row_gets_one",
        "btrfs/test_reconcile.py::test_a_damaged_record_leaves_its_backup_and_its_row_alone[{]",
        "btrfs/test_reconcile.py::test_rebuild_equals_what_was_lost_an_acceptance_included",
        "btrfs/test_reconcile.py::test_a_lost_catalogue_comes_back_by_itself_with_the_next_run",
        "btrfs/test_reconcile.py::test_the_catalogue_of_another_pool_is_refused",
        "btrfs/test_reconcile.py::test_a_pool_that_is_not_mounted_is_refused_and_nothing_is_written_where_it_should_be",
        "btrfs/test_reconcile_notes.py::test_a_kill_between_the_notes_and_the_row_is_mended_by_the_next_start[expire-hold]",
        "btrfs/test_reconcile_notes.py::test_a_kill_between_the_notes_and_the_row_is_mended_by_the_next_start[run-accept]",
        "btrfs/test_seals_lost.py::test_only_backups_that_differ_from_their_seal_are_opened_and_each_is_counted_once",
        "btrfs/test_reconcile_notes.py::test_a_kill_between_the_marks_and_the_rows_is_mended_by_the_next_run",
        "btrfs/test_reconcile_notes.py::test_a_hold_that_is_set_while_the_catalogue_is_rebuilt_is_not_lost",
        "btrfs/test_reconcile_notes.py::test_an_unreadable_record_does_not_affect_other_backups[nested too deeply]",
        "btrfs/test_rename.py::test_everything_works_with_the_new_name_and_the_next_backup_grows_from_the_old_ones",
        "btrfs/test_rename.py::test_a_rename_killed_at_a_step_leaves_one_name_or_the_other_and_given_again_is_done",
        "btrfs/test_forget.py::test_a_host_that_left_is_forgotten_in_its_notes_and_its_backups_stay_for_now",
        "btrfs/test_forget.py::test_who_is_still_backed_up_cannot_be_forgotten",
        "btrfs/test_forget.py::test_forgetting_and_taking_back_that_were_killed_are_done_when_given_again",
        "btrfs/test_rebuild_meanwhile.py::test_a_command_that_a_rebuild_meets_ends_as_without_it[replicate after stream received]",
        "btrfs/test_full_state.py::test_a_state_folder_that_is_full_from_the_beginning_costs_no_backup[tmpfs]",
        "btrkeep/test_catalogue_schema.py::test_a_migration_that_was_killed_leaves_the_old_schema_and_is_done_by_the_next_program",
        "backupd/test_cli_lost.py::test_what_only_a_lost_catalogue_knew_comes_back_from_the_pool",
        "btrkeep/test_catalogue_processes.py",
    ),
    "a balance moves what it says and leaves nothing behind": (
        "btrfs/test_balance.py::test_exactly_the_block_group_that_was_named_moves",
        "btrfs/test_balance.py::test_only_the_balance_of_that_block_group_is_cancelled",
        "btrfs/test_balance.py::test_no_room_for_a_block_group_is_said_by_the_kernel",
        "btrfs/test_balance.py::test_a_block_group_with_a_swap_file_stays_and_is_set_aside",
        "btrfs/test_balance.py::test_a_run_balances_what_is_worth_it_and_reports_what_python_btrfs_sees",
        "btrfs/test_balance_stops.py::test_killed_outright_it_leaves_nothing_in_the_kernel[progress:SIGKILL:1]",
        "btrfs/test_balancer_cli.py::test_a_run_moves_what_it_says_and_no_byte_of_a_file_changes",
        "btrfs/test_score.py::test_every_block_group_is_as_python_btrfs_sees_it[dup]",
    ),
    "a picture shows what the filesystem has": (
        "heatmap/test_state.py::test_a_state_is_what_python_btrfs_finds_item_by_item",
        "heatmap/test_nightly.py",
    ),
    "hosts run beside each other and harm no other's night": (
        "btrfs/test_concurrency.py::test_never_more_than_concurrency_and_never_more_of_a_group_than_its_own",
        "btrfs/test_concurrency.py::test_the_failure_of_one_host_stops_no_other",
        "btrfs/test_concurrency.py::test_a_second_night_is_refused_and_told_who_holds_the_lock",
        "btrfs/test_absence.py::test_an_optional_host_that_was_there_is_absent_only_when_it_is_not_there",
        "btrfs/test_absence.py::test_a_name_that_never_resolved_is_a_failure",
        "btrfs/test_hooks.py::test_a_hook_that_fails_fails_the_host_and_nothing_is_transferred",
        "btrfs/test_hooks.py::test_hooks_of_a_configuration_that_others_may_write_are_not_run",
        "btrfs/test_retries.py::test_a_cut_connection_is_tried_again_and_only_what_is_unfinished_is_repeated",
        "btrfs/test_retries.py::test_a_changed_host_key_is_tried_once_and_nothing_is_fetched",
        "btrfs/test_stall.py::test_the_deadline_ends_a_transfer_that_moves",
        "btrfs/test_one_connection.py::test_a_host_of_several_paths_is_logged_in_to_once",
        "btrfs/test_latest.py",
    ),
    "trouble is reported once, with a command that works": (
        "backupd/test_cli_notify.py::test_a_failure_is_told_once_and_so_is_its_end",
        "backupd/test_cli_notify.py::test_a_pool_that_is_gone_is_told_and_what_is_not_known_is_not_taken_for_well",
        "backupd/test_cli_notify.py::test_a_unit_is_told_of_without_systemd_and_with_a_damaged_catalogue",
        "backupd/test_cli_reporting.py::test_a_broken_configuration_is_reported_first_and_once_by_all_that_reports",
        "backupd/test_cli_status.py::test_a_held_lock_is_3_and_its_holder_is_named",
        "backupd/test_cli_status.py::test_status_names_jobs_that_failed_until_they_have_recovered",
        "test_remedies.py::test_each_printed_command_is_typed_or_has_a_reason",
        "backupd/test_cli_check.py::test_a_healthy_site_has_nothing_to_do",
        "backupd/test_cli_check.py::test_a_key_that_is_not_accepted_is_an_error",
        "backupd/test_cli_check.py::test_an_unknown_host_key_is_an_error_and_is_not_learnt",
        "backupd/test_cli_check.py::test_a_changed_host_key_is_an_error",
        "backupd/test_cli_check.py::test_a_missing_path_is_an_error_that_names_it",
        "btrfs/test_health.py::test_all_say_the_same_of_a_pool_that_is_full_and_then_read_only",
        "btrfs/test_doctor.py::test_a_read_only_filesystem_is_found",
        "btrfs/test_doctor_commands.py::test_those_of_mount_options",
        "btrfs/test_remedies.py::test_from_nothing_to_the_first_backup",
        "btrfs/test_remedies.py::test_a_catalogue_is_made_again[lost]",
        "btrfs/test_remedies.py::test_a_suspect_backup_is_accepted",
    ),
    "an import brings other programs' histories as they were": (
        "btrfs/test_import.py::test_a_fortnight_of_rsnapshot_is_as_it_was_and_the_next_night_goes_on_from_it",
        "btrfs/test_import.py::test_killed_before_it_was_compared_a_backup_is_compared_the_next_time",
        "btrfs/test_takeover.py::test_snapshots_of_btrbk_are_taken_over_and_the_next_night_goes_on_from_them",
        "btrfs/test_dedupe.py::test_equal_files_share_whatever_they_are_called_and_nothing_else_changes",
        "btrfs/test_share_with.py::test_a_new_host_shares_what_both_have_and_is_as_if_there_were_no_other",
    ),
    "the root service gives each what is his": (
        "btrfs/test_serve.py::test_a_folder_is_listed_as_it_is_in_the_source",
        "btrfs/test_serve.py::test_a_file_of_any_name_is_downloaded_as_it_was",
        "btrfs/test_serve.py::test_other_users_are_kept_out_by_the_kernel_and_by_the_service",
        "btrfs/test_serve.py::test_a_restore_goes_to_its_own_host_or_where_the_administrator_says",
        "btrfs/test_serve_rights.py::test_whom_the_administrator_allows_is_answered_by_a_session_alone",
        "btrfs/test_serve_rights.py::test_what_is_not_his_looks_like_what_is_not_there",
        "btrfs/test_serve_restores.py::test_no_symlink_and_no_mount_in_such_a_folder_leads_out_of_it",
        "btrfs/test_browse.py::test_no_planted_symlink_leads_out_of_a_backup_whichever_command_is_asked",
        "btrfs/test_versions.py::test_the_versions_are_those_that_stat_sees",
    ),
    "the dashboard lets in who has a login": (
        "web/test_gate_login.py",
        "web/test_gate_requests.py",
        "web/test_hostile.py",
        "web/test_gate_cli.py::test_a_user_logs_in_over_a_socket_and_sees_a_page",
        "web/test_gate_cli.py::test_root_follows_nothing_that_the_dashboards_user_has_planted",
    ),
    "a browser shows hostile names as text, and gives back files": (
        "web/test_browser.py::test_from_the_login_to_a_failing_host",
        "web/test_browser.py::test_text_of_hosts_is_only_text",
        "web/test_browser.py::test_a_file_is_found_and_downloaded_as_it_was",
        "web/test_files_browser.py::test_no_name_runs_and_every_one_can_be_clicked",
        "web/test_files_hostile.py",
        "web/test_files_pages.py",
        "web/test_download_real.py::test_an_archive_comes_whole",
        "web/test_api.py::test_without_a_token_nothing_is_shown",
        "web/test_api.py::test_a_customer_sees_his_hosts_and_no_trace_of_others",
        "web/test_api.py::test_a_viewer_changes_nothing",
        "web/test_api.py::test_a_path_that_leads_elsewhere_is_none",
        "web/test_api.py::test_a_restore_is_previewed_and_done",
        "web/test_host_actions.py",
    ),
    "its documentation is right": (
        "docs/test_documents.py::test_every_page_that_is_named_is_there",
        "docs/test_pages.py::test_readme_changes_and_contributing_have_no_faults_of_markup",
        "docs/test_man.py",
        "docs/test_names.py",
        "docs/test_serve.py",
        "docs/test_what_to_do.py",
        "docs/test_restricted_keys.py::test_with_the_line_the_key_does_nothing_but_read",
    ),
    "the source keeps its rules": (
        "test_structure.py::test_each_module_uses_only_what_its_place_allows",
        "test_structure.py::test_nothing_is_imported_in_a_circle_neither_modules_nor_rooms",
        "test_structure.py::test_decisions_are_pure_and_so_is_what_the_dashboard_finds_behind_a_door",
        "test_structure.py::test_no_handler_swallows_bugs",
        "test_structure.py::test_what_is_imported_is_declared_and_what_is_declared_is_imported",
    ),
    "it installs, and systemd starts it": (
        "install/test_options.py::test_help_needs_no_root_and_unknown_words_are_refused",
        "install/test_options.py::test_shellcheck_finds_nothing",
        "systemd/test_units.py",
        "backupd/test_cli_setup.py::test_with_all_options_this_machine_has_its_first_backup",
    ),
}

_NAMED = frozenset(f"tests/{name}" for names in PROTECTIONS.values() for name in names)
_MODULES = frozenset(name.partition("::")[0] for name in _NAMED)


def is_named(test: str) -> bool:
    """Returns True if the table has the test. `test`: a node id of pytest, from the top folder. A name in the table means all
    parameters, a module all its tests.
    """
    return not _NAMED.isdisjoint((test, test.partition("[")[0], test.partition("::")[0]))


def is_named_module(module: str) -> bool:
    """Returns True if any test of the module is named. `module`: its path from the top folder."""
    return module in _MODULES


def examples(count: int) -> int:
    """How many examples of a property this session tries, of `count` in CI and in `--all`: as many fewer as a property without a
    number of its own has (tests/conftest.py). The examples are others in each session.
    """
    return max(1, count * settings().max_examples // 100)


def without_a_test(tests: Iterable[str]) -> list[str]:
    """Returns the names in the table that match none of `tests`, the node ids of all tests of the gate."""
    names = {name for test in tests for name in (test, test.partition("[")[0], test.partition("::")[0])}
    return sorted(_NAMED - names)


def unknown_names(top: Path) -> list[str]:
    """Returns the names in the table for which the checkout `top` has no module or no such function; parameters are not
    compared.
    """
    functions: dict[str, set[str]] = {}
    for module in _MODULES:
        path = top / module
        nodes: Iterable[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ()
        functions[module] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    modules = {name: name.partition("[")[0].partition("::") for name in _NAMED}
    return sorted(
        name for name, (module, _, test) in modules.items() if not functions[module] or (test and test not in functions[module])
    )

"""What an observer can do to a training that would go on without it, and the tests that fail where ours does it.

Every kind has happened, in an early state of this package or of others; ``docs/faults.md`` shows the table.
"""

from __future__ import annotations

_RANKS, _LOOPS, _HOSTS = "faults/test_ranks_that_differ.py", "faults/test_loops.py", "safety/test_every_host.py"
_REPLACED, _PROMISES = "safety/test_replacement.py", "integrations/lightning/test_promises.py"
_FILE = "writers/test_line_file.py"

HARMS: dict[str, tuple[str, ...]] = {
    "a collective where the host is not collective": (
        f"{_RANKS}::test_both_ranks_end_with_the_same_parameters",
        "faults/test_trainers_that_differ.py::test_both_ranks_end_with_the_same_parameters",
    ),
    "a meeting of ranks before the host has cleaned up": (
        f"{_RANKS}::test_a_rank_outlives_the_other",
        "integrations/accelerate/test_ends.py::test_the_accelerator_ends_though_ours_breaks_off",
    ),
    "an exception of ours that reaches the host": (
        f"{_HOSTS}::test_whatever_raises_costs_one_message_and_no_weight",
        f"{_LOOPS}::test_damaged_totals_restart",
        f"{_LOOPS}::test_host_values",
    ),
    "set-up that raises: a module or logger that refuses what is asked, callbacks inside callbacks": (
        "integrations/lightning/test_training_steps.py::"
        "test_a_module_whose_training_step_cannot_be_set_trains_as_without_us",
        "integrations/lightning/test_host.py::test_a_logger_without_a_folder",
        "integrations/transformers/test_grouping.py::test_it_measures_as_it_does_alone",
        "integrations/accelerate/test_rows.py::test_what_is_no_row_passes",
    ),
    "a model that can no longer be scripted": (
        "safety/test_hooks.py::test_as_many_attachments_as_there_are_routers_leave_scripting_as_it_was",
    ),
    "objects that can no longer be copied or pickled": (
        f"{_REPLACED}::test_copies_and_pickles_have_the_bare_method",
        f"{_REPLACED}::test_a_method_whose_function_has_another_name_is_pickled_too",
        f"{_LOOPS}::test_a_copy_is_not_measured",
    ),
    "models that are not freed after a training, or when one is dropped in its middle": (
        "safety/test_freed.py::test_nothing_is_kept_that_the_host_frees",
        "safety/test_freed.py::test_a_model_that_refers_to_its_accelerator_or_session_is_collected",
        "safety/test_freed.py::test_an_accelerator_that_is_dropped_leaves_nothing_wrapped_and_its_rows_in_the_files",
    ),
    "one bad tensor or batch that costs more than itself": (
        "core/test_scalars_without_value.py::test_a_tensor_without_a_value_costs_only_itself",
        "core/test_numbers.py::test_a_dtensor_is_read_only_where_this_rank_holds_all_of_it",
    ),
    "a file that hangs the training, or stays lost when the disk is back": (
        f"{_FILE}::test_what_a_full_disk_refused_is_written_when_there_is_room_again",
        f"{_FILE}::test_a_deleted_folder_is_made_again",
        f"{_FILE}::test_a_rotated_file_is_begun_anew",
        "faults/test_every_host.py::test_the_training_ends_with_the_same_weights",
    ),
    "a small file that takes gigabytes to read": (
        "writers/test_metrics_file.py::test_a_hostile_line_costs_little_and_is_named_in_a_short_message",
        "writers/test_metrics_file.py::test_many_large_snapshots_stay_within_a_budget",
    ),
    "a configuration that hangs a message, or writes to the terminal": (
        "config/test_hostile_files.py::test_a_hostile_yaml_file_ends_soon_in_a_short_message",
        "config/test_messages.py::test_keys_are_printable",
        "writers/test_metrics_file.py::test_a_torn_last_line_of_any_kind_is_ignored_and_removed",
    ),
    "secrets in what is written": (
        "writers/test_secrets.py::test_a_token_of_a_known_service_goes_wherever_it_stands",
        "writers/test_secrets.py::test_a_value_under_a_secret_name_goes_in_every_notation",
        "writers/test_secrets.py::test_innocent_texts_stay_as_they_are",
    ),
    "records that go to a forgotten run": (
        f"{_LOOPS}::test_a_second_track_of_a_model_closes_the_first",
        f"{_LOOPS}::test_metrics_that_nothing_refers_to_are_closed",
        f"{_LOOPS}::test_a_forked_child_that_trains_records",
    ),
    "checkpoints without totals": (f"{_PROMISES}::test_a_checkpoint_that_is_written_on_an_exception_has_whole_totals",),
    "folders in the wrong place: a URL as a path, or a logger's own folder made first": (
        f"{_LOOPS}::test_a_remote_folder",
        f"{_PROMISES}::test_a_remote_root_gets_a_local_folder",
        f"{_PROMISES}::test_a_csv_logger_of_fabric_finds_an_empty_folder",
    ),
    "a training inside a callback that ends the outer measurement": (
        f"{_PROMISES}::test_a_trainer_inside_a_training_leaves_the_outer_measurement_alone",
    ),
    "a replaced method that is none": (
        f"{_REPLACED}::test_it_is_a_bound_method_of_the_owner",
        f"{_REPLACED}::test_signatures_and_hints_read_as_before_in_every_way",
        f"{_REPLACED}::test_a_scheduler_made_after_the_wrap_counts_and_is_counted",
        "integrations/lightning/test_training_steps.py::test_it_is_given_what_it_asks_for_and_counted",
    ),
    "hooks with the arguments of another host": (
        "integrations/lightning/test_fabric_hooks.py::test_hooks_of_any_name_pass",
        "integrations/lightning/test_fabric_hooks.py::test_it_has_no_hook_of_the_trainer",
    ),
    "a method that another release, or a trainer of the user's, has with other types": (
        "integrations/trl/test_methods.py::test_ends_of_completions_under_the_names_of_every_release",
        "integrations/trl/test_methods.py::test_a_method_that_the_release_does_not_have_is_none_of_its_own",
        "faults/test_trl_batches.py::test_batches_of_another_kind",
    ),
}


def render_harms() -> str:
    """The section of the page."""
    rows = [f"| {harm} | {', '.join(f'`{test}`' for test in tests)} |\n" for harm, tests in HARMS.items()]
    return "".join([_HEAD, *rows])


_HEAD = """
## Kinds of harm

What an observer can do to a training that would end well without it, and the tests that fail where ours does it.

| Harm | Tests |
| --- | --- |
"""

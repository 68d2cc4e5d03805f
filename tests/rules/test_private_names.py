"""Each private name of torch and Lightning that this project uses exists in the installed release."""

import importlib
import inspect

import pytest

from fsdl_dev.models import torch_private

LIGHTNINGS = {  # class -> its private names that this project uses
    "pytorch_lightning:Trainer": (
        "_checkpoint_connector", "_data_connector", "_signal_connector", "_accelerator_connector",
        "_Trainer__setup_profiler",
    ),
    "pytorch_lightning:LightningModule": ("_trainer", "_device_mesh", "_device"),
    "pytorch_lightning.loops:_FitLoop": (
        "_combined_loader", "_data_fetcher", "_load_combined_loader_states", "_should_accumulate",
        "_restarting", "_resuming_from_checkpoint",
    ),
    "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop": (
        "_broadcast_sigterm_tensor", "_is_training_done", "_should_check_val_fx", "_results", "_batches_that_stepped",
    ),
    "pytorch_lightning.loops.evaluation_loop:_EvaluationLoop": ("_restart_stage", "_has_run", "_results"),
    "pytorch_lightning.loops.fetchers:_DataLoaderIterDataFetcher": (),
    "pytorch_lightning.utilities.combined_loader:CombinedLoader": ("_state_dicts", "_load_state_dicts"),
    "pytorch_lightning.trainer.connectors.checkpoint_connector:_CheckpointConnector": (
        "_get_lightning_module_state_dict", "_parse_ckpt_path", "_hpc_resume_path", "_loaded_checkpoint", "_ckpt_path",
    ),
    "pytorch_lightning.trainer.connectors.data_connector:_DataConnector": ("_prepare_dataloader", "_datahook_selector"),
    "pytorch_lightning.callbacks:ModelCheckpoint": (
        "_save_checkpoint", "_save_last_checkpoint", "_save_topk_checkpoint", "_monitor_candidates",
        "_remove_checkpoint", "_should_skip_saving_checkpoint", "_should_save_on_exception", "_last_checkpoint_saved",
        "_last_global_step_saved", "_every_n_train_steps", "_train_time_interval",
    ),
    "pytorch_lightning.core.optimizer:LightningOptimizer": ("_optimizer",),
    "pytorch_lightning.strategies:DDPStrategy": ("_setup_model",),
    "pytorch_lightning.strategies:ModelParallelStrategy": ("_setup_distributed", "_configure_launcher", "_device_mesh"),
}  # fmt: skip
TORCHS = {  # the same
    "torch.nn:Module": ("_parameters", "_buffers", "_modules", "_apply", "_compiled_call_impl"),
    "torch.utils.flop_counter:FlopCounterMode": ("_count_flops",),
    "torch.distributed.tensor.parallel:ColwiseParallel": ("_apply",),
    "torch.distributed.pipelining.schedules:_PipelineScheduleRuntime": (),
    "torch.distributed.distributed_c10d:ProcessGroup": ("_get_sequence_number_for_group",),
    "torch._C._distributed_c10d:Reducer": (
        "_rebuild_buckets",
        "_get_zeros_like_grad_buckets",
        "prepare_for_forward",
        "prepare_for_backward",
    ),
    "torch.amp:GradScaler": ("_scale",),
    "torch:UntypedStorage": ("_cdata",),
}
NAMES = [
    (path, name)
    for table in (TORCHS, LIGHTNINGS)
    for path, names in table.items()
    for name in names or (None,)
]


@pytest.mark.parametrize("path,name", NAMES)
def test_a_class_has_its_private_name(path, name):
    module, _, cls = path.partition(":")
    owner = getattr(importlib.import_module(module), cls)
    if name is None or hasattr(owner, name):
        return
    sources = [inspect.getsource(each) for each in owner.__mro__ if each.__module__ != "builtins"]
    assert any(f"self.{name}" in source or f'"{name}"' in source for source in sources), (
        f"{path} has no {name} any more: change what uses it, or pin the release"
    )


@pytest.mark.parametrize("name", torch_private.LATE)
def test_a_late_name_of_torch_is_there(name):
    assert callable(torch_private.late(name))
